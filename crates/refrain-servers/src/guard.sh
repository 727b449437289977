# Runs when the process that holds the other end of the input has ended: ends every process whose working
# directory is in the folder, and removes the folder. Arguments: the folder, the graceful shutdown signal.
folder=$1
signal=$2

own() {
    find /proc/[0-9]*/cwd -maxdepth 0 \( -lname "$folder" -o -lname "$folder/*" \) 2>/dev/null | cut -d/ -f3
}

pids=$(own)
# A stopped process only reacts to CONT and KILL.
[ -z "$pids" ] || { kill -s CONT $pids; kill -s "$signal" $pids; } 2>/dev/null
tries=0
while [ -n "$(own)" ] && [ "$tries" -lt 100 ]; do
    sleep 0.03
    tries=$((tries + 1))
done
while pids=$(own) && [ -n "$pids" ]; do
    kill -s KILL $pids 2>/dev/null
    sleep 0.01
done
# A killed PostgreSQL leaves a shared memory segment, whose number is in this file.
if [ -f "$folder/data/postmaster.pid" ]; then
    set -- $(sed -n 7p "$folder/data/postmaster.pid")
    [ -z "$2" ] || ipcrm -m "$2" 2>/dev/null
fi
rm -rf "$folder"

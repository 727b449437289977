-- Claims entries that were not acknowledged within ack_wait, and returned entries that are due.
-- KEYS: the stream, the due times of delayed entries. ARGV: group, consumer, ack_wait in ms, how many, cursor.
-- Returns the next cursor; the entries as {id, fields, attempt}; the number of entries deleted from the stream.
local stream, later = KEYS[1], KEYS[2]
local group, consumer, wait = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Without their fields, so that this does not count as an attempt.
local found = redis.call('XAUTOCLAIM', stream, group, consumer, wait, ARGV[5], 'COUNT', ARGV[4], 'JUSTID')
local taken, gone = {}, 0
if found[3] then gone = #found[3] end
for _, id in ipairs(found[2]) do
  local due = tonumber(redis.call('HGET', later, id) or 0)
  if due > now then
    local idle = math.max(0, wait - (due - now))
    redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', idle, 'JUSTID')
  else
    redis.call('HDEL', later, id)
    local entry = redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
    if entry then
      local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
      taken[#taken + 1] = {id, entry[2], pending[4]}
    else
      redis.call('XACK', stream, group, id)
      gone = gone + 1
    end
  end
end
return {found[1], taken, gone}

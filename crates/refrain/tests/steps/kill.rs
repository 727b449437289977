//! A real process, killed with SIGKILL, with the downstream systems in files outside of its store.
//!
//! The child books rides: each has three effects; every third ride is rejected at the last step, and undone. The
//! parent kills the child at random times and restarts it, lets its last life finish, and then compares the files.
//! `REFRAIN_KILLS` sets the maximum number of kills.

use std::{
    collections::{HashMap, HashSet},
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::sleep,
    time::Duration,
};

use refrain::{
    Engine, Key, Terms,
    steps::{Failure, Opened, Opening, StepError},
    store::embedded::{Embedded, Options},
};
use refrain_testkit::{disk::Dice, wait};

const CHILD: &str = "REFRAIN_TEST_STEPS_CHILD";
const LAST: &str = "REFRAIN_TEST_STEPS_LAST";
const RIDES: usize = 400;
/// Rides per life of a child that will be killed, so that a fast machine, too, leaves work for the next lives.
const RIDES_PER_LIFE: usize = 6;
const AT_ONCE: usize = 4;
const END: &str = " end";

fn child_folder() -> Option<PathBuf> {
    env::var_os(CHILD).map(PathBuf::from)
}

/// Appends one line to a file; the operating system has it when this returns. A kill can cut the line, so it starts
/// with a line break and ends with a mark.
fn note(path: &Path, line: &str) {
    let mut options = fs::OpenOptions::new();
    let mut file = options.append(true).create(true).open(path).unwrap();
    file.write_all(format!("\n{line}{END}\n").as_bytes())
        .unwrap();
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.lines().filter_map(|line| line.strip_suffix(END));
    whole.map(Into::into).collect()
}

/// A downstream system that supports idempotency keys: one file per effect, named after its key.
async fn down(folder: &Path, ride: usize, what: &str, key: &Key) -> Result<String, Failure> {
    note(
        &folder.join("calls"),
        &format!("{ride} {what} {}", key.as_str()),
    );
    tokio::time::sleep(Duration::from_millis(8)).await;
    if what == "mail" && ride.is_multiple_of(3) {
        return Err(Failure::reject("no such address"));
    }
    let effect = folder.join("effects").join(key.as_str());
    let mut options = fs::OpenOptions::new();
    match options.write(true).create_new(true).open(effect) {
        Ok(_) => note(&folder.join("effected"), &format!("{ride} {what}")),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists),
    }
    tokio::time::sleep(Duration::from_millis(8)).await;
    Ok(what.into())
}

fn opening(ride: usize) -> Opening {
    let terms = Terms {
        lease: Duration::from_millis(150),
        wait: Duration::from_secs(5),
        attempts_max: 10_000,
        ..Terms::default()
    };
    let key = Key::new(format!("ride-{ride}")).unwrap();
    Opening::new("book-ride", key).with_terms(terms)
}

async fn book(engine: &Engine, folder: &Path, ride: usize) -> Result<String, StepError> {
    let mut steps = match opening(ride).open(engine).await? {
        Opened::Open(steps) => steps,
        Opened::Finished(text) => return Ok(text),
    };
    let booked: String = steps
        .step_or_undo(
            "ride",
            async |key: Key| down(folder, ride, "ride", &key).await,
            async |key: Key, _: String| down(folder, ride, "undo ride", &key).await.map(drop),
        )
        .await?;
    let charged: String = steps
        .step_or_undo(
            "charge",
            async |key: Key| down(folder, ride, "charge", &key).await,
            async |key: Key, _: String| down(folder, ride, "undo charge", &key).await.map(drop),
        )
        .await?;
    let mailed: String = steps
        .step("mail", async |key: Key| {
            down(folder, ride, "mail", &key).await
        })
        .await?;
    steps.finish(format!("{booked} {charged} {mailed}")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(folder) = child_folder() else { return };
    let store = Embedded::open(&folder.join("store"), Options::default()).unwrap();
    let engine = Engine::new(store);
    let ended = lines(&folder.join("ended"));
    let ended: HashSet<&str> = ended
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let is_last = env::var_os(LAST).is_some();
    let at_most = if is_last { RIDES } else { RIDES_PER_LIFE };
    let open = (0..RIDES).filter(|ride| !ended.contains(&*ride.to_string()));
    let open = open.take(at_most);
    let turns = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut runs = tokio::task::JoinSet::new();
    for ride in open {
        let turn = turns.clone().acquire_owned().await.unwrap();
        let (engine, folder) = (engine.clone(), folder.clone());
        runs.spawn(async move {
            let _turn = turn;
            loop {
                let end = match book(&engine, &folder, ride).await {
                    Ok(text) => text,
                    Err(StepError::Undone { .. }) => "undone".into(),
                    Err(error) if error.is_retryable() => continue,
                    Err(error) => panic!("ride {ride}: {error}"),
                };
                return note(&folder.join("ended"), &format!("{ride} {end}"));
            }
        });
    }
    while let Some(ran) = runs.join_next().await {
        ran.unwrap();
    }
    if !is_last {
        std::future::pending::<()>().await;
    }
}

fn start(folder: &Path, is_last: bool) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    if is_last {
        command.env(LAST, "");
    }
    command
        .args(["kill::child_that_is_killed", "--exact", "--nocapture"])
        .env(CHILD, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

#[test]
fn rides_end_once_however_often_their_process_is_killed() {
    if child_folder().is_some() {
        return;
    }
    let kills: usize = env::var("REFRAIN_KILLS").map_or(200, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("effects")).unwrap();
    for life in 0..kills {
        let mut child = start(folder.path(), false);
        wait_for_work(folder.path(), &mut child);
        sleep(Duration::from_millis(dice.below(90)));
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "life {life} ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        if lines(&folder.path().join("ended")).len() >= RIDES {
            break;
        }
    }
    let mut child = start(folder.path(), true);
    assert!(child.wait().unwrap().success());
    check_books(folder.path());
}

/// Waits until this life has called a system or noted an end, however slow the machine is.
fn wait_for_work(folder: &Path, child: &mut Child) {
    let len_of = |name: &str| fs::metadata(folder.join(name)).map_or(0, |data| data.len());
    let len = || len_of("calls") + len_of("ended");
    let before = len();
    wait::until_blocking("the child works or ends", || {
        len() != before || child.try_wait().unwrap().is_some()
    });
}

fn check_books(folder: &Path) {
    let mut effects: HashMap<String, Vec<String>> = HashMap::new();
    for line in lines(&folder.join("effected")) {
        let (ride, what) = line.split_once(' ').unwrap();
        effects.entry(ride.into()).or_default().push(what.into());
    }
    let mut ends: HashMap<String, HashSet<String>> = HashMap::new();
    for line in lines(&folder.join("ended")) {
        let (ride, end) = line.split_once(' ').unwrap();
        ends.entry(ride.into()).or_default().insert(end.into());
    }
    let calls = lines(&folder.join("calls"));
    let mut keys: HashMap<String, HashSet<String>> = HashMap::new();
    for line in &calls {
        let (what, key) = line.rsplit_once(' ').unwrap();
        keys.entry(what.into()).or_default().insert(key.into());
    }
    for (what, keys) in &keys {
        assert_eq!(keys.len(), 1, "{what} was called under several keys");
    }
    check_order(&calls);
    for ride in 0..RIDES {
        let ride_text = ride.to_string();
        let (end, right): (&str, &[&str]) = match ride % 3 {
            0 => ("undone", &["ride", "charge", "undo charge", "undo ride"]),
            _ => ("ride charge mail", &["ride", "charge", "mail"]),
        };
        assert_eq!(ends[&ride_text], HashSet::from([end.into()]), "ride {ride}");
        // A kill between an effect and its note loses the note, never the effect's file.
        let noted = effects.remove(&ride_text).unwrap_or_default();
        let mut right_left = right.iter();
        let is_in_order = noted.iter().all(|what| right_left.any(|it| it == what));
        assert!(is_in_order, "ride {ride}: {noted:?}");
    }
    let happened = fs::read_dir(folder.join("effects")).unwrap().count();
    let right: usize = (0..RIDES)
        .map(|ride| if ride.is_multiple_of(3) { 4 } else { 3 })
        .sum();
    assert_eq!(happened, right, "each effect once, each undo once");
    check_store(folder);
    let again = calls.len() - keys.len();
    println!("{} calls, {again} of them again", calls.len());
    assert!(
        again >= 20,
        "{again} kills hit a step: too few for a valid test"
    );
}

/// No step runs after a later one, and none runs forward once the undo has begun.
fn check_order(calls: &[String]) {
    const ORDER: [&str; 5] = ["ride", "charge", "mail", "undo charge", "undo ride"];
    let mut reached: HashMap<&str, usize> = HashMap::new();
    for line in calls {
        let (ride, rest) = line.split_once(' ').unwrap();
        let (what, _key) = rest.rsplit_once(' ').unwrap();
        let place = ORDER.iter().position(|other| *other == what).unwrap();
        let before = reached.insert(ride, place).unwrap_or_default();
        assert!(
            before <= place,
            "ride {ride}: {what} after {}",
            ORDER[before]
        );
    }
}

/// No record is left in flight or indeterminate.
fn check_store(folder: &Path) {
    let store = Embedded::open(&folder.join("store"), Options::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let census = runtime.block_on(refrain::Store::census(&store)).unwrap();
    assert_eq!((census.in_flight, census.indeterminate), (0, 0));
}

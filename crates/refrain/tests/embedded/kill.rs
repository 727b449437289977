//! A real process, killed hundreds of times, with a ledger of effects outside of the store.
//!
//! The child process claims keys, appends each effect to the ledger, completes, and notes the acknowledgement.
//! The parent process kills it at random times and restarts it. At the end it compares the store with the ledger.
//! `REFRAIN_KILLS` sets the number of kills; the seed is printed.

use std::{
    collections::HashMap,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use refrain::{
    Claim, ErrorKind, Guarantee, Store, Verdict,
    record::State,
    store::embedded::{Durability, Embedded, Options},
};
use refrain_testkit::{disk::Dice, wait};

use crate::common::{HOUR, at_least_once, body_of, claim, completion, id, wait};

const CHILD: &str = "REFRAIN_TEST_CHILD";
const SEED: &str = "REFRAIN_TEST_SEED";
const KEYS: u64 = 20_000;
const END: &str = " end";

/// Starts this test binary again as a child, with one test only.
fn start(name: &str, folder: &Path, seed: u64) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, folder)
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// The working folder, if this process is a child.
fn child_folder() -> Option<PathBuf> {
    env::var_os(CHILD).map(PathBuf::from)
}

fn options(durability: Durability) -> Options {
    Options {
        durability,
        segment_bytes_max: 64 << 10,
        ..Options::default()
    }
}

/// Every fourth key is at-least-once.
fn claim_of(key: u64) -> Claim {
    match key % 4 {
        0 => at_least_once(key),
        _ => claim(key),
    }
}

/// Appends one line to a file; the operating system has it when this returns.
/// A kill can cut the line between two pages, so it starts with a line break and ends with a mark.
fn note(path: &Path, line: &str) {
    let mut options = fs::OpenOptions::new();
    let mut file = options.append(true).create(true).open(path).unwrap();
    file.write_all(format!("\n{line}{END}\n").as_bytes())
        .unwrap();
}

#[test]
fn child_that_is_killed() {
    let Some(folder) = child_folder() else { return };
    let seed: u64 = env::var(SEED).unwrap().parse().unwrap();
    let durability = match seed % 2 {
        0 => Durability::Full,
        _ => Durability::Relaxed,
    };
    let store = Embedded::open(&folder.join("store"), options(durability)).unwrap();
    assert_eq!(store.damage(), []);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (store, folder) = (&store, &folder);
            scope.spawn(move || {
                let mut dice = Dice::new(seed * 4 + worker);
                loop {
                    work(store, folder, dice.below(KEYS), dice.throw());
                }
            });
        }
    });
}

fn work(store: &Embedded, folder: &Path, key: u64, chance: u64) {
    match wait(store.claim(claim_of(key))).unwrap() {
        Verdict::Granted(grant) => {
            note(&folder.join("effects"), &format!("{key}"));
            let body = format!("{key} {chance} {}", "x".repeat(chance as usize % 700));
            let end = completion(body.as_bytes(), HOUR, HOUR);
            let settled = wait(store.settle(id(key), grant.fence, end)).unwrap();
            if settled == refrain::Settled::Applied {
                note(&folder.join("acknowledged"), &format!("{key}={body}"));
            }
        }
        Verdict::Replay(outcome) => {
            let body = outcome.body();
            let body = String::from_utf8_lossy(&body);
            note(&folder.join("replayed"), &format!("{key}={body}"));
        }
        Verdict::InFlight { .. } | Verdict::Indeterminate(_) => {}
        other => panic!("{key}: {other:?}"),
    }
}

/// The completely written lines of a file.
fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.lines().filter_map(|line| line.strip_suffix(END));
    whole.map(Into::into).collect()
}

fn pairs(path: &Path) -> Vec<(u64, String)> {
    let parse = |line: &String| {
        let (key, body) = line.split_once('=').unwrap();
        (key.parse().unwrap(), body.to_owned())
    };
    lines(path).iter().map(parse).collect()
}

#[test]
fn a_process_that_is_killed_again_and_again_keeps_its_word() {
    if child_folder().is_some() {
        return;
    }
    let kills: u64 = env::var("REFRAIN_KILLS").map_or(200, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let mut dice = Dice::new(seed);
    // A slow machine does less between two kills, so continue until enough has happened.
    for life in 0..kills * 4 {
        if life >= kills && has_done_enough(folder.path()) {
            break;
        }
        let mut child = start("kill::child_that_is_killed", folder.path(), seed + life);
        // Half of the lives, with either durability, do some work before the kill, however slow the machine is.
        if life / 2 % 2 == 0 {
            wait_for_work(folder.path(), &mut child);
        }
        sleep(Duration::from_millis(20 + dice.below(100)));
        assert_eq!(child.try_wait().unwrap(), None, "the child ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    check_ledger(folder.path());
}

fn wait_for_work(folder: &Path, child: &mut Child) {
    let bytes = |name: &str| fs::metadata(folder.join(name)).map_or(0, |data| data.len());
    let written = || bytes("effects") + bytes("replayed");
    let before = written();
    wait::until_blocking("the child works or ends", || {
        written() != before || child.try_wait().unwrap().is_some()
    });
}

fn has_done_enough(folder: &Path) -> bool {
    let count = |name: &str| lines(&folder.join(name)).len();
    count("acknowledged") > 600 && count("replayed") > 100
}

fn check_ledger(folder: &Path) {
    let store = Embedded::open(&folder.join("store"), options(Durability::Full)).unwrap();
    assert_eq!(store.damage(), []);
    let acknowledged = pairs(&folder.join("acknowledged"));
    let outcomes: HashMap<_, _> = acknowledged.iter().cloned().collect();
    assert_eq!(outcomes.len(), acknowledged.len(), "completed twice");
    let mut effects: HashMap<u64, u32> = HashMap::new();
    for line in lines(&folder.join("effects")) {
        *effects.entry(line.parse().unwrap()).or_default() += 1;
    }
    let (mut done, mut open) = (0, 0);
    for key in 0..KEYS {
        let reading = wait(store.read(id(key))).unwrap();
        let count = effects.get(&key).copied().unwrap_or_default();
        if claim_of(key).guarantee == Guarantee::AtMostOnce {
            assert!(count <= 1, "key {key} took effect {count} times");
        }
        let Some(reading) = reading else {
            assert_eq!(count, 0, "key {key} has vanished");
            continue;
        };
        match reading.record.state {
            State::Completed { .. } => {
                let body = body_of(&reading.record).unwrap();
                let right = outcomes.get(&key);
                assert!(
                    right.is_none_or(|right| right.as_bytes() == body),
                    "key {key}"
                );
                assert!(count > 0, "key {key} was completed without an effect");
                done += 1;
            }
            _ => {
                assert!(!outcomes.contains_key(&key), "key {key} was acknowledged");
                open += 1;
            }
        }
    }
    let replays = pairs(&folder.join("replayed"));
    for (key, body) in &replays {
        let right = outcomes.get(key);
        assert!(
            right.is_none_or(|right| right == body),
            "key {key}: {body:?} instead of {right:?}"
        );
    }
    println!("{done} completed, {open} open, {} replays", replays.len());
    assert!(done > 500 && open > 20 && replays.len() > 100);
}

#[test]
fn child_that_wants_the_same_folder() {
    let Some(folder) = child_folder() else { return };
    let error = Embedded::open(&folder, Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    let text = error.to_string();
    let holder = env::var(SEED).unwrap();
    assert!(text.contains(&format!("pid {holder}")), "{text}");
}

#[test]
fn a_second_process_is_refused_at_once() {
    if child_folder().is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path(), Options::default()).unwrap();
    let holder = std::process::id().into();
    let mut child = start(
        "kill::child_that_wants_the_same_folder",
        folder.path(),
        holder,
    );
    // The child must fail to open the folder while this process holds it.
    assert!(child.wait().unwrap().success());
    drop(store);
    Embedded::open(folder.path(), Options::default()).unwrap();
}

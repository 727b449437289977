//! The embedded store across restarts: acknowledged records survive, and folders of other programs are not touched.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not recognised as tests"
)]

mod cold;
mod common;
mod crash;
mod damage;
mod descriptors;
mod erase;
mod faults;
mod kill;
mod movable;
mod restart;
mod scope_keys;
mod sweep;
mod torn;
mod truncated;

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use refrain::{
    Claim, ErrorKind, Fingerprint, Guarantee, Outcome, RecordId, Settled, Settlement, Store,
    Verdict,
    store::embedded::{Embedded, Options},
};

fn open(folder: &Path) -> Embedded {
    Embedded::open(folder, Options::default()).unwrap()
}

fn id(number: u8) -> RecordId {
    RecordId([number; 16])
}

fn claim(number: u8) -> Claim {
    Claim::new(id(number), Fingerprint([1; 16]))
}

async fn ask(store: &Embedded, claim: Claim) -> Verdict {
    store.claim(claim).await.unwrap()
}

fn complete(body: &str) -> Settlement {
    Settlement::Complete {
        outcome: Outcome::new(200, body),
        retention: Duration::from_secs(60),
        remember: Duration::from_secs(60),
    }
}

async fn run(store: &Embedded, number: u8, end: Settlement) {
    let Verdict::Granted(grant) = ask(store, claim(number)).await else {
        panic!("not granted");
    };
    let settled = store.settle(id(number), grant.fence, end).await.unwrap();
    assert_eq!(settled, Settled::Applied);
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    run(&store, 1, complete("one")).await;
    run(&store, 2, Settlement::Release).await;
    let Verdict::Granted(_) = ask(&store, claim(3)).await else {
        panic!("not granted");
    };
    let at_least_once = Claim {
        guarantee: Guarantee::AtLeastOnce,
        ..claim(4)
    };
    let Verdict::Granted(first) = ask(&store, at_least_once.clone()).await else {
        panic!("not granted");
    };
    drop(store);

    let store = open(folder.path());
    assert_eq!(store.damage(), []);
    let Verdict::Replay(outcome) = ask(&store, claim(1)).await else {
        panic!("not replayed");
    };
    assert_eq!(&outcome.body()[..], b"one");
    assert!(matches!(ask(&store, claim(2)).await, Verdict::Granted(_)));
    // The holder is certainly gone, so its lease has lapsed.
    assert!(matches!(
        ask(&store, claim(3)).await,
        Verdict::Indeterminate(_)
    ));
    let taken = Claim {
        claimant: refrain::record::Claimant::random(),
        ..at_least_once
    };
    let Verdict::Granted(second) = ask(&store, taken).await else {
        panic!("not taken over");
    };
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert!(second.fence > first.fence);
}

#[test]
fn a_second_holder_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path());
    let error = Embedded::open(folder.path(), Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(
        error.to_string().contains(&std::process::id().to_string()),
        "{error}"
    );
}

#[test]
fn a_place_where_no_folder_can_be_is_refused_by_name() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for path in [Path::new("/dev/null/store"), file.path()] {
        let error = Embedded::open(path, Options::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
}

#[test]
fn a_closed_store_can_be_opened_at_once_while_processes_are_started() {
    let folder = tempfile::tempdir().unwrap();
    let is_over = AtomicBool::new(false);
    let opened: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = std::process::Command::new("/bin/true").status();
            }
        });
        let _over = common::OnDrop(&is_over);
        let open = || Embedded::open(folder.path(), Options::default()).map(drop);
        (0..50).map(|_| open()).collect()
    });
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
}

#[test]
fn a_folder_that_is_not_ours_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("precious.txt"), "mine").unwrap();
    let error = Embedded::open(folder.path(), Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("precious.txt"), "{error}");
    let names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(names, ["precious.txt"]);
}

/// Sets the format version in the header of each segment.
fn set_segment_version(folder: &Path, version: u32) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "log") {
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, bytes).unwrap();
    }
}

#[tokio::test]
async fn segments_of_earlier_releases_are_read_and_those_of_later_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    run(&store, 1, complete("one")).await;
    drop(store);
    set_segment_version(folder.path(), 1);
    let store = open(folder.path());
    let found = ask(&store, claim(1)).await;
    assert!(matches!(found, Verdict::Replay(_)), "{found:?}");
    run(&store, 2, complete("two")).await;
    drop(store);
    set_segment_version(folder.path(), 3);
    let error = Embedded::open(folder.path(), Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 3"), "{error}");
}

#[test]
fn an_unknown_format_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let path = folder.path().join("refrain.store");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("format 1", "format 9");
    fs::write(&path, text).unwrap();
    let error = Embedded::open(folder.path(), Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("format version 9"), "{error}");
}

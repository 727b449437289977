//! Files on a disk outlive the release that wrote them.
//! A release that reads a store, an audit log or a journal differently runs an operation again, or refuses to start.
//! The files in `formats/` were written by earlier releases; they open and continue as before.
//! `store_1` has a record in every state; the other files are from before the three shared their log code.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not recognised as tests"
)]

#[path = "support/kept.rs"]
mod kept;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use refrain::{
    AuditLog, Claim, Client, Fingerprint, Key, RecordId, Store, Verdict,
    audit::{self, ChainHash, Check, Entry, Event, Verified, verify},
    client::{Ending, Journal, Transport, TransportError, journal},
    record::State,
    store::embedded::{self, Embedded},
};
use refrain_testkit::ManualClock;

/// A copy of one of the folders in `formats/`.
fn copy(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    for entry in fs::read_dir(from.join(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

fn open_store(folder: &Path) -> Embedded {
    let options = embedded::Options {
        segment_bytes_max: 2 << 10,
        clock: ManualClock::new().shared(),
        ..embedded::Options::default()
    };
    Embedded::open(folder, options).unwrap()
}

async fn claim(store: &Embedded, number: u8) -> Verdict {
    let claim = Claim::new(RecordId([number; 16]), Fingerprint([1; 16]));
    store.claim(claim).await.unwrap()
}

async fn check_store(store: &Embedded) {
    assert_eq!(store.damage(), []);
    for (number, body) in [(1, b"one".to_vec()), (2, vec![7; 900]), (3, vec![0; 900])] {
        match claim(store, number).await {
            Verdict::Replay(outcome) => assert_eq!(outcome.body(), body[..], "{number}"),
            other => panic!("{number}: {other:?}"),
        }
    }
    for number in [4, 5] {
        let reading = store.read(RecordId([number; 16])).await.unwrap().unwrap();
        let state = reading.record.state;
        assert!(matches!(state, State::Indeterminate { .. }), "{state:?}");
    }
}

/// Every record of every state, as the release that introduced scope digests in traces left them.
#[tokio::test]
async fn store_with_every_state_opens_and_continues() {
    let folder = copy("store_1");
    assert_eq!(Embedded::check(folder.path()).unwrap(), []);
    for _ in 0..2 {
        let store = open_store(folder.path());
        assert_eq!(store.damage(), []);
        kept::check(&store, true).await;
    }
    let store = open_store(folder.path());
    kept::go_on(&store, true).await;
}

/// Run it with `--ignored` after a change of the format, for the folder of the new release beside the old one.
#[tokio::test]
#[ignore = "writes the files that the other tests read"]
async fn write_store_with_every_state() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/store_new");
    let clock = ManualClock::new();
    let options = embedded::Options {
        segment_bytes_max: 2 << 10,
        clock: clock.shared(),
        ..embedded::Options::default()
    };
    let store = Embedded::open(&folder, options).unwrap();
    kept::write(&store, |span| clock.advance(span)).await;
}

/// `store_killed` was copied while a process had it open, `store_closed` after that process ended.
#[tokio::test]
async fn store_opens_and_continues() {
    for name in ["store_killed", "store_closed"] {
        let folder = copy(name);
        assert_eq!(Embedded::check(folder.path()).unwrap(), [], "{name}");
        for round in 0..3 {
            let store = open_store(folder.path());
            check_store(&store).await;
            let new = claim(&store, 10 + round).await;
            assert!(matches!(new, Verdict::Granted(_)), "{name}: {new:?}");
        }
    }
}

#[tokio::test]
async fn store_with_a_flipped_bit_in_its_last_frame_is_damaged() {
    let folder = copy("store_killed");
    let logs = files(folder.path(), "log");
    let last_frame = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        let start = bytes.windows(4).rposition(|it| it == b"rFr1")?;
        Some((path.clone(), bytes, start))
    };
    let (path, mut bytes, start) = logs.iter().rev().find_map(last_frame).unwrap();
    bytes[start + 12] ^= 1;
    fs::write(path, bytes).unwrap();
    assert_ne!(open_store(folder.path()).damage(), []);
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
    names.retain(|name| name.extension().is_some_and(|it| it == extension));
    names.sort();
    names
}

fn verified(folder: &Path) -> Verified {
    let found = verify(folder, &Check::default(), &mut |_| ()).unwrap();
    assert_eq!(found.damage, []);
    found
}

/// The chain continues after the last entry of the earlier release, which may have been interrupted in a line.
#[tokio::test]
async fn audit_log_opens_and_continues() {
    for cut in [0, 1, 40] {
        let folder = copy("audit");
        let found = verified(folder.path());
        assert_eq!((found.files, found.entries), (2, 9));
        let last = files(folder.path(), "jsonl").pop().unwrap();
        let text = fs::read(&last).unwrap();
        fs::write(&last, &text[..text.len() - cut]).unwrap();
        let kept = verified(folder.path());
        assert_eq!(kept.entries, found.entries - u64::from(cut > 0));
        let options = audit::Options {
            segment_bytes_max: 1_500,
            ..audit::Options::default()
        };
        let log = AuditLog::open_with(folder.path(), options).unwrap();
        log.write(Entry::new(Event::Released)).await.unwrap();
        drop(log);
        let after = verified(folder.path());
        assert_eq!(after.entries, kept.entries + 2, "cut by {cut}");
        let check = Check {
            head: Some(kept.head),
            from: Some(ChainHash::START),
        };
        let found = verify(folder.path(), &check, &mut |_| ()).unwrap();
        assert_eq!(found.damage, []);
    }
}

/// Answers by itself, and remembers which keys it was given.
#[derive(Debug, Clone, Default)]
struct Desk(Arc<Mutex<Vec<String>>>);

impl Transport for Desk {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let key = request.headers()["idempotency-key"].to_str().unwrap();
        self.0.lock().unwrap().push(key.to_owned());
        Ok(Response::new("paid now".into()))
    }
}

fn open_journal(path: &Path) -> (Desk, Client<Desk>) {
    let options = journal::Options {
        clock: ManualClock::new().shared(),
        ..journal::Options::default()
    };
    let desk = Desk::default();
    let journal = Journal::open_with(path, options).unwrap();
    (desk.clone(), Client::new(desk, journal))
}

async fn pay(client: &Client<Desk>, name: &str) -> Bytes {
    let request = Request::post("http://desk/pay")
        .body(Bytes::from_static(b"20"))
        .unwrap();
    let ending = client.call(Key::new(name).unwrap()).send(request).await;
    match ending.unwrap() {
        Ending::Answered(answer) => answer.response.into_body(),
        other => panic!("{name}: {other:?}"),
    }
}

/// A finished call is answered from the journal; an open one is resumed.
#[tokio::test]
async fn journal_opens_and_continues() {
    let folder = copy("journal");
    let path = folder.path().join("calls.journal");
    for resumed in [1, 0] {
        let (desk, client) = open_journal(&path);
        assert_eq!(pay(&client, "first").await, "paid before");
        assert_eq!(client.open_calls().await.unwrap().len(), resumed);
        let endings = client.resume().await.unwrap().all().await;
        assert_eq!(endings.len(), resumed);
        let sent = desk.0.lock().unwrap().clone();
        assert_eq!(sent, ["second"].repeat(resumed));
    }
}

#[tokio::test]
async fn journal_that_ends_in_a_torn_frame_loses_only_that() {
    let folder = copy("journal");
    let path = folder.path().join("calls.journal");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let (_, client) = open_journal(&path);
    assert_eq!(pay(&client, "first").await, "paid before");
    assert_eq!(client.open_calls().await.unwrap().len(), 0);
}

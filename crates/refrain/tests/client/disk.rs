//! The disk is full, a sync fails, or the power fails. Every request that was sent must be in the journal, and every
//! ending that a caller received must be in it unchanged; otherwise a restarted client sends a payment again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use refrain::{
    Client, ErrorKind,
    client::{Ending, Journal, Transport, TransportError, journal::Options},
    store::embedded::disk::RealDisk,
};
use refrain_testkit::disk::{End, Fault, FaultDisk, Operation, Rule};

use crate::stage::{key, post, told};

/// Responds by itself, and records the keys that it received.
#[derive(Debug, Clone, Default)]
struct Desk(Arc<Mutex<Vec<String>>>);

impl Transport for Desk {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let key = request.headers()["idempotency-key"].to_str().unwrap();
        self.0.lock().unwrap().push(key.to_owned());
        Ok(Response::new(format!("paid {key}").into()))
    }
}

impl Desk {
    fn sent(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Three rounds of three calls.
const FINISHED_MAX: usize = 9;

fn options(disk: &FaultDisk) -> Options {
    Options {
        disk: Arc::new(disk.clone()),
        // Small, so that the file is rewritten often.
        rewrite_bytes_min: 2_000,
        finished_calls_max: FINISHED_MAX,
        ..Options::default()
    }
}

async fn pay(client: &Client<Desk>, name: &str) -> refrain::Result<Ending> {
    let request = post("http://desk/pay", &"x".repeat(300));
    client.call(key(name)).send(request).await
}

#[tokio::test]
async fn a_full_disk_refuses_calls_before_they_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultDisk::over(folder.path()).unwrap();
    let desk = Desk::default();
    let path = folder.path().join("calls.journal");
    let client = Client::new(
        desk.clone(),
        Journal::open_with(&path, options(&disk)).unwrap(),
    );
    assert_eq!(told(&pay(&client, "one").await.unwrap()), "answered 200");
    // The intent is written, but there is no room for the response: the caller does not get it, and the call stays
    // open.
    disk.fail(Rule {
        skip: 1,
        ..Rule::always(Operation::Write, "", Fault::ENOSPC)
    });
    let error = pay(&client, "two").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(client.open_calls().await.unwrap().len(), 1);
    let sent = desk.sent().len();
    assert_eq!(
        pay(&client, "three").await.unwrap_err().kind(),
        ErrorKind::Full
    );
    assert_eq!(disk.mend(), 2);
    // The disk is full in the middle of a frame.
    disk.fail(Rule::once(Operation::Write, "", Fault::Short));
    disk.fail(Rule::once(Operation::Write, "", Fault::ENOSPC));
    assert_eq!(
        pay(&client, "three").await.unwrap_err().kind(),
        ErrorKind::Full
    );
    assert_eq!(disk.mend(), 2);
    assert_eq!(desk.sent().len(), sent, "nothing was sent");
    for name in ["one", "two", "three", "four"] {
        let ending = pay(&client, name).await.unwrap().into_answer().unwrap();
        assert_eq!(ending.body(), &format!("paid {name}"));
    }
    assert_eq!(client.open_calls().await.unwrap().len(), 0);
    drop(client);
    Journal::open(&path).unwrap();
}

#[tokio::test]
async fn a_failed_sync_latches_the_journal_shut() {
    // The first sync of a call makes its intent durable, the second one its ending.
    for (skip, sent) in [(0, 0), (1, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls.journal");
        drop(Journal::open(&path).unwrap());
        let disk = FaultDisk::over(folder.path()).unwrap();
        let desk = Desk::default();
        let client = Client::new(
            desk.clone(),
            Journal::open_with(&path, options(&disk)).unwrap(),
        );
        disk.fail(Rule {
            skip,
            ..Rule::once(Operation::Sync, "journal", Fault::EIO)
        });
        let error = pay(&client, "one").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("rejects all calls"), "{error}");
        assert_eq!(disk.mend(), 1);
        // The disk works again, but its contents are unknown after the failed sync.
        for name in ["one", "two"] {
            assert_eq!(
                pay(&client, name).await.unwrap_err().kind(),
                ErrorKind::Unavailable
            );
        }
        assert!(client.resume().await.is_err());
        assert_eq!(desk.sent().len(), sent);
        drop(client);
        // A power failure would leave the intent, if it was synced, and no ending.
        let after = tempfile::tempdir().unwrap();
        disk.crash(7, after.path()).unwrap();
        let journal = Journal::open(after.path().join("calls.journal")).unwrap();
        let client = Client::new(desk.clone(), journal);
        let resumed = client.resume().await.unwrap().all().await;
        assert_eq!(resumed.len(), sent);
        assert_eq!(
            pay(&client, "one")
                .await
                .unwrap()
                .into_answer()
                .unwrap()
                .body(),
            "paid one"
        );
    }
}

/// Runs calls until the disk fails; returns the responses that callers received.
async fn work(desk: &Desk, journal: Journal) -> HashMap<String, Bytes> {
    let client = Client::new(desk.clone(), journal);
    let mut told = HashMap::new();
    for number in 0..12 {
        // Three concurrent calls share a frame.
        let names = [0, 1, 2].map(|part| format!("order-{number}-{part}"));
        let [a, b, c] = &names;
        let ended = tokio::join!(pay(&client, a), pay(&client, b), pay(&client, c));
        for (name, ended) in names.iter().zip([ended.0, ended.1, ended.2]) {
            if let Ok(Ending::Answered(answer)) = ended {
                told.insert(name.clone(), answer.response.into_body());
            }
        }
    }
    told
}

#[tokio::test]
async fn whenever_the_power_goes_nothing_that_was_sent_is_forgotten() {
    let (mut unopened, mut open_calls) = (0, 0);
    for changes in (0..150).chain([u64::MAX / 2]) {
        let folder = tempfile::tempdir().unwrap();
        let disk = FaultDisk::over(folder.path()).unwrap();
        let path = folder.path().join("calls.journal");
        let desk = Desk::default();
        disk.end_after(changes + 1, End::Power);
        let told = match Journal::open_with(&path, options(&disk)) {
            Ok(journal) => work(&desk, journal).await,
            Err(_) => HashMap::new(),
        };
        for seed in 0..4 {
            let after = tempfile::tempdir().unwrap();
            disk.crash(seed, after.path()).unwrap();
            let path = after.path().join("calls.journal");
            unopened += u32::from(!path.exists());
            let options = Options {
                disk: Arc::new(RealDisk),
                finished_calls_max: FINISHED_MAX,
                ..Options::default()
            };
            let journal = Journal::open_with(&path, options)
                .unwrap_or_else(|error| panic!("{changes} {seed}: {error}"));
            open_calls += check(&desk, journal, &told, &format!("{changes} {seed}")).await;
        }
    }
    assert!(
        unopened > 0 && open_calls > 50,
        "too few calls for a valid test"
    );
}

/// Every key that was sent is open, or finished with the response that its caller received; the journal keeps the
/// last rounds.
async fn check(desk: &Desk, journal: Journal, told: &HashMap<String, Bytes>, place: &str) -> u32 {
    let again = Desk::default();
    let client = Client::new(again.clone(), journal);
    let open: Vec<_> = client.open_calls().await.unwrap();
    let open: Vec<_> = open
        .iter()
        .map(|call| call.key.as_str().to_owned())
        .collect();
    let round = |name: &str| name.split('-').nth(1).unwrap().parse::<usize>().unwrap();
    let last = told.keys().map(|name| round(name)).max();
    for name in &desk.sent() {
        match told.get(name) {
            None if open.contains(name) => {}
            None => {
                let ending = pay(&client, name).await.unwrap();
                let Ending::Answered(answer) = ending else {
                    panic!("{place}: {name}: {ending:?}")
                };
                assert!(
                    answer.is_from_journal,
                    "{place}: {name} was sent and is missing from the journal"
                );
            }
            // One more round may have finished after the last acknowledged one.
            Some(_) if Some(round(name) + 1) < last => {}
            Some(body) => {
                assert!(
                    !open.contains(name),
                    "{place}: {name} was answered and is still open"
                );
                let ending = pay(&client, name).await.unwrap().into_answer().unwrap();
                assert_eq!(ending.body(), body);
                assert_eq!(
                    again.sent(),
                    Vec::<String>::new(),
                    "{place}: the response of {name} is missing"
                );
            }
        }
    }
    open.len() as u32
}

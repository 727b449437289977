//! Two neighbouring versions on one server: keys that an earlier release wrote are read, and those of a newer one
//! are refused and kept.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use refrain::{ErrorKind, Settlement, Store as _, clock::Timestamp, record::Reason};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::servers::redis_url;

use crate::{
    kept,
    support::{Prefix, ask, claim, complete, granted, id, verdict},
};

/// Stands for the prefix in the file.
const PREFIX: &str = "kept:";
const DAY: Duration = Duration::from_secs(86_400);

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/formats")
        .join(name)
}

/// A manual clock for handles on a prefix.
#[derive(Clone)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn start() -> Self {
        Self(Arc::new(AtomicU64::new(kept::START.0)))
    }

    fn advance(&self, span: Duration) {
        let millis = u64::try_from(span.as_millis()).unwrap();
        self.0.fetch_add(millis, Ordering::SeqCst);
    }

    async fn open(&self, prefix: &Prefix) -> Redis {
        let time = self.clone();
        let options = Options::default();
        let options = options.with_clock(move || Timestamp(time.0.load(Ordering::SeqCst)));
        prefix.open(options).await.unwrap()
    }
}

fn get(key: &str) -> Vec<u8> {
    ask(&redis_url(), redis::cmd("GET").arg(key))
}

fn set(key: &str, value: &[u8]) {
    let _: redis::Value = ask(&redis_url(), redis::cmd("SET").arg(key).arg(value));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(pair).collect()
}

/// Each line is a key and its value, in hex.
fn restore(name: &str) -> Prefix {
    let prefix = Prefix::new();
    let mark = prefix.mark();
    let own = mark.strip_suffix("store").unwrap();
    for line in fs::read_to_string(file(name)).unwrap().lines() {
        let (key, value) = line.split_once(' ').unwrap();
        set(&key.replacen(PREFIX, own, 1), &unhex(value));
    }
    prefix
}

/// Every record of every state, as the release wrote them that introduced scope digests in traces.
#[tokio::test]
async fn keys_with_every_state_are_restored_and_continue() {
    let prefix = restore("redis-4.txt");
    let time = Time::start();
    time.advance(kept::WRITTEN_AFTER);
    for _ in 0..2 {
        kept::check(&time.open(&prefix).await, false).await;
    }
    time.advance(DAY);
    let store = time.open(&prefix).await;
    kept::check(&store, true).await;
    kept::go_on(&store, true).await;
}

/// Run it with `--ignored` after a change of the format, for the keys of the new release beside the old ones.
#[tokio::test]
#[ignore = "writes the file that the other tests read"]
async fn write_keys_with_every_state() {
    let prefix = Prefix::new();
    let time = Time::start();
    let store = time.open(&prefix).await;
    kept::write(&store, |span| time.advance(span)).await;
    let mark = prefix.mark();
    let own = mark.strip_suffix("store").unwrap();
    let pattern = format!("{own}*");
    let mut keys: Vec<String> = ask(&redis_url(), redis::cmd("KEYS").arg(pattern));
    keys.sort();
    let line = |key: &String| format!("{} {}\n", key.replacen(own, PREFIX, 1), hex(&get(key)));
    let text: String = keys.iter().map(line).collect();
    fs::write(file("redis-new.txt"), text).unwrap();
}

/// A node of a newer version has claimed or completed the key: nothing is granted, replayed, settled or erased here.
#[tokio::test]
async fn records_of_a_newer_version_are_refused_and_kept() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    let in_flight = granted(&store, &claim(1)).await;
    complete(&store, 2, "done").await;
    let fence = store.read(id(2)).await.unwrap().unwrap().record.fence();
    for (number, fence) in [(1, in_flight.fence), (2, fence.unwrap())] {
        let key = prefix.key(id(number), "");
        let mut newer = get(&key);
        newer[0] += 1;
        newer.extend(b"what only a newer version knows");
        set(&key, &newer);
        let refused = verdict(&store, &claim(number)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let reason = Reason::Reset;
        let doubt = store.settle(id(number), fence, Settlement::Doubt { reason });
        let renewed = store.renew(id(number), fence, DAY);
        for refused in [doubt.await, renewed.await] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        }
        let refused = store.erase(id(number)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let _ = store.sweep(10).await.unwrap();
        assert_eq!(get(&key), newer);
    }
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused_and_kept() {
    let prefix = Prefix::new();
    drop(prefix.open(Options::default()).await.unwrap());
    let mark = String::from_utf8(get(&prefix.mark())).unwrap();
    let newer = mark.replacen("refrain store 3", "refrain store 4", 1);
    assert_ne!(newer, mark);
    set(&prefix.mark(), newer.as_bytes());
    let refused = prefix.open(Options::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let words = "has format version 4; this build reads version 3";
    assert!(refused.to_string().contains(words), "{refused}");
    assert_eq!(get(&prefix.mark()), newer.as_bytes());
}

//! A process without a free file descriptor, for example because of many connections: the store uses its reserve,
//! refuses new claims when the reserve is used up, and grants them again once descriptors are free, without a restart.

use std::{env, fs::File, path::PathBuf, process::Command, time::Duration};

use refrain::{
    ErrorKind, Store, Verdict,
    store::embedded::{Embedded, Options},
};
use tokio::runtime::Runtime;

use crate::common::{claim, complete, id};

const CHILD: &str = "REFRAIN_TEST_DESCRIPTORS";

/// Opens files until no descriptor is free.
fn crowd() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn segments(folder: &PathBuf) -> usize {
    let names = std::fs::read_dir(folder).unwrap();
    let is_log = |name: &PathBuf| name.extension().is_some_and(|end| end == "log");
    names
        .filter(|entry| is_log(&entry.as_ref().unwrap().path()))
        .count()
}

/// A store with a runtime that is already started, so that claims need no more descriptors.
struct StoreWithRuntime {
    store: Embedded,
    runtime: Runtime,
}

impl StoreWithRuntime {
    fn ask(&self, number: u64) -> refrain::Result<Verdict> {
        self.runtime.block_on(self.store.claim(claim(number)))
    }
}

/// Claims until the store is full; returns the number of grants.
fn claim_until_refused(asked: &StoreWithRuntime, from: u64) -> u64 {
    for number in from..from + 5_000 {
        match asked.ask(number) {
            Ok(Verdict::Granted(_)) => {}
            Err(error) if error.kind() == ErrorKind::Full => {
                assert!(error.to_string().contains("descriptor"), "{error}");
                return number - from;
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    panic!("claims were never refused");
}

#[test]
fn child_with_few_descriptors() {
    let Some(folder) = env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let options = Options {
        segment_bytes_max: 4 << 10,
        ..Options::default()
    };
    let store = Embedded::open(&folder, options).unwrap();
    complete(&store, 1, b"kept");
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.build().unwrap();
    let asked = StoreWithRuntime { store, runtime };
    let mut from = 100;
    for round in 0..2 {
        let before = segments(&folder);
        let crowd = crowd();
        assert!(File::open("/dev/null").is_err());
        from += claim_until_refused(&asked, from);
        assert!(matches!(asked.ask(1), Ok(Verdict::Replay(_))));
        drop(crowd);
        let after = segments(&folder);
        assert!(
            after > before + 1,
            "round {round}: {after}, {before} before"
        );
        let since = tokio::time::Instant::now();
        while !matches!(asked.ask(from), Ok(Verdict::Granted(_))) {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "claims were never granted again"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        from += 1;
    }
    let StoreWithRuntime { store, runtime } = asked;
    drop(store);
    let store = Embedded::open(&folder, Options::default()).unwrap();
    assert_eq!(store.damage(), []);
    for number in 100..from {
        let record = runtime.block_on(store.read(id(number))).unwrap();
        assert!(record.is_some(), "{number}");
    }
}

#[test]
fn lack_of_descriptors_passes_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    // Enough for all the segments, few enough to be used up.
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
        .arg(env::current_exe().unwrap())
        .args([
            "descriptors::child_with_few_descriptors",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(segments(&folder.path().into()) > 0, "the child did nothing");
}

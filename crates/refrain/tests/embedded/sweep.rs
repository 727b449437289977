//! Sweeps remove expired records and their bytes; other records survive any number of compactions.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use refrain::{
    Settlement, Store, Verdict,
    record::{Reason, State},
    store::embedded::Embedded,
};
use refrain_testkit::{disk::Dice, wait};

use crate::common::{
    HOUR, OnDrop, Site, ask, body_of, claim, completion, grant, id, observe, read, settle, sweep,
    wait,
};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn keep(store: &Embedded, number: u64, body: &[u8], retention: Duration, remember: Duration) {
    let fence = grant(store, claim(number));
    settle(store, number, fence, completion(body, retention, remember));
}

/// The size of all segments, in bytes.
fn bytes(site: &Site) -> usize {
    let files = site.files().into_iter();
    files
        .filter(|(name, _)| name.ends_with(".log"))
        .map(|(_, bytes)| bytes.len())
        .sum()
}

/// Closes the store, which seals its active segment for a sweep, and opens it again.
fn reopened(site: &Site, store: Embedded) -> Embedded {
    drop(store);
    site.open()
}

#[test]
fn a_long_retention_does_not_pin_a_short_one() {
    let site = Site::new(16 << 10);
    let store = site.open();
    for number in 0..400 {
        let retention = match number % 20 {
            0 => DAY * 30,
            _ => MINUTE,
        };
        keep(&store, number, &[number as u8; 400], retention, MINUTE);
    }
    let store = reopened(&site, store);
    sweep(&store);
    let store = reopened(&site, store);
    let full = bytes(&site);
    site.clock.turn(MINUTE * 3);
    sweep(&store);
    assert_eq!(store.len(), 20);
    let mut store = store;
    for _ in 0..2 {
        for number in (0..400).step_by(20) {
            let record = read(&store, number).unwrap().unwrap();
            assert_eq!(body_of(&record).unwrap(), [number as u8; 400]);
        }
        drop(store);
        let left = bytes(&site);
        assert!(left < 20 * 500 * 2 && left * 8 < full, "{left} of {full}");
        store = site.open();
    }
    assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Granted(_))));
}

#[test]
fn a_tombstone_is_small_and_remembered_and_then_gone() {
    let site = Site::new(64 << 10);
    let mut store = site.open();
    for number in 0..100 {
        keep(&store, number, &[7; 2_000], HOUR, DAY * 10);
    }
    store = reopened(&site, store);
    site.clock.turn(HOUR * 2);
    sweep(&store);
    for _ in 0..3 {
        drop(store);
        let left = bytes(&site);
        assert!(left < 100 * 150, "{left} bytes");
        store = site.open();
        for number in 0..100 {
            assert!(matches!(ask(&store, claim(number)), Ok(Verdict::Expired)));
            let record = read(&store, number).unwrap().unwrap();
            assert!(matches!(record.state, State::Tombstone { .. }));
        }
        sweep(&store);
        site.clock.turn(DAY * 3);
    }
    site.clock.turn(DAY * 2);
    sweep(&store);
    assert!(store.is_empty());
    grant(&store, claim(5));
}

#[test]
fn open_records_survive_compaction_and_restart() {
    let site = Site::new(4 << 10);
    let mut store = site.open();
    for number in 0..10 {
        let fence = grant(&store, claim(number));
        if number % 2 == 0 {
            let reason = Reason::Reset;
            settle(&store, number, fence, Settlement::Doubt { reason });
        }
    }
    store = reopened(&site, store);
    let known = observe(&store, 0..10);
    assert!(known.values().all(Option::is_some));
    let mut dice = Dice::new(1);
    for round in 0..40 {
        for number in 0..12 {
            keep(
                &store,
                1_000 + round * 12 + number,
                &[1; 300],
                MINUTE,
                MINUTE,
            );
        }
        site.clock.turn(MINUTE * 3);
        sweep(&store);
        match dice.below(3) {
            0 => store = reopened(&site, store),
            1 => {
                let killed = observe(&site.killed().open(), 0..10);
                assert_eq!(killed, known, "round {round}, killed");
            }
            _ => {}
        }
        assert_eq!(observe(&store, 0..10), known, "round {round}");
        wait::until_blocking("few files are left", || {
            sweep(&store);
            site.files().len() < 30
        });
    }
    // The fences are still current: a late completion is accepted.
    let fence = known[&1]
        .as_ref()
        .and_then(|record| record.fence())
        .unwrap();
    settle(&store, 1, fence, completion(b"late", HOUR, HOUR));
}

#[test]
fn a_later_life_of_a_key_is_not_hidden_by_an_earlier_one() {
    let site = Site::new(8 << 10);
    let store = site.open();
    // The first record of the key expires soon, in a segment that stays because its other records are kept for long.
    keep(&store, 1, b"first", MINUTE, MINUTE);
    for number in 10..30 {
        keep(&store, number, &[2; 600], DAY * 30, DAY);
    }
    site.clock.turn(MINUTE * 3);
    // The second record of the key is in segments that are soon compacted.
    keep(&store, 1, b"second", DAY, DAY);
    let second = site.written_logs().pop().unwrap();
    for number in 30..60 {
        keep(&store, number, &[3; 600], MINUTE, MINUTE);
    }
    site.clock.turn(MINUTE * 3);
    wait::until_blocking("the second record is moved", || {
        sweep(&store);
        !site.written_logs().contains(&second)
    });
    let logs = site.written_logs();
    assert!(logs.contains(&"00000001.log".into()), "{logs:?}");
    let killed = site.killed();
    for (label, store) in [
        ("killed", killed.open()),
        ("closed", reopened(&site, store)),
    ] {
        match ask(&store, claim(1)).unwrap() {
            Verdict::Replay(outcome) => assert_eq!(&outcome.body()[..], b"second", "{label}"),
            other => panic!("{label}: {other:?}"),
        }
    }
}

#[test]
fn a_jump_of_the_wall_clock_sweeps_nothing() {
    let site = Site::new(16 << 10);
    let mut store = site.open();
    for number in 0..50 {
        keep(&store, number, b"kept", HOUR, HOUR);
    }
    let known = observe(&store, 0..50);
    site.clock.turn(MINUTE * 30);
    let check = |store: &Embedded, label: &str| {
        site.clock.set_wall(DAY * 400);
        assert_eq!(sweep(store), 0, "{label}");
        assert_eq!(observe(store, 0..50), known, "{label}");
    };
    check(&store, "running");
    store = reopened(&site, store);
    check(&store, "opened again");
    drop(store);
    site.clock.reboot();
    store = site.open();
    check(&store, "after a reboot");
    // The time that the machine was off is not counted; the half hour before is.
    site.clock.turn(MINUTE * 29);
    check(&store, "a minute before the end");
    site.clock.turn(MINUTE * 2);
    assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Expired)));
    site.clock.turn(HOUR);
    store = reopened(&site, store);
    sweep(&store);
    assert!(store.is_empty());
}

#[test]
fn many_restarts_do_not_pile_up_files() {
    for is_killed in [false, true] {
        let mut site = Site::new(16 << 10);
        let mut most = 0;
        for number in 0..150 {
            let store = site.open();
            keep(&store, number, b"kept", DAY, DAY);
            if is_killed {
                let killed = site.killed();
                drop(store);
                site = killed;
            }
            most = most.max(site.files().len());
        }
        assert!(most < 60, "{most} files");
        let store = site.open();
        let is_kept = |number| read(&store, number).unwrap().is_some();
        assert!((0..150).all(is_kept));
    }
}

#[test]
fn reads_go_on_while_segments_are_compacted() {
    let site = Site::new(8 << 10);
    let store = site.open();
    for number in 0..60 {
        keep(&store, number, &[number as u8; 500], DAY * 300, DAY);
    }
    let is_over = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (store, is_over, reads) = (&store, &is_over, &reads);
            scope.spawn(move || {
                let mut dice = Dice::new(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let number = dice.below(60);
                    let reading = wait(store.read(id(number))).unwrap().unwrap();
                    let body = body_of(&reading.record).unwrap();
                    assert_eq!(body, [number as u8; 500]);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = OnDrop(&is_over);
        // Each round leaves segments with a few records that are still needed.
        for round in 0..40 {
            for number in 0..20 {
                keep(&store, 100 + round * 20 + number, &[1; 500], MINUTE, MINUTE);
            }
            site.clock.turn(MINUTE * 3);
            sweep(&store);
        }
    });
    assert!(reads.into_inner() > 500);
}

//! An erased record stays erased across compactions, restarts and power failures,
//! and a later record of the same key is not mistaken for the erased one.

use std::time::Duration;

use refrain::{
    ErrorKind, Settlement, Store, Verdict,
    record::{Erased, Reason},
    store::embedded::Embedded,
};
use refrain_testkit::disk::{Dice, Fault, Operation, Rule};

use crate::common::{
    HOUR, Known, Site, ask, body_of, claim, complete, completion, grant, id, observe, read, settle,
    sweep, wait,
};

const NUMBERS: u64 = 12;

fn erase(store: &Embedded, number: u64) -> Erased {
    wait(store.erase(id(number))).unwrap()
}

fn contains(site: &Site, bytes: &[u8]) -> bool {
    let files = site.files();
    let mut files = files.values();
    files.any(|file| file.windows(bytes.len()).any(|part| part == bytes))
}

#[test]
fn the_bytes_of_an_erased_outcome_leave_the_disk() {
    let site = Site::new(64 << 10);
    let store = site.open();
    for number in 0..20 {
        complete(&store, number, &[number as u8; 300]);
    }
    complete(&store, 20, b"what a customer wants to have forgotten");
    assert!(contains(&site, b"to have forgotten"));
    assert_eq!(erase(&store, 20), Erased::Gone);
    // Closing the store seals its active segment.
    drop(store);
    let store = site.open();
    sweep(&store);
    assert!(!contains(&site, b"to have forgotten"), "it is still there");
    assert!(!contains(&site, b"erased "), "the manifest remembers it");
    for number in 0..20 {
        assert!(matches!(ask(&store, claim(number)), Ok(Verdict::Replay(_))));
    }
    assert!(matches!(ask(&store, claim(20)), Ok(Verdict::Granted(_))));
}

/// The old record is in a log segment and is kept longer than the new one; the new one is compacted.
#[test]
fn erased_record_does_not_return_after_a_shorter_one() {
    let site = Site::new(64 << 10);
    let mut store = site.open();
    let fence = grant(&store, claim(1));
    settle(&store, 1, fence, completion(b"old", HOUR * 90, HOUR));
    for number in 100..140 {
        let fence = grant(&store, claim(number));
        settle(
            &store,
            number,
            fence,
            completion(&[1; 400], HOUR * 90, HOUR),
        );
    }
    assert_eq!(erase(&store, 1), Erased::Gone);
    drop(store);
    store = site.open();
    let fence = grant(&store, claim(1));
    settle(&store, 1, fence, completion(b"new", HOUR * 9, HOUR));
    for number in 200..240 {
        complete(&store, number, &[2; 400]);
    }
    let new = read(&store, 1).unwrap();
    for _ in 0..4 {
        drop(store);
        site.clock.turn(HOUR);
        store = site.open();
        assert_eq!(read(&store, 1).unwrap(), new);
        sweep(&store);
        assert_eq!(read(&store, 1).unwrap(), new);
    }
}

/// The claim is in an earlier segment than the outcome: without the outcome, the record would be in flight again.
#[test]
fn an_erased_outcome_does_not_leave_its_claim_behind() {
    let site = Site::new(2 << 10);
    let store = site.open();
    let fence = grant(&store, claim(1));
    let fill = |from: u64| (from..from + 20).for_each(|it| complete(&store, it, &[3; 200]));
    fill(100);
    settle(&store, 1, fence, completion(b"done", HOUR, HOUR));
    fill(200);
    assert_eq!(erase(&store, 1), Erased::Gone);
    let killed = site.killed();
    let after = killed.open();
    assert_eq!(read(&after, 1).unwrap(), None);
}

/// A damaged segment with the erased image stays, while the key's next record is moved to an archive.
#[test]
fn an_erased_image_that_stays_does_not_take_the_next_life_with_it() {
    let site = Site::new(64 << 10);
    let store = site.open();
    complete(&store, 1, b"old");
    complete(&store, 2, b"to be damaged");
    assert_eq!(erase(&store, 1), Erased::Gone);
    let files = site.files();
    drop(store);
    let site = site.beside();
    for (name, mut bytes) in files {
        let body = b"to be damaged";
        if let Some(at) = bytes.windows(body.len()).position(|part| part == body) {
            bytes[at] ^= 1;
        }
        site.write(&name, &bytes);
    }
    let mut store = site.open();
    assert_eq!(store.damage().len(), 1);
    assert_eq!(read(&store, 1).unwrap(), None);
    let fence = grant(&store, claim(1));
    settle(&store, 1, fence, completion(b"new", HOUR * 9, HOUR));
    for number in 10..30 {
        complete(&store, number, &[4; 400]);
    }
    drop(store);
    site.clock.turn(HOUR * 3);
    store = site.open();
    let new = read(&store, 1).unwrap();
    assert_eq!(new.as_ref().and_then(body_of).as_deref(), Some(&b"new"[..]));
    sweep(&store);
    assert!(
        (10..30).all(|it| read(&store, it).unwrap().is_none()),
        "it was not swept"
    );
    drop(store);
    store = site.open();
    assert_eq!(read(&store, 1).unwrap(), new);
}

/// Performs one random action on a record.
fn act(store: &Embedded, number: u64, dice: &mut Dice) {
    let hours = |dice: &mut Dice| HOUR * u32::try_from(1 + dice.below(5)).unwrap();
    match ask(store, claim(number)).unwrap() {
        Verdict::Granted(grant) => {
            let end = match dice.below(10) {
                0 => return,
                1 => Settlement::Release,
                2 => Settlement::Doubt {
                    reason: Reason::Reset,
                },
                _ => completion(&[number as u8; 90], hours(dice), hours(dice)),
            };
            settle(store, number, grant.fence, end);
        }
        Verdict::Replay(_) | Verdict::Expired if dice.happens(60) => {
            assert_eq!(erase(store, number), Erased::Gone);
            assert_eq!(erase(store, number), Erased::Absent);
        }
        Verdict::Indeterminate(doubt) => {
            assert_eq!(erase(store, number), Erased::Indeterminate);
            settle(store, number, doubt.fence, completion(b"late", HOUR, HOUR));
        }
        _ => {}
    }
}

fn same(store: &Embedded, known: &Known, label: &str) {
    assert_eq!(&observe(store, 0..NUMBERS), known, "{label}");
}

#[test]
fn erased_records_stay_gone_through_sweeps_restarts_and_kills() {
    for seed in 0..12 {
        let mut site = Site::new(2 << 10);
        let mut store = site.open();
        let mut dice = Dice::new(seed);
        for round in 0..40 {
            for _ in 0..12 {
                act(&store, dice.below(NUMBERS), &mut dice);
            }
            site.clock
                .turn(Duration::from_secs(60) * dice.below(50) as u32);
            let label = format!("seed {seed}, round {round}");
            // Restart, so that all leases have lapsed and no record is in flight.
            drop(store);
            store = site.open();
            let known = observe(&store, 0..NUMBERS);
            sweep(&store);
            same(&store, &known, &format!("{label}: swept"));
            let killed = site.killed();
            drop(store);
            site = killed;
            store = site.open();
            same(&store, &known, &format!("{label}: killed"));
        }
    }
}

#[test]
fn erased_record_stays_erased_after_power_loss() {
    for seed in 0..20 {
        let site = Site::new(64 << 10);
        let disk = site.disk();
        let store = site.open_on(&disk);
        for number in 0..6 {
            complete(&store, number, b"done");
        }
        assert_eq!(erase(&store, 3), Erased::Gone);
        complete(&store, 7, b"done");
        assert_eq!(erase(&store, 4), Erased::Gone);
        let fence = grant(&store, claim(4));
        let crashed = site.crashed(&disk, seed);
        let after = crashed.open();
        assert_eq!(read(&after, 3).unwrap(), None, "seed {seed}");
        let next = read(&after, 4).unwrap().and_then(|record| record.fence());
        assert_eq!(next, Some(fence), "seed {seed}: the next life");
        for number in [0, 1, 2, 5, 7] {
            let replay = ask(&after, claim(number));
            assert!(matches!(replay, Ok(Verdict::Replay(_))), "seed {seed}");
        }
    }
}

#[test]
fn an_erasing_that_cannot_be_written_is_not_acknowledged() {
    let site = Site::new(64 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    complete(&store, 1, b"done");
    disk.fail(Rule::always(Operation::Write, "manifest.new", Fault::EIO));
    let error = wait(store.erase(id(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(store);
    disk.mend();
    let killed = site.killed();
    let store = killed.open();
    assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
}

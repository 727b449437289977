//! Bytes that changed on disk after they were acknowledged.
//! With any bit flipped, file truncated or file missing, the store never panics, never returns a wrong outcome,
//! and never takes a damaged record for absent.

use std::{ops::Range, time::Duration};

use refrain::{
    ErrorKind, Settlement, Store as _, Verdict,
    record::Reason,
    store::embedded::{Damage, Embedded},
};
use refrain_testkit::disk::Dice;

use crate::common::{
    HOUR, Known, Site, ask, at_least_once, check, check_kind, claim, complete, completion, entries,
    frames, grant, id, observe, read, settle, sweep, wait,
};

const LOG: &str = "00000001.log";
const INDEX: &str = "00000001.idx";
const RECORDS: Range<u64> = 1..12;
const NEVER_SEEN: u64 = 1_000;
/// Long enough for a thread to reach the point where it blocks.
const PAUSE: Duration = Duration::from_millis(50);

/// Writes about ten frames with a record in every state, and a body of zeros that looks like unwritten sectors.
fn fill(store: &Embedded) {
    complete(store, 1, b"one");
    complete(store, 2, &[0; 1_100]);
    grant(store, claim(3));
    grant(store, at_least_once(4));
    let fence = grant(store, claim(5));
    settle(store, 5, fence, Settlement::Release);
    let fence = grant(store, claim(6));
    let reason = Reason::Timeout;
    settle(store, 6, fence, Settlement::Doubt { reason });
    let fence = grant(store, claim(7));
    settle(store, 7, fence, completion(&[0; 1_300], HOUR, HOUR));
}

/// A folder with records, and their expected state.
struct Filled {
    site: Site,
    known: Known,
}

fn killed() -> Filled {
    let site = Site::new(8 << 10);
    let store = site.open();
    fill(&store);
    let site = site.killed();
    let known = observe(&site.killed().open(), RECORDS);
    Filled { site, known }
}

fn closed() -> Filled {
    let site = Site::new(8 << 10);
    fill(&site.open());
    let known = observe(&site.killed().open(), RECORDS);
    Filled { site, known }
}

/// Opens the damaged folder twice, with a sweep in between; returns the number of unreadable records, and the damage.
fn check_open(site: &Site, known: &Known, label: &str) -> (usize, Vec<Damage>) {
    let store = site.open();
    let errors = check(&store, known, &label);
    let damage = store.damage().to_vec();
    check_unseen(&store, label);
    sweep(&store);
    assert_eq!(check(&store, known, &label), errors, "{label}, swept");
    drop(store);
    let store = site.open();
    let again = check(&store, known, &format!("{label}, opened again"));
    assert_eq!(again, errors, "{label}, opened again");
    (errors, damage)
}

/// A key that was never used is granted only if the damage cannot contain it.
fn check_unseen(store: &Embedded, label: &str) {
    let is_certain = store.damage().iter().all(|damage| damage.record.is_some());
    match ask(store, claim(NEVER_SEEN)) {
        Ok(_) => assert!(is_certain, "{label}"),
        Err(error) => {
            check_kind(&error, &label);
            assert!(!is_certain, "{label}: {error}");
        }
    }
}

fn flipped(bytes: &[u8], at: usize, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1 << dice.below(8);
    bytes
}

/// All used bytes of the segment, but only every 64th inside a body of zeros.
fn places(segment: &[u8]) -> Vec<usize> {
    let end = frames(segment).pop().unwrap().end;
    let is_plain = |at: usize| at > 8 && at + 8 < end && segment[at - 8..at + 8] == [0; 16];
    (0..end)
        .filter(|at| !is_plain(*at) || at % 64 == 0)
        .collect()
}

#[test]
fn a_flip_in_the_log_after_a_kill_is_reported_where_it_is() {
    let Filled { site, known } = killed();
    let whole = site.read(LOG);
    let mut dice = Dice::new(1);
    let mut reported = 0;
    for at in places(&whole) {
        let label = format!("flip at {at}");
        let site = site.killed();
        site.write(LOG, &flipped(&whole, at, &mut dice));
        let (errors, damage) = check_open(&site, &known, &label);
        let all = frames(&whole);
        let place = all.iter().find(|frame| frame.contains(&at));
        let place = place.cloned().unwrap_or(0..32);
        match damage.first() {
            // In an image that a later one replaced, or in the end mark of a frame: nothing is lost.
            None => assert_eq!(errors, 0, "{label}"),
            Some(damage) => {
                reported += 1;
                assert_eq!(damage.segment, 1, "{label}");
                assert!(
                    place.contains(&(damage.offset as usize)),
                    "{label}: {damage}"
                );
            }
        }
    }
    assert!(reported * 2 > places(&whole).len(), "{reported}");
}

#[test]
fn a_flip_in_the_log_after_a_clean_close_is_noticed_when_it_is_read() {
    let Filled { site, known } = closed();
    let whole = site.read(LOG);
    let mut dice = Dice::new(2);
    let mut noticed = 0;
    for at in places(&whole) {
        let site = site.killed();
        site.write(LOG, &flipped(&whole, at, &mut dice));
        noticed += check_open(&site, &known, &format!("flip at {at}")).0;
    }
    assert!(noticed * 3 > places(&whole).len(), "{noticed}");
}

#[test]
fn a_flip_anywhere_is_found_by_a_check() {
    let Filled { site, known } = closed();
    let whole = site.read(LOG);
    let mut dice = Dice::new(3);
    for at in places(&whole).into_iter().step_by(7) {
        let site = site.killed();
        site.write(LOG, &flipped(&whole, at, &mut dice));
        let errors = check(&site.killed().open(), &known, &"before the check");
        let damage = Embedded::check(site.path()).unwrap();
        assert!(!damage.is_empty() || errors == 0, "flip at {at}");
        assert_eq!(Embedded::check(site.path()).unwrap(), damage);
        assert_eq!(site.open().damage(), damage);
    }
}

#[test]
fn a_flip_in_a_snapshot_costs_nothing() {
    let Filled { site, known } = closed();
    let whole = site.read(INDEX);
    let mut dice = Dice::new(4);
    for at in 0..whole.len() {
        let site = site.killed();
        site.write(INDEX, &flipped(&whole, at, &mut dice));
        let (errors, damage) = check_open(&site, &known, &format!("flip at {at}"));
        assert_eq!((errors, damage.len()), (0, 0), "flip at {at}");
    }
}

#[test]
fn a_flip_in_the_manifest_or_the_identity_refuses_to_open_and_changes_nothing() {
    let Filled { site, .. } = closed();
    let mut dice = Dice::new(5);
    for name in ["manifest", "refrain.store"] {
        let whole = site.read(name);
        for at in 0..whole.len() {
            let site = site.killed();
            site.write(name, &flipped(&whole, at, &mut dice));
            let files = site.files();
            let error = site.try_open().unwrap_err();
            let kinds = [
                ErrorKind::Corrupt,
                ErrorKind::Unsupported,
                ErrorKind::Unavailable,
            ];
            assert!(kinds.contains(&error.kind()), "{name} {at}: {error}");
            let folder = site.path().to_string_lossy();
            assert!(error.to_string().contains(&*folder), "{name} {at}: {error}");
            assert!(site.files() == files, "{name} {at}: something was changed");
        }
    }
}

#[test]
fn a_store_without_its_manifest_or_its_identity_is_not_taken_for_a_new_one() {
    for name in ["manifest", "refrain.store"] {
        for filled in [killed(), closed()] {
            filled.site.remove(name);
            let files = filled.site.files();
            let error = filled.site.try_open().unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert!(
                filled.site.files() == files,
                "{name}: something was changed"
            );
        }
    }
}

/// Several log segments, all sealed with a snapshot.
fn long() -> Filled {
    let site = Site::new(4 << 10);
    let store = site.open();
    grant(&store, claim(50));
    for number in 1..40 {
        complete(&store, number, &[number as u8; 400]);
    }
    drop(store);
    // Reopen, so that one segment has no successor written by the same process.
    let store = site.open();
    for number in 40..46 {
        complete(&store, number, &[number as u8; 400]);
    }
    drop(store);
    let known = observe(&site.killed().open(), 1..60);
    Filled { site, known }
}

#[test]
fn a_missing_segment_leaves_nothing_absent() {
    let Filled { site, known } = long();
    let logs = site.written_logs();
    assert!(logs.len() > 4, "{logs:?}");
    for name in &logs {
        for is_damaged in [false, true] {
            let site = site.killed();
            match is_damaged {
                false => site.remove(name),
                true => site.write(name, &[0; 8]),
            }
            let (errors, damage) = check_open(&site, &known, name);
            assert!(errors > 0 && errors < known.len(), "{name}: {errors}");
            let number: u32 = name.trim_end_matches(".log").parse().unwrap();
            assert_eq!((damage[0].segment, damage[0].record), (number, None));
        }
    }
}

#[test]
fn a_segment_that_lost_its_last_frames_is_noticed() {
    let Filled { site, known } = long();
    for name in site.written_logs() {
        let whole = site.read(&name);
        for frame in frames(&whole) {
            // Truncated at the start of a frame, the rest of the file looks intact.
            let site = site.killed();
            site.write(&name, &whole[..frame.start]);
            let label = format!("{name} cut at {}", frame.start);
            let (errors, damage) = check_open(&site, &known, &label);
            assert!(errors > 0, "{label}");
            assert_eq!(damage[0].offset, frame.start as u64, "{label}");
        }
    }
}

#[test]
fn a_segment_without_its_snapshot_that_lost_its_last_frames_is_noticed_by_the_one_behind() {
    let Filled { site, known } = long();
    let logs = site.written_logs();
    for name in &logs[..logs.len() - 1] {
        let whole = site.read(name);
        let cut = frames(&whole).pop().unwrap().start;
        let site = site.killed();
        site.write(name, &whole[..cut]);
        site.remove(&name.replace(".log", ".idx"));
        let (errors, _) = check_open(&site, &known, name);
        assert!(errors > 0, "{name}");
    }
}

#[test]
fn a_segment_that_is_put_back_is_whole_again() {
    let Filled { site, known } = long();
    let logs = site.written_logs();
    for name in &logs[..logs.len() - 1] {
        let whole = site.read(name);
        for broken in [&whole[..40], &flipped(&whole, 40, &mut Dice::new(6))] {
            let site = site.killed();
            site.write(name, broken);
            site.remove(&name.replace(".log", ".idx"));
            assert!(!site.open().damage().is_empty(), "{name}");
            site.write(name, &whole);
            let store = site.open();
            assert_eq!(store.damage(), [], "{name}");
            assert_eq!(check(&store, &known, &name), 0, "{name}");
        }
    }
}

/// A store whose log ends with two images of one record in one frame, if both settlements were queued in time.
fn two_images() -> Site {
    let site = Site::new(8 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    let fence = grant(&store, claim(1));
    let ends = [
        Settlement::Doubt {
            reason: Reason::Timeout,
        },
        completion(b"late truth", HOUR, HOUR),
    ];
    std::thread::scope(|scope| {
        // Both settlements are queued while the writer is busy with another record.
        let store = &store;
        disk.still(|| {
            scope.spawn(|| grant(store, claim(2)));
            std::thread::sleep(PAUSE);
            for end in ends {
                scope.spawn(|| wait(store.settle(id(1), fence, end)));
                std::thread::sleep(PAUSE);
            }
        });
    });
    site.killed()
}

#[test]
fn the_last_of_two_images_in_a_frame_counts_even_if_it_is_the_damaged_one() {
    // On a busy machine a thread may be too late.
    let mut sites = (0..50).map(|_| two_images());
    let whole = sites.find(|site| {
        let bytes = site.read(LOG);
        frames(&bytes)
            .pop()
            .is_some_and(|frame| entries(&bytes, frame.start) == 2)
    });
    let whole = whole.expect("two images in a frame");
    let bytes = whole.read(LOG);
    let frame = frames(&bytes).pop().unwrap();
    let mut broken = bytes.clone();
    broken[frame.end - 12] ^= 4;
    let broken = whole.killed_with(LOG, &broken);
    let known = observe(&whole.open(), 1..3);
    assert_eq!(check(&broken.open(), &known, &"the last image"), 1);
}

#[test]
fn a_record_past_its_time_may_have_begun_anew_in_what_cannot_be_read() {
    let Filled { site, known } = killed();
    let whole = site.read(LOG);
    let frame = &frames(&whole)[4];
    site.write(LOG, &flipped(&whole, frame.start, &mut Dice::new(8)));
    site.clock.turn(HOUR * 3);
    let store = site.open();
    assert_eq!(store.damage()[0].record, None);
    for number in known.into_keys() {
        let answer = ask(&store, claim(number));
        assert!(
            !matches!(answer, Ok(Verdict::Granted(_))),
            "record {number}"
        );
    }
    // These completed before the damage, and have expired. They may have been claimed again in the unreadable range.
    for number in [1, 2] {
        let error = ask(&store, claim(number)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "record {number}");
    }
}

#[test]
fn a_damaged_record_in_flight_outlives_the_sweeps_behind_it() {
    let site = Site::new(4 << 10);
    let store = site.open();
    grant(&store, claim(3));
    drop(store);
    let mut bytes = site.read(LOG);
    let frame = frames(&bytes).pop().unwrap();
    bytes[frame.end - 12] ^= 4;
    site.write(LOG, &bytes);
    for round in 0..3 {
        let store = site.open();
        let error = ask(&store, claim(3)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "round {round}");
        assert_eq!(store.damage()[0].record, Some(id(3)), "round {round}");
        for number in 0..20 {
            complete(&store, 100 + round * 20 + number, &[1; 400]);
        }
        site.clock.turn(HOUR * 3);
        sweep(&store);
    }
}

#[test]
fn damage_that_is_accepted_is_gone_and_its_records_are_free() {
    let Filled { site, known } = killed();
    let whole = site.read(LOG);
    let all = frames(&whole);
    // Frame headers, whose records are then unknown, and images, whose records are known.
    let places = all[1..]
        .iter()
        .flat_map(|frame| [frame.start + 9, frame.end - 20]);
    let mut accepted = 0;
    for at in places {
        let label = format!("flip at {at}");
        let site = site.killed();
        site.write(LOG, &flipped(&whole, at, &mut Dice::new(7)));
        let damage = site.open().damage().to_vec();
        if damage.is_empty() {
            continue;
        }
        accepted += 1;
        assert_eq!(
            Embedded::accept_damage(site.path()).unwrap(),
            damage,
            "{label}"
        );
        assert_eq!(Embedded::check(site.path()).unwrap(), [], "{label}");
        let store = site.open();
        assert_eq!(store.damage(), [], "{label}");
        grant(&store, claim(NEVER_SEEN));
        if let Some(number) = damaged_record(&damage[0]) {
            grant(&store, claim(number));
        }
        let lost = known.iter().filter(|(number, right)| {
            let held = read(&store, **number).unwrap();
            held != **right
        });
        assert!(lost.count() <= 1, "{label}");
        sweep(&store);
        drop(store);
        assert_eq!(site.open().damage(), [], "{label}, opened again");
    }
    assert!(accepted > all.len(), "{accepted}");
}

fn damaged_record(damage: &Damage) -> Option<u64> {
    let mut numbers = RECORDS;
    numbers.find(|number| Some(id(*number)) == damage.record)
}

#[test]
fn a_missing_segment_that_is_accepted_leaves_the_store_open() {
    let Filled { site, known } = long();
    let name = &site.written_logs()[2];
    site.remove(name);
    let accepted = Embedded::accept_damage(site.path()).unwrap();
    assert_eq!(accepted.len(), 1);
    let store = site.open();
    assert_eq!(store.damage(), []);
    grant(&store, claim(NEVER_SEEN));
    let is_right = |(number, right): (&u64, &Option<_>)| read(&store, *number).unwrap() == *right;
    let right = known.iter().filter(|entry| is_right(*entry)).count();
    assert!(right > known.len() / 2 && right < known.len(), "{right}");
}

//! Torn writes: for every part of the last frame that reached the disk before a power failure, the store opens, all
//! records acknowledged before are there, and nothing is reported as damage. The same missing parts before another
//! frame are damage, and are reported.

use std::ops::Range;

use futures_util::future::join_all;
use refrain::{Store, record::State, store::embedded::Embedded};

use crate::common::{
    HOUR, Known, Site, body_of, check, claim, complete, completion, entries, frames, grant,
    observe, settle, wait,
};

const LOG: &str = "00000001.log";
const RECORDS: Range<u64> = 1..60;
const SECTOR: usize = 512;

/// A folder after a kill, with its expected records without and with the last frame.
struct Torn {
    site: Site,
    before: Known,
    after: Known,
    frame: Range<usize>,
}

fn prepare(last: impl Fn(&Embedded)) -> Torn {
    // Large enough for one frame for each entry: what is cut off is in the last segment.
    let site = Site::new(16 << 10);
    let store = site.open();
    complete(&store, 1, b"one");
    complete(&store, 2, &[7; 1_500]);
    grant(&store, claim(3));
    last(&store);
    let site = site.killed();
    let whole = site.read(LOG);
    let frame = frames(&whole).pop().unwrap();
    let mut without = whole.clone();
    without[frame.start..].fill(0);
    let without = site.killed_with(LOG, &without);
    let before = observe(&without.open(), RECORDS);
    let after = observe(&site.killed().open(), RECORDS);
    check_acknowledged(&before);
    assert_ne!(before, after);
    Torn {
        site,
        before,
        after,
        frame,
    }
}

/// Checks the records in the earlier frames, which are the same in all these folders.
fn check_acknowledged(known: &Known) {
    let body = |number| known[&number].as_ref().and_then(body_of).unwrap();
    assert_eq!(body(1), b"one");
    assert_eq!(body(2), [7; 1_500]);
    let state = known[&3].as_ref().map(|record| &record.state);
    assert!(matches!(state, Some(State::Indeterminate { .. })));
}

fn claim_alone(store: &Embedded) {
    grant(store, claim(4));
}

fn complete_with(store: &Embedded, body: &[u8]) {
    let fence = grant(store, claim(5));
    settle(store, 5, fence, completion(body, HOUR, HOUR));
}

fn long_body() -> Vec<u8> {
    (0..800_u32).map(|at| (at % 251) as u8).collect()
}

fn claim_many(store: &Embedded) {
    let claims = (10..22).map(|number| store.claim(claim(number)));
    for verdict in wait(join_all(claims)) {
        assert!(verdict.is_ok());
    }
}

/// Prepares a last frame with a few entries. Retries, because the writer decides how many claims it batches.
fn prepare_many() -> Torn {
    let fits = |torn: &Torn| {
        let count = entries(&torn.site.read(LOG), torn.frame.start);
        (2..=15).contains(&count)
    };
    let mut tries = (0..200).map(|_| prepare(claim_many));
    tries.find(fits).expect("a few claims taken at once")
}

/// Opens the folder: the last frame is there or not, all other records are there, and nothing is damage.
fn check_torn(torn: &Torn, bytes: &[u8], label: &str) {
    let site = torn.site.killed();
    site.write(LOG, bytes);
    let store = site.open();
    assert_eq!(store.damage(), [], "{label}");
    let held = observe(&store, RECORDS);
    assert!(
        held == torn.before || held == torn.after,
        "{label}: {held:?}"
    );
    // The torn write must be removed: it must not count as damage once a new segment follows.
    grant(&store, claim(99));
    let site = site.killed();
    drop(store);
    let store = site.open();
    assert_eq!(store.damage(), [], "{label}, opened again");
    assert_eq!(observe(&store, RECORDS), held, "{label}, opened again");
}

/// Zeroes the frame from every offset on: unwritten bytes are zero from the allocation. A shorter file would be damage.
fn check_every_cut(torn: &Torn) {
    let whole = torn.site.read(LOG);
    for cut in torn.frame.clone() {
        let mut zeroed = whole.clone();
        zeroed[cut..].fill(0);
        check_torn(torn, &zeroed, &format!("zero from {cut}"));
    }
}

#[test]
fn a_claim_may_be_cut_at_any_byte() {
    check_every_cut(&prepare(claim_alone));
}

#[test]
fn a_completion_may_be_cut_at_any_byte() {
    check_every_cut(&prepare(|store| complete_with(store, &long_body())));
}

#[test]
fn a_batch_may_be_cut_at_any_byte() {
    check_every_cut(&prepare_many());
}

/// The parts of the frame that the device writes atomically.
fn sectors(frame: &Range<usize>) -> Vec<Range<usize>> {
    let mut sectors = Vec::new();
    let mut start = frame.start;
    while start < frame.end {
        let end = frame.end.min((start / SECTOR + 1) * SECTOR);
        sectors.push(start..end);
        start = end;
    }
    sectors
}

/// The file with each subset of the frame's sectors unwritten, that is zero.
fn with_lost_sectors(whole: &[u8], frame: &Range<usize>) -> Vec<(String, Vec<u8>)> {
    let sectors = sectors(frame);
    assert!((3..=7).contains(&sectors.len()), "{frame:?}");
    let subset = |lost: usize| {
        let mut bytes = whole.to_vec();
        let is_lost = |at: &usize| lost >> at & 1 == 1;
        for at in (0..sectors.len()).filter(is_lost) {
            bytes[sectors[at].clone()].fill(0);
        }
        (format!("lost sectors {lost:b} of {frame:?}"), bytes)
    };
    let subsets = (1..1 << sectors.len()).map(subset);
    subsets.filter(|(_, bytes)| bytes != whole).collect()
}

/// Bodies, among them some that look like unwritten sectors.
fn bodies() -> Vec<Vec<u8>> {
    let long = (0..1_300_u32).map(|at| (at % 251) as u8).collect();
    let mut mixed = vec![0; 2_000];
    mixed[1_000] = 1;
    vec![long, vec![0; 2_000], mixed]
}

#[test]
fn any_sectors_of_the_last_frame_may_be_missing() {
    for body in bodies() {
        let torn = prepare(|store| complete_with(store, &body));
        for (label, bytes) in with_lost_sectors(&torn.site.read(LOG), &torn.frame) {
            check_torn(&torn, &bytes, &label);
        }
    }
}

#[test]
fn sectors_missing_before_another_frame_are_damage() {
    for body in bodies() {
        let torn = prepare(|store| {
            complete_with(store, &body);
            grant(store, claim(6));
        });
        let whole = torn.site.read(LOG);
        let all = frames(&whole);
        let frame = &all[all.len() - 2];
        for (label, bytes) in with_lost_sectors(&whole, frame) {
            let site = torn.site.killed();
            site.write(LOG, &bytes);
            let store = site.open();
            assert!(check(&store, &torn.after, &label) > 0, "{label}");
            let damage = &store.damage()[0];
            assert_eq!(damage.segment, 1, "{label}");
            assert!(
                frame.contains(&(damage.offset as usize)),
                "{label}: {damage}"
            );
        }
    }
}

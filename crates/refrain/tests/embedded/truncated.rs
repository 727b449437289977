//! A file that lost its end after its records were acknowledged: a truncated restore, a bad copy, a file system repair.
//! A crash cannot do that, because segments are fully allocated before use.
//! So it is damage, never a torn write, and no key that may have been in the lost part is granted.

use std::{fs, ops::Range, path::Path, time::Duration};

use refrain::{
    ErrorKind, Verdict,
    store::embedded::{Damage, Embedded},
};

use crate::common::{
    Known, Site, ask, body_of, check, claim, complete, frames, grant, observe, read,
};

const LOG: &str = "00000001.log";
const INDEX: &str = "00000001.idx";
const RECORDS: Range<u64> = 1..8;
const NEVER_SEEN: u64 = 1_000;

fn fill(store: &Embedded) {
    for number in 1..5 {
        complete(store, number, &[number as u8; 300]);
    }
    grant(store, claim(5));
}

/// A folder after a kill, and its expected records.
fn killed() -> (Site, Known) {
    let site = Site::new(8 << 10);
    let store = site.open();
    fill(&store);
    wait_until_recorded(&site, &format!("segment 2 {} ", 8 << 10));
    let site = site.killed();
    let known = observe(&site.killed().open(), RECORDS);
    (site, known)
}

/// A folder after a clean close, and its expected records.
fn closed() -> (Site, Known) {
    let site = Site::new(8 << 10);
    fill(&site.open());
    let known = observe(&site.killed().open(), RECORDS);
    (site, known)
}

/// Checks twice that the store reports damage, and grants no key that may have been in the lost part.
fn check_damaged(site: &Site, known: &Known, label: &str) -> Vec<Damage> {
    let damage = Embedded::check(site.path()).unwrap();
    assert!(!damage.is_empty(), "{label}: every record can be read");
    for _ in 0..2 {
        let store = site.open();
        assert_eq!(store.damage(), damage, "{label}");
        check(&store, known, &label);
        let error = ask(&store, claim(NEVER_SEEN)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{label}: {error}");
        for number in RECORDS {
            let verdict = ask(&store, claim(number));
            assert!(!matches!(verdict, Ok(Verdict::Granted(_))), "{label}");
        }
    }
    assert_eq!(Embedded::check(site.path()).unwrap(), damage, "{label}");
    damage
}

/// Offsets to cut at: frame boundaries, where the rest looks intact, offsets inside frames, and the unused space.
fn cuts(whole: &[u8]) -> Vec<usize> {
    let all = frames(whole);
    let end = all.last().unwrap().end;
    let within = all
        .iter()
        .flat_map(|frame| [frame.start, frame.start + 20, frame.end - 1]);
    within.chain([0, 20, end, whole.len() - 1]).collect()
}

#[test]
fn truncated_active_segment_is_damage() {
    let (site, known) = killed();
    let whole = site.read(LOG);
    assert_eq!(whole.len(), 8 << 10, "allocated in full");
    for cut in cuts(&whole) {
        let site = site.killed_with(LOG, &whole[..cut]);
        let damage = check_damaged(&site, &known, &format!("cut at {cut}"));
        assert_eq!(damage[0].segment, 1, "cut at {cut}");
    }
}

#[test]
fn truncated_segment_that_was_allocated_ahead_is_damage() {
    let (site, known) = killed();
    let (name, whole) = site.files().into_iter().rfind(is_log).unwrap();
    assert_ne!(name, LOG);
    for cut in [0, 32, whole.len() - 1] {
        let site = site.killed_with(&name, &whole[..cut]);
        check_damaged(&site, &known, &format!("{name} cut at {cut}"));
    }
}

fn is_log((name, _): &(String, Vec<u8>)) -> bool {
    name.ends_with(".log")
}

#[test]
fn truncated_or_zeroed_end_of_closed_store_is_damage() {
    let (site, known) = closed();
    let whole = site.read(LOG);
    for cut in frames(&whole)
        .iter()
        .flat_map(|it| [it.start, it.start + 20])
    {
        let mut zeroed = whole.clone();
        zeroed[cut..].fill(0);
        for (what, bytes) in [("cut", &whole[..cut]), ("zero", &zeroed)] {
            let site = site.killed_with(LOG, bytes);
            // The snapshot holds the end of the segment, and may be lost as well.
            site.remove(INDEX);
            check_damaged(&site, &known, &format!("{what} from {cut}"));
        }
    }
}

/// Waits until the manifest has a line with this prefix.
fn wait_until_recorded(site: &Site, line: &str) {
    let since = tokio::time::Instant::now();
    while !String::from_utf8(site.read("manifest"))
        .unwrap()
        .contains(line)
    {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "the manifest never got the line: {line}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn zeroed_end_of_idle_store_is_damage() {
    let site = Site::new(8 << 10);
    let store = site.open();
    fill(&store);
    let end = frames(&site.killed().read(LOG)).pop().unwrap().end;
    wait_until_recorded(&site, &format!("segment 1 {} {end}\n", 8 << 10));
    let site = site.killed();
    let known = observe(&site.killed().open(), RECORDS);
    let whole = site.read(LOG);
    for frame in frames(&whole) {
        let mut zeroed = whole.clone();
        zeroed[frame.start + 20..].fill(0);
        let site = site.killed_with(LOG, &zeroed);
        check_damaged(&site, &known, &format!("zero from {}", frame.start));
    }
}

#[test]
fn truncated_segment_is_whole_again_once_restored() {
    let (site, known) = killed();
    let whole = site.read(LOG);
    let cut = frames(&whole)[3].start;
    site.write(LOG, &whole[..cut]);
    check_damaged(&site, &known, "truncated");
    site.write(LOG, &whole);
    assert_eq!(Embedded::check(site.path()).unwrap(), []);
    let store = site.open();
    assert_eq!(store.damage(), []);
    assert_eq!(check(&store, &known, &"restored"), 0);
}

#[test]
fn accepted_truncation_frees_the_lost_records() {
    let (site, _) = killed();
    let whole = site.read(LOG);
    let all = frames(&whole);
    for cut in [all[4].start, all[4].start + 20] {
        let site = site.killed_with(LOG, &whole[..cut]);
        let damage = site.open().damage().to_vec();
        assert!(!damage.is_empty(), "cut at {cut}");
        assert_eq!(Embedded::accept_damage(site.path()).unwrap(), damage);
        assert_eq!(Embedded::check(site.path()).unwrap(), []);
        for round in 0..2 {
            let store = site.open();
            assert_eq!(store.damage(), [], "cut at {cut}");
            grant(&store, claim(NEVER_SEEN + round));
            let kept = read(&store, 1).unwrap().unwrap();
            assert_eq!(body_of(&kept).unwrap(), [1; 300]);
        }
    }
}

/// The files of a killed process of the last release without recorded lengths, with a spare segment.
fn previous_release() -> Site {
    let site = Site::new(2 << 10);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embedded/previous_release");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        site.write(name, &fs::read(&path).unwrap());
    }
    site
}

#[test]
fn folder_of_the_previous_release_opens() {
    let site = previous_release();
    assert_eq!(Embedded::check(site.path()).unwrap(), []);
    for round in 0..3 {
        let store = site.open();
        assert_eq!(store.damage(), [], "round {round}");
        let body = |number| body_of(&read(&store, number).unwrap().unwrap()).unwrap();
        assert_eq!(body(1), b"one");
        assert_eq!(body(2), [7; 900]);
        assert_eq!(body(3), [8; 900]);
        assert!(read(&store, 4).unwrap().is_some());
        grant(&store, claim(10 + round));
    }
}

#[test]
fn folder_of_the_previous_release_may_end_in_a_torn_write() {
    let name = "00000002.log";
    let whole = previous_release().read(name);
    let last = frames(&whole).pop().unwrap();
    // That release did not record the allocated length of the file.
    for bytes in [&whole[..last.start + 40], &whole[..last.end]] {
        let site = previous_release();
        site.write(name, bytes);
        let store = site.open();
        assert_eq!(store.damage(), []);
        let kept = read(&store, 3).unwrap().unwrap();
        assert_eq!(body_of(&kept).unwrap(), [8; 900]);
        grant(&store, claim(10));
        drop(store);
        // From now on, the length is recorded.
        let name = site.written_logs().pop().unwrap();
        let bytes = site.read(&name);
        site.write(&name, &bytes[..frames(&bytes).pop().unwrap().start]);
        assert!(!site.open().damage().is_empty());
    }
}

//! A disk that returns errors. Acknowledged changes survive, unacknowledged changes have no effect,
//! and the store recovers from a full disk by itself.

use std::{collections::BTreeMap, thread::sleep, time::Duration};

use refrain::{
    ErrorKind, Fence, Settled, Settlement, Store, Verdict,
    record::Reason,
    store::{Query, embedded::Embedded},
};
use refrain_testkit::{
    disk::{End, Fault, FaultDisk, Operation, Rule},
    wait,
};

use crate::common::{
    HOUR, Site, ask, body_of, claim, complete, completion, frames, grant, id, observe, read,
    settle, sweep, wait,
};

/// Retries until the attempt works, with a timeout.
fn soon<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut worked = None;
    wait::until_blocking("it works again", || {
        worked = attempt();
        worked.is_some()
    });
    worked.unwrap()
}

/// Claims until the store is full; returns the grants.
fn claim_until_full(store: &Embedded, from: u64) -> Vec<(u64, Fence)> {
    let mut granted = Vec::new();
    for number in from..from + 500 {
        match ask(store, claim(number)) {
            Ok(Verdict::Granted(grant)) => granted.push((number, grant.fence)),
            Err(error) if error.kind() == ErrorKind::Full => return granted,
            other => panic!("{other:?}"),
        }
    }
    panic!("never full");
}

#[test]
fn a_full_disk_refuses_new_claims_alone_and_is_waited_for() {
    let site = Site::new(4 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    complete(&store, 1, b"kept");
    let fence = grant(&store, claim(2));
    // A background thread allocates the second segment in advance. After that, some more claims fit.
    soon(|| site.files().contains_key("00000002.log").then_some(()));
    disk.fail(Rule::always(Operation::Create, ".log", Fault::ENOSPC));
    let granted = claim_until_full(&store, 100);
    // A sweep does not rewrite records of the first segment into the remaining room either.
    let refused = soon(|| wait(store.sweep(u32::MAX)).err());
    assert_eq!(refused.kind(), ErrorKind::Full);

    let error = ask(&store, claim(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.is_retryable());
    assert!(error.to_string().contains("full"), "{error}");
    assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
    settle(&store, 2, fence, completion(b"in flight", HOUR, HOUR));
    for (number, fence) in &granted[..5] {
        settle(&store, *number, *fence, completion(b"too", HOUR, HOUR));
    }
    // Repeated attempts leave no files behind.
    let files = site.files().len();
    sleep(Duration::from_millis(2_500));
    assert!(site.files().len() <= files, "{:?}", site.files().keys());

    assert!(disk.mend() > 1);
    let fence = soon(|| match ask(&store, claim(3)) {
        Ok(Verdict::Granted(grant)) => Some(grant.fence),
        _ => None,
    });
    settle(&store, 3, fence, completion(b"after all", HOUR, HOUR));
    drop(store);
    let store = site.open();
    assert_eq!(store.damage(), []);
    for (number, body) in [(1, &b"kept"[..]), (2, b"in flight"), (3, b"after all")] {
        let record = read(&store, number).unwrap().unwrap();
        assert_eq!(body_of(&record).unwrap(), body);
    }
    for (number, _) in granted {
        assert!(read(&store, number).unwrap().is_some(), "{number}");
    }
}

/// Other files and connections, or another process, use up file descriptors or memory.
#[test]
fn lack_of_descriptors_or_memory_is_waited_for() {
    for fault in [Fault::EMFILE, Fault::ENFILE, Fault::ENOMEM] {
        let site = Site::new(4 << 10);
        let disk = site.disk();
        let store = site.open_on(&disk);
        complete(&store, 1, b"kept");
        let fence = grant(&store, claim(2));
        wait_until_quiet(&site, &disk);
        for operation in [Operation::Create, Operation::Open] {
            disk.fail(Rule::always(operation, "", fault));
        }
        let granted = claim_until_full(&store, 100);
        let error = ask(&store, claim(3)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
        settle(&store, 2, fence, completion(b"in flight", HOUR, HOUR));
        // Neither a sweep nor an erasure shuts the store down.
        let _ = wait(store.sweep(u32::MAX));
        let error = wait(store.erase(id(1))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(disk.mend() > 1);
        let fence = soon(|| match ask(&store, claim(3)) {
            Ok(Verdict::Granted(grant)) => Some(grant.fence),
            _ => None,
        });
        settle(&store, 3, fence, completion(b"after all", HOUR, HOUR));
        for seed in 0..5 {
            let crashed = site.crashed(&disk, seed);
            let after = crashed.open();
            assert_eq!(after.damage(), []);
            for number in [1, 2, 3].into_iter().chain(granted.iter().map(|it| it.0)) {
                assert!(read(&after, number).unwrap().is_some(), "{number}");
            }
        }
    }
}

#[test]
fn a_store_opens_on_a_full_disk_and_replays() {
    let site = Site::new(4 << 10);
    complete(&site.open(), 1, b"kept");
    for operation in [Operation::Create, Operation::Write] {
        let disk = site.disk();
        disk.fail(Rule::always(operation, "", Fault::ENOSPC));
        let store = site.open_on(&disk);
        assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
        let error = ask(&store, claim(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
    }
    grant(&site.open(), claim(2));
}

/// The ways in which a full disk fails the write of a frame.
fn full_rules() -> Vec<Vec<Rule>> {
    let once = |operation| Rule::once(operation, ".log", Fault::ENOSPC);
    vec![
        vec![once(Operation::Write)],
        vec![Rule::once(Operation::Write, ".log", Fault::ENOMEM)],
        vec![
            Rule::once(Operation::Write, ".log", Fault::Short),
            once(Operation::Write),
        ],
        // A part is written, and for a while it cannot be removed either.
        vec![
            Rule::once(Operation::Write, ".log", Fault::Short),
            Rule::always(Operation::Write, ".log", Fault::ENOSPC),
        ],
    ]
}

#[test]
fn a_write_for_which_there_is_no_room_never_happened() {
    for (case, rules) in full_rules().into_iter().enumerate() {
        let site = Site::new(64 << 10);
        let disk = site.disk();
        let store = site.open_on(&disk);
        complete(&store, 1, b"kept");
        let fence = grant(&store, claim(2));
        // All needed segments are allocated.
        wait_until_quiet(&site, &disk);
        for rule in rules {
            disk.fail(rule);
        }
        let error = ask(&store, claim(3)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "case {case}: {error}");
        assert_eq!(read(&store, 3).unwrap(), None, "case {case}");
        assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
        let killed = site.killed();
        let after = killed.open();
        assert_eq!(after.damage(), [], "case {case}");
        assert!(read(&after, 2).unwrap().is_some(), "case {case}");

        assert!(disk.mend() > 0, "case {case}");
        settle(&store, 2, fence, completion(b"later", HOUR, HOUR));
        grant(&store, claim(3));
        for seed in 0..5 {
            let crashed = site.crashed(&disk, seed);
            let store = crashed.open();
            assert_eq!(store.damage(), [], "case {case}");
            let record = read(&store, 2).unwrap().unwrap();
            assert_eq!(body_of(&record).unwrap(), b"later", "case {case}");
            assert!(read(&store, 3).unwrap().is_some(), "case {case}");
        }
    }
}

#[test]
fn rejected_write_is_removed_before_the_next_segment() {
    let site = Site::new(4 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    // Enough data that the segment is not swept as soon as it is sealed.
    complete(&store, 3, &[3; 1_000]);
    let fence = grant(&store, claim(1));
    wait_until_quiet(&site, &disk);
    disk.fail(Rule::once(Operation::Write, ".log", Fault::Short));
    disk.fail(Rule::always(Operation::Write, ".log", Fault::ENOSPC));
    let error = ask(&store, claim(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    disk.mend();
    // The maintenance thread cannot truncate the segment before the process dies.
    disk.fail(Rule::always(Operation::SetLen, ".log", Fault::ENOSPC));
    settle(&store, 1, fence, completion(&[1; 3_600], HOUR, HOUR));
    let killed = site.killed();
    assert_eq!(killed.written_logs().len(), 2);
    let store = killed.open();
    assert_eq!(store.damage(), []);
    assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
}

#[test]
fn a_torn_write_that_cannot_be_removed_keeps_the_store_shut() {
    let site = Site::new(4 << 10);
    let store = site.open();
    complete(&store, 1, b"kept");
    grant(&store, claim(2));
    let torn = site.killed();
    let name = torn.written_logs().remove(0);
    let mut bytes = torn.read(&name);
    let frame = frames(&bytes).pop().unwrap();
    bytes[frame.start + 40..].fill(0);
    torn.write(&name, &bytes);
    let disk = torn.disk();
    disk.fail(Rule {
        // Recovery first rewrites the frame before it.
        skip: 1,
        ..Rule::always(Operation::Write, ".log", Fault::EIO)
    });
    let error = torn.try_open_on(&disk).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&name), "{error}");
    disk.mend();
    let store = torn.open_on(&disk);
    assert_eq!(store.damage(), []);
    assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
}

/// Waits until the spare segment is allocated, the full segments have their indexes, and nothing changes any more.
fn wait_until_quiet(site: &Site, disk: &FaultDisk) {
    wait::until_blocking("the spare segment is allocated", || {
        let files = site.files();
        let count = |end: &str| files.keys().filter(|name| name.ends_with(end)).count();
        let manifest = String::from_utf8_lossy(&files["manifest"]);
        let lines = manifest.lines();
        let listed = lines.filter(|it| it.starts_with("segment ")).count();
        let written = site.written_logs().len();
        (listed, count(".log"), count(".idx") + 1) == (written + 1, written + 1, written)
    });
    let (mut changes, mut quiet) = (0, 0);
    wait::until_blocking("nobody changes anything", || {
        quiet = if changes == disk.changes() {
            quiet + 1
        } else {
            0
        };
        changes = disk.changes();
        sleep(Duration::from_millis(60));
        quiet > 4
    });
}

fn check_shut(store: &Embedded, fence: Fence) {
    let kind = ErrorKind::Unavailable;
    let release = Settlement::Release;
    assert_eq!(ask(store, claim(1)).unwrap_err().kind(), kind);
    assert_eq!(ask(store, claim(77)).unwrap_err().kind(), kind);
    let settled = wait(store.settle(id(2), fence, release));
    assert_eq!(settled.unwrap_err().kind(), kind);
    let renewed = wait(store.renew(id(2), fence, HOUR));
    assert_eq!(renewed.unwrap_err().kind(), kind);
    assert_eq!(wait(store.read(id(1))).unwrap_err().kind(), kind);
    let listed = wait(store.list(&Query::default()));
    assert_eq!(listed.unwrap_err().kind(), kind);
    assert_eq!(wait(store.sweep(1)).unwrap_err().kind(), kind);
}

#[test]
fn a_failed_write_or_sync_shuts_the_store_and_what_is_seen_afterwards_is_durable() {
    let failures = [
        (Operation::Write, Fault::EIO),
        (Operation::Sync, Fault::EIO),
        // After a sync without room on the disk, it is unknown as well which bytes are on disk.
        (Operation::Sync, Fault::ENOSPC),
        (Operation::Sync, Fault::ENOMEM),
    ];
    for (operation, fault) in failures {
        for (is_completion, is_killed) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let site = Site::new(64 << 10);
            let disk = site.disk();
            let store = site.open_on(&disk);
            complete(&store, 1, b"kept");
            let fence = grant(&store, claim(2));
            wait_until_quiet(&site, &disk);
            disk.fail(Rule::once(operation, ".log", fault));
            let refused = match is_completion {
                true => {
                    let end = completion(b"doubtful", HOUR, HOUR);
                    wait(store.settle(id(2), fence, end)).map(drop)
                }
                false => ask(&store, claim(3)).map(drop),
            };
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            check_shut(&store, fence);
            assert_eq!(disk.mend(), 1);
            if is_killed {
                disk.end_after(1, End::Kill);
            }
            drop(store);
            disk.revive();

            // The machine keeps running: the bytes that the process reads now may never have reached the device.
            let store = site.open_on(&disk);
            assert_eq!(store.damage(), []);
            let held = observe(&store, 1..5);
            assert_eq!(body_of(held[&1].as_ref().unwrap()).unwrap(), b"kept");
            assert!(held[&2].is_some());
            for seed in 0..10 {
                let crashed = site.crashed(&disk, seed);
                let after = crashed.open();
                assert_eq!(after.damage(), []);
                assert_eq!(observe(&after, 1..5), held, "seed {seed}");
            }
        }
    }
}

#[test]
fn short_and_interrupted_operations_are_carried_on() {
    let site = Site::new(4 << 10);
    let disk = site.disk();
    for operation in [Operation::Write, Operation::Read] {
        for (times, skip) in [(40, 0), (30, 3), (30, 5)] {
            for fault in [Fault::EINTR, Fault::Short] {
                disk.fail(Rule {
                    times,
                    skip,
                    ..Rule::always(operation, "", fault)
                });
            }
        }
    }
    for round in 0..3 {
        let store = site.open_on(&disk);
        assert_eq!(store.damage(), []);
        for number in 0..20 {
            complete(&store, round * 100 + number, &[round as u8; 300]);
        }
        for number in (0..=round).flat_map(|round| (0..20).map(move |at| round * 100 + at)) {
            assert!(matches!(ask(&store, claim(number)), Ok(Verdict::Replay(_))));
        }
    }
    assert!(disk.hits() > 200, "{}", disk.hits());
}

#[test]
fn unreadable_record_is_unavailable_not_absent() {
    let site = Site::new(64 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    complete(&store, 1, b"kept");
    grant(&store, claim(2));
    disk.fail(Rule::always(Operation::Read, ".log", Fault::EIO));
    let error = wait(store.read(id(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("00000001.log"), "{error}");
    let error = ask(&store, claim(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(matches!(
        ask(&store, claim(2)),
        Ok(Verdict::InFlight { .. })
    ));
    disk.mend();
    assert!(matches!(ask(&store, claim(1)), Ok(Verdict::Replay(_))));
}

#[test]
fn a_store_whose_files_cannot_be_opened_or_read_now_is_not_called_damaged() {
    let site = Site::new(64 << 10);
    complete(&site.open(), 1, b"kept");
    let files = site.files();
    let faults = [
        (Operation::Open, ".log", Fault::Errno(13)),
        (Operation::Open, ".log", Fault::Errno(24)),
        (Operation::Read, ".log", Fault::EIO),
        (Operation::Read, "manifest", Fault::EIO),
    ];
    for (operation, name, fault) in faults {
        let disk = site.disk();
        disk.fail(Rule::always(operation, name, fault));
        let error = site.try_open_on(&disk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(site.files() == files, "something was changed");
    }
    // Without snapshots, a store is only slower to open.
    let disk = site.disk();
    disk.fail(Rule::always(Operation::Read, ".idx", Fault::EIO));
    assert!(matches!(
        ask(&site.open_on(&disk), claim(1)),
        Ok(Verdict::Replay(_))
    ));
}

/// Writes several segments with sweeps and a restart; notes the acknowledged records.
fn work(site: &Site, disk: &FaultDisk, done: &mut BTreeMap<u64, Vec<u8>>) -> refrain::Result<()> {
    for life in 0..2 {
        let store = site.try_open_on(disk)?;
        let held = life * 100;
        ask(&store, claim(held)).map(|_| done.insert(held, Vec::new()))?;
        for number in held + 1..held + 25 {
            let Verdict::Granted(grant) = ask(&store, claim(number))? else {
                panic!("{number} was claimed before");
            };
            let body = vec![number as u8; 200];
            // Every second record expires soon, so that there is something to sweep.
            let retention = HOUR * (number as u32 % 2 * 100);
            let end = completion(&body, retention, Duration::ZERO);
            let settled = wait(store.settle(id(number), grant.fence, end))?;
            assert_eq!(settled, Settled::Applied);
            if number % 2 == 1 {
                done.insert(number, body);
            }
            if number % 8 == 0 {
                site.clock.turn(Duration::from_secs(1));
                wait(store.sweep(u32::MAX))?;
            }
        }
    }
    Ok(())
}

fn check_done(store: &Embedded, done: &BTreeMap<u64, Vec<u8>>, label: &str) {
    assert_eq!(store.damage(), [], "{label}");
    for (number, body) in done {
        let record = read(store, *number).unwrap();
        let record = record.unwrap_or_else(|| panic!("{label}: {number} has vanished"));
        let held = body_of(&record).unwrap_or_default();
        assert!(held == *body, "{label}: {number}");
    }
}

#[test]
fn any_one_operation_may_fail() {
    use Operation::{Create, Remove, Rename, SetLen, Sync, SyncFolder, Write};
    for operation in [Create, Write, Sync, SetLen, Rename, Remove, SyncFolder] {
        for fault in [Fault::EIO, Fault::ENOSPC] {
            for skip in (0..60).step_by(4) {
                check_one_failure(operation, fault, skip);
            }
        }
    }
}

fn check_one_failure(operation: Operation, fault: Fault, skip: u32) {
    let label = format!("{operation:?} {fault:?} after {skip}");
    let site = Site::new(2 << 10);
    let disk = site.disk();
    disk.fail(Rule {
        skip,
        ..Rule::once(operation, "", fault)
    });
    let mut done = BTreeMap::new();
    if let Err(error) = work(&site, &disk, &mut done) {
        let kinds = [ErrorKind::Unavailable, ErrorKind::Full];
        assert!(kinds.contains(&error.kind()), "{label}: {error}");
    }
    disk.mend();
    let lost_power = site.crashed(&disk, skip.into());
    check_done(&lost_power.open(), &done, &format!("{label}, power lost"));
    let store = site.open_on(&disk);
    check_done(&store, &done, &label);
    sweep(&store);
    check_done(&store, &done, &format!("{label}, swept"));
}

#[test]
fn a_record_is_carried_past_a_segment_that_was_too_short() {
    let site = Site::new(4 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    let held = grant(&store, claim(1));
    let long = grant(&store, claim(2));
    wait_until_quiet(&site, &disk);
    // The outcome needs a longer segment than the spare one, and the disk has no room for any.
    disk.fail(Rule::always(Operation::Create, ".log", Fault::ENOSPC));
    let end = completion(&[1; 20_000], HOUR, HOUR);
    let error = wait(store.settle(id(2), long, end.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    sweep(&store);
    let reason = Reason::Timeout;
    settle(&store, 1, held, Settlement::Doubt { reason });
    sweep(&store);
    for site in [site.killed(), site.crashed(&disk, 1)] {
        let store = site.open();
        assert!(read(&store, 1).unwrap().is_some(), "a record has vanished");
        assert!(read(&store, 2).unwrap().is_some(), "a record has vanished");
    }
    disk.mend();
    let settled = soon(|| wait(store.settle(id(2), long, end.clone())).ok());
    assert_eq!(settled, Settled::Applied);
}

#[test]
fn a_sweep_that_fails_leaves_nothing_behind() {
    let site = Site::new(8 << 10);
    let disk = site.disk();
    let store = site.open_on(&disk);
    for number in 0..40 {
        let fence = grant(&store, claim(number));
        let retention = Duration::from_secs(30) + HOUR * (number as u32 % 2);
        let remember = Duration::from_secs(1);
        settle(
            &store,
            number,
            fence,
            completion(&[3; 600], retention, remember),
        );
    }
    wait_until_quiet(&site, &disk);
    // The first few segments are compacted into one, which cannot be added to the manifest.
    disk.fail(Rule {
        // The first rename raises the watermark.
        skip: 1,
        ..Rule::always(Operation::Rename, "manifest", Fault::ENOSPC)
    });
    let segments = |site: &Site| {
        let names = site.files().into_keys();
        names
            .filter(|name| name.ends_with(".log") || name.ends_with(".idx"))
            .count()
    };
    let files = segments(&site);
    site.clock.turn(Duration::from_secs(60));
    for _ in 0..5 {
        let swept = wait(store.sweep(u32::MAX));
        assert_eq!(swept.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(segments(&site), files, "{:?}", site.files().keys());
    assert!(disk.mend() > 0);
    sweep(&store);
    assert!(segments(&site) < files, "{:?}", site.files().keys());
    for number in (1..40).step_by(2) {
        assert!(matches!(ask(&store, claim(number)), Ok(Verdict::Replay(_))));
    }
}

#[test]
fn a_segment_that_rots_while_the_store_is_open_is_kept() {
    let site = Site::new(8 << 10);
    let store = site.open();
    for number in 0..40 {
        let fence = grant(&store, claim(number));
        let retention = HOUR * (1 + number as u32 % 2 * 10);
        settle(
            &store,
            number,
            fence,
            completion(&[3; 600], retention, HOUR),
        );
    }
    let name = site.written_logs().remove(0);
    let index = name.replace(".log", ".idx");
    soon(|| site.files().contains_key(&index).then_some(()));
    let mut bytes = site.read(&name);
    for at in (1_500..6_000).step_by(200) {
        bytes[at] ^= 0x10;
    }
    // Write in place: the store has the file open.
    use std::os::unix::fs::FileExt;
    let path = site.path().join(&name);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    site.remove(&index);
    site.clock.turn(HOUR + Duration::from_secs(1));
    sweep(&store);
    assert!(site.path().join(&name).exists());
    let is_corrupt = |number| {
        let answer = wait(store.read(id(number)));
        answer.is_err_and(|error| error.kind() == ErrorKind::Corrupt)
    };
    assert!((0..10).any(is_corrupt));
    for number in 20..40 {
        assert!(read(&store, number).unwrap().is_some(), "{number}");
    }
}

//! An audit log that can be changed unnoticed proves nothing: every kind of tampering is detected and named, a crash
//! at any byte leaves a log that can be continued, and a failing disk shuts the log.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use refrain::{
    ErrorKind, Outcome, RecordId,
    audit::{AuditLog, ChainHash, Check, DamageKind, Entry, Event, Options, Verified, verify},
};
use refrain_testkit::disk::{Fault, FaultDisk, Operation, Rule};

#[path = "support/audited.rs"]
mod audited;
use audited::{entries, failing};

fn entry(number: u8) -> Entry {
    let mut entry = Entry::new(Event::Completed).of(RecordId([number; 16]), None);
    entry.operation = Some("POST /v1/payments".into());
    entry.outcome = Some(Outcome::new(201, [number]));
    entry
}

async fn fill(log: &AuditLog, count: u8) {
    for number in 0..count {
        log.write(entry(number)).await.unwrap();
    }
}

fn small_files() -> Options {
    Options {
        segment_bytes_max: 1_500,
        ..Options::default()
    }
}

/// A log with its first entry and `count` more entries.
async fn log_of(folder: &Path, count: u8, options: Options) {
    let log = AuditLog::open_with(folder, options).unwrap();
    fill(&log, count).await;
}

fn checked(folder: &Path, check: Check) -> Verified {
    verify(folder, &check, &mut |_| ()).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
    names.retain(|name| name.extension().is_some_and(|it| it == "jsonl"));
    names.sort();
    names
}

/// Returns the finding after `change` edits the lines of the only file.
async fn tampered(change: impl FnOnce(&mut Vec<Vec<u8>>), check: Check) -> Vec<(DamageKind, u64)> {
    let folder = tempfile::tempdir().unwrap();
    log_of(folder.path(), 5, Options::default()).await;
    let file = &files(folder.path())[0];
    let text = fs::read(file).unwrap();
    let mut lines: Vec<_> = text
        .split_inclusive(|it| *it == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    change(&mut lines);
    fs::write(file, lines.concat()).unwrap();
    let found = checked(folder.path(), check);
    assert_eq!(found.damage_count as usize, found.damage.len());
    found.damage.iter().map(|it| (it.kind, it.line)).collect()
}

/// A forged line with a valid chain, by an attacker who knows the log's format.
fn forged(line: &[u8], from: &str, to: &str) -> Vec<u8> {
    use sha2::{Digest as _, Sha256};
    let text = std::str::from_utf8(line).unwrap();
    assert!(text.contains(from), "{text}");
    let text = text.replace(from, to);
    let (content, _) = text.split_once(",\"hash\":").unwrap();
    let digits: String = Sha256::digest(content)
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();
    format!("{content},\"hash\":\"{digits}\"}}\n").into_bytes()
}

#[tokio::test]
async fn a_log_is_one_chain_across_files_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        log_of(folder.path(), 7, small_files()).await;
    }
    let found = checked(folder.path(), Check::default());
    assert_eq!(found.damage, []);
    assert_eq!((found.entries, found.begins), (24, ChainHash::START));
    assert!(files(folder.path()).len() > 5, "{:?}", files(folder.path()));
    let all = entries(folder.path());
    assert!(all.iter().zip(1..).all(|(entry, seq)| entry.seq == seq));
    let began = all.iter().filter(|it| it.event == "began").count();
    let reopened = all.iter().filter(|it| it.event == "reopened").count();
    assert_eq!((began, reopened), (1, 2));
    // The digest of the body, and the status.
    let body = "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a";
    assert_eq!(all[2].outcome.as_deref(), Some(body));
    assert_eq!(all[2].status, Some(201));
}

#[tokio::test]
async fn every_kind_of_tampering_is_found_and_named() {
    use DamageKind::{Changed, Inserted, Removed, Reordered};
    let none = Check::default();
    assert_eq!(tampered(|_| (), none).await, []);
    let flip = |lines: &mut Vec<Vec<u8>>| lines[2][30] ^= 1;
    assert_eq!(tampered(flip, none).await, [(Changed, 3)]);
    let flip_first = |lines: &mut Vec<Vec<u8>>| lines[0][30] ^= 1;
    assert_eq!(tampered(flip_first, none).await, [(Changed, 1)]);
    let in_the_hash = |lines: &mut Vec<Vec<u8>>| {
        let at = lines[2].len() - 5;
        lines[2][at] = if lines[2][at] == b'0' { b'1' } else { b'0' };
    };
    assert_eq!(tampered(in_the_hash, none).await, [(Changed, 3)]);
    let remove = |lines: &mut Vec<Vec<u8>>| drop(lines.remove(2));
    assert_eq!(tampered(remove, none).await, [(Removed, 3)]);
    let remove_first = |lines: &mut Vec<Vec<u8>>| drop(lines.remove(0));
    assert_eq!(tampered(remove_first, none).await, [(Removed, 1)]);
    let swap = |lines: &mut Vec<Vec<u8>>| lines.swap(2, 3);
    assert_eq!(tampered(swap, none).await, [(Reordered, 3), (Reordered, 4)]);
    let swap_first = |lines: &mut Vec<Vec<u8>>| lines.swap(0, 1);
    let found = tampered(swap_first, none).await;
    assert_eq!(found, [(Reordered, 1), (Reordered, 2)]);
    let copy = |lines: &mut Vec<Vec<u8>>| lines.insert(4, lines[1].clone());
    assert_eq!(tampered(copy, none).await, [(Inserted, 5)]);
    // Replace the status only: a hash may contain the same digits.
    let (status, other) = ("\"status\":201", "\"status\":200");
    let forge = |lines: &mut Vec<Vec<u8>>| lines[2] = forged(&lines[2], status, other);
    assert_eq!(tampered(forge, none).await, [(Changed, 4)]);
    let put_in = |lines: &mut Vec<Vec<u8>>| lines.insert(3, forged(&lines[3], status, other));
    // The line after it shows which of the two belongs there.
    let found = tampered(put_in, none).await;
    assert_eq!(found, [(Inserted, 5), (Changed, 6)]);
    let noise = |lines: &mut Vec<Vec<u8>>| lines.insert(3, b"{}\n".to_vec());
    assert_eq!(tampered(noise, none).await[0], (Changed, 4));
    let long = |lines: &mut Vec<Vec<u8>>| lines[3].splice(1..1, vec![b' '; 1 << 20]).for_each(drop);
    assert_eq!(tampered(long, none).await[0], (Changed, 4));
}

#[tokio::test]
async fn a_noted_head_finds_an_end_that_was_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    log_of(folder.path(), 5, Options::default()).await;
    let noted = checked(folder.path(), Check::default()).head;
    let head = Some(noted);
    log_of(folder.path(), 1, Options::default()).await;
    // The log was continued since, and still contains the noted entry.
    assert_eq!(
        checked(folder.path(), Check { head, from: None }).damage,
        []
    );
    let cut = |lines: &mut Vec<Vec<u8>>| lines.truncate(3);
    assert_eq!(tampered(cut, Check::default()).await, []);
    let found = tampered(cut, Check { head, from: None }).await;
    assert_eq!(found, [(DamageKind::Cut, 0)]);
}

#[tokio::test]
async fn files_that_were_moved_away_are_not_missed_and_others_are() {
    let folder = tempfile::tempdir().unwrap();
    log_of(folder.path(), 20, small_files()).await;
    let names = files(folder.path());
    let (first, middle) = (&names[0], &names[2]);
    let away = fs::read(first).unwrap();
    fs::remove_file(first).unwrap();
    let found = checked(folder.path(), Check::default());
    assert_eq!(found.damage, []);
    assert_ne!(found.begins, ChainHash::START);
    let from = Some(found.begins);
    assert_eq!(
        checked(folder.path(), Check { head: from, from }).damage,
        []
    );
    let wrong = Some(found.head);
    let found = checked(
        folder.path(),
        Check {
            head: None,
            from: wrong,
        },
    );
    assert_eq!(found.damage[0].kind, DamageKind::Removed);
    fs::write(first, away).unwrap();
    fs::remove_file(middle).unwrap();
    let found = checked(folder.path(), Check::default());
    assert_eq!(found.damage.len(), 1, "{:?}", found.damage);
    assert_eq!(found.damage[0].kind, DamageKind::Removed);
}

/// The process is killed while it writes: wherever the last line is cut, all lines before it stay valid.
#[tokio::test]
async fn a_torn_last_line_is_cut_at_every_byte_and_noted() {
    let folder = tempfile::tempdir().unwrap();
    log_of(folder.path(), 2, Options::default()).await;
    let file = &files(folder.path())[0];
    let whole = fs::read(file).unwrap();
    let last = whole[..whole.len() - 1]
        .iter()
        .rposition(|it| *it == b'\n')
        .unwrap()
        + 1;
    for end in last..whole.len() {
        fs::write(file, &whole[..end]).unwrap();
        let found = checked(folder.path(), Check::default());
        assert_eq!(
            (found.damage.len(), found.unfinished as usize),
            (0, end - last)
        );
        log_of(folder.path(), 1, Options::default()).await;
        let found = checked(folder.path(), Check::default());
        assert_eq!((found.damage.len(), found.unfinished), (0, 0), "{end}");
        let all = entries(folder.path());
        let note = &all[2];
        assert_eq!((all.len(), note.event.as_str()), (4, "reopened"));
        assert_eq!(note.detail.is_some(), end > last, "{note:?}");
    }
}

#[tokio::test]
async fn damage_that_no_crash_explains_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    log_of(folder.path(), 5, Options::default()).await;
    let file = &files(folder.path())[0];
    let whole = fs::read(file).unwrap();
    let refused = |bytes: &[u8], line: &str| {
        fs::write(file, bytes).unwrap();
        let error = AuditLog::open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(line), "{error}");
        assert_eq!(
            fs::read(file).unwrap(),
            bytes,
            "the file must stay unchanged"
        );
    };
    let mut changed = whole.clone();
    changed[700] ^= 1;
    refused(&changed, ".jsonl:");
    let mut last = whole.clone();
    let at = last.len() - 100;
    last[at] ^= 1;
    refused(&last, ".jsonl:6:");
    let lines: Vec<_> = whole.split_inclusive(|it| *it == b'\n').collect();
    refused(
        &[lines[0], lines[2]].concat(),
        ".jsonl:2: the line does not follow entry 1",
    );
}

#[tokio::test]
async fn one_process_writes_at_a_time_and_others_may_read() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::open(folder.path()).unwrap();
    let error = AuditLog::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    fill(&log, 1).await;
    assert_eq!(checked(folder.path(), Check::default()).entries, 2);
    drop(log);
    AuditLog::open(folder.path()).unwrap();
}

#[tokio::test]
async fn a_lazy_log_is_not_there_before_its_first_entry() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("audit");
    let log = AuditLog::lazy(&folder).unwrap();
    log.check().unwrap();
    assert!(!folder.exists());
    log.note(entry(1));
    log.write(entry(2)).await.unwrap();
    assert_eq!(checked(&folder, Check::default()).entries, 3);
    assert_eq!(log.entries(), 3);
}

/// Entries that no caller waited for are written when the log is dropped.
#[tokio::test]
async fn notes_are_written_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::open(folder.path()).unwrap();
    (0..100).for_each(|number| log.note(entry(number)));
    drop(log);
    assert_eq!(checked(folder.path(), Check::default()).entries, 101);
}

#[tokio::test]
async fn many_writers_at_once_make_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::open_with(folder.path(), small_files()).unwrap();
    let writing = (0..50).map(|number| {
        let log = log.clone();
        tokio::spawn(async move { fill(&log, number).await })
    });
    for writing in writing.collect::<Vec<_>>() {
        writing.await.unwrap();
    }
    drop(log);
    let found = checked(folder.path(), Check::default());
    assert_eq!((found.damage.len(), found.entries), (0, 1 + 49 * 50 / 2));
}

#[tokio::test]
async fn a_disk_that_fails_shuts_the_log_and_tells_everybody() {
    for (operation, fault) in [
        (Operation::Write, Fault::EIO),
        (Operation::Sync, Fault::EIO),
        (Operation::Sync, Fault::ENOSPC),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (disk, log) = failing(folder.path());
        fill(&log, 2).await;
        assert_eq!(log.trouble(), None);
        disk.fail(Rule::once(operation, ".jsonl", fault));
        let writing = [log.write(entry(3)), log.write(entry(4))];
        for writing in writing {
            assert_eq!(writing.await.unwrap_err().kind(), ErrorKind::Unaudited);
        }
        // The disk works again, but the log stays shut: after a failed sync its contents are unknown.
        assert_eq!(log.check().unwrap_err().kind(), ErrorKind::Unaudited);
        assert!(log.write(entry(5)).await.is_err());
        assert!(log.trouble().unwrap().contains("cannot be written"));
        drop(log);
        log_of(folder.path(), 1, Options::default()).await;
        assert_eq!(checked(folder.path(), Check::default()).damage, []);
    }
}

/// Waits until the log is writable again.
async fn recovered(log: &AuditLog) {
    let until = async {
        while log.check().is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), until).await;
    waited.unwrap_or_else(|_| panic!("the log did not recover: {:?}", log.trouble()));
}

/// The disk is full, or connections use up all file descriptors; both are temporary.
#[tokio::test]
async fn trouble_that_passes_is_waited_for_and_no_end_is_lost() {
    let short = Rule::once(Operation::Write, ".jsonl", Fault::Short);
    let full = Rule::always(Operation::Write, ".jsonl", Fault::ENOSPC);
    let no_descriptor = Rule::always(Operation::Create, ".jsonl", Fault::EMFILE);
    for rules in [vec![full.clone()], vec![short, full], vec![no_descriptor]] {
        let folder = tempfile::tempdir().unwrap();
        let disk = FaultDisk::over(folder.path()).unwrap();
        let options = Options {
            disk: Arc::new(disk.clone()),
            ..small_files()
        };
        let log = AuditLog::open_with(folder.path(), options).unwrap();
        fill(&log, 2).await;
        rules.iter().for_each(|rule| disk.fail(rule.clone()));
        // Enough entries to start the next file.
        let mut refused = 0;
        for number in 0..40 {
            refused += u64::from(log.write(entry(number)).await.is_err());
        }
        assert!(refused > 0, "{rules:?}");
        assert_eq!(log.check().unwrap_err().kind(), ErrorKind::Unaudited);
        assert!(log.trouble().unwrap().contains("cannot be written"));
        let deed = log.write(Entry::new(Event::Resolving)).await;
        assert_eq!(deed.unwrap_err().kind(), ErrorKind::Unaudited);
        disk.mend();
        recovered(&log).await;
        log.write(entry(77)).await.unwrap();
        assert_eq!(log.trouble(), None);
        drop(log);
        let found = checked(folder.path(), Check::default());
        assert_eq!(found.damage, [], "{rules:?}");
        // The first entry, 2 entries, 40 ends, the gap, and the last one; no entry for the action that was refused.
        assert_eq!(found.entries, 1 + 2 + 40 + 1 + 1, "{rules:?}");
    }
}

/// A power failure at any change to the disk: acknowledged entries survive, and the log can be continued.
#[test]
fn what_was_acknowledged_survives_a_loss_of_power() {
    for ends_at in 0..60u64 {
        let base = tempfile::tempdir().unwrap();
        let (folder, after) = (base.path().join("a"), base.path().join("b"));
        fs::create_dir(&folder).unwrap();
        let disk = FaultDisk::over(&folder).unwrap();
        disk.end_after(ends_at, refrain_testkit::disk::End::Power);
        let options = Options {
            disk: Arc::new(disk.clone()),
            ..small_files()
        };
        let mut acknowledged = 0;
        if let Ok(log) = AuditLog::open_with(&folder, options) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            runtime.block_on(async {
                for round in 0..12 {
                    (0..round % 4).for_each(|number| log.note(entry(number)));
                    match log.write(entry(round)).await {
                        Ok(()) => acknowledged = log.entries(),
                        Err(_) => break,
                    }
                }
            });
        }
        disk.crash(ends_at, &after).unwrap();
        let log = AuditLog::open_with(&after, small_files());
        drop(log.unwrap_or_else(|error| panic!("at {ends_at}: {error}")));
        let found = checked(&after, Check::default());
        assert_eq!(found.damage, [], "at {ends_at}");
        assert!(
            found.entries > acknowledged,
            "at {ends_at}: {} of {acknowledged}",
            found.entries
        );
    }
}

#[tokio::test]
async fn records_without_an_end_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::open(folder.path()).unwrap();
    let fence = |text: &str| text.parse().ok();
    let write = |event, record, under: &str| {
        log.write(Entry::new(event).of(RecordId([record; 16]), fence(under)))
    };
    for (event, record, under) in [
        (Event::Granted, 1, "1.1.00000001"),
        (Event::Completed, 1, "1.1.00000001"),
        (Event::Granted, 2, "1.2.00000001"),
        (Event::Granted, 3, "1.3.00000001"),
        (Event::Doubted, 3, "1.3.00000001"),
        (Event::Granted, 4, "1.4.00000001"),
        (Event::Granted, 4, "1.5.00000001"),
        // The first attempt was overtaken: the later attempt counts.
        (Event::Completed, 4, "1.4.00000001"),
        (Event::Doubted, 5, "1.6.00000001"),
        (Event::Resolving, 5, "1.6.00000001"),
        (Event::Resolved, 5, "1.6.00000001"),
        (Event::Erasing, 6, "1.7.00000001"),
    ] {
        write(event, record, under).await.unwrap();
    }
    let loose = checked(folder.path(), Check::default()).loose;
    let records = |attempts: &[refrain::audit::Attempt]| {
        let record = |it: &refrain::audit::Attempt| it.record[..2].to_owned();
        attempts.iter().map(record).collect::<Vec<_>>()
    };
    assert_eq!(records(&loose.open), ["02", "04"]);
    assert_eq!(records(&loose.doubts), ["03"]);
    assert_eq!(records(&loose.actions), ["06"]);
}

mod properties {
    //! A change of any single byte of a log is detected.

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_changed_byte_goes_unseen(at in 0usize..1_000_000, to in any::<u8>()) {
            let folder = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(log_of(folder.path(), 4, Options::default()));
            let head = Some(checked(folder.path(), Check::default()).head);
            let file = &files(folder.path())[0];
            let mut bytes = fs::read(file).unwrap();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            fs::write(file, bytes).unwrap();
            let found = checked(folder.path(), Check { head, from: None });
            prop_assert!(!found.damage.is_empty() || found.unfinished > 0);
        }
    }
}

//! A log that fills the disk, or that requests wait for, is worse than none.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use refrain::policy::File;
use refrain_testkit::wait::until_blocking as until;
use tempfile::TempDir;

use super::{AccessLine, AccessLog, LogFile};

const LINE: AccessLine<'_> = AccessLine {
    record: None,
    operation: Some("payments"),
    method: Some("POST"),
    outcome: "executed",
    code: None,
    status: Some(201),
    upstream: None,
    total: Duration::from_millis(1),
    trace_id: None,
};

fn log_file(folder: &TempDir) -> PathBuf {
    folder.path().join("access.log")
}

fn open(path: &Path) -> (AccessLog, Counter) {
    let text = format!("[proxy]\naccess_log = {:?}\n", path.display().to_string());
    let settings = File::parse(&text, "refrain.toml").unwrap();
    let dropped = Counter::default();
    let log = AccessLog::open(&settings.access_log.unwrap(), dropped.clone());
    (log.unwrap(), dropped)
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn closing_writes_every_line_and_later_ones_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = log_file(&folder);
    let (log, dropped) = open(&path);
    for _ in 0..10_000 {
        log.push(&LINE);
    }
    log.close();
    assert_eq!((lines(&path).len(), dropped.get()), (10_000, 0));
    log.push(&LINE);
    assert_eq!(dropped.get(), 1);
}

#[test]
fn full_files_are_renamed_and_the_oldest_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = log_file(&folder);
    let mut file = LogFile::open(&path, 10, 3).unwrap();
    for line in [
        "one\n",
        "two\n",
        "three\n",
        "a line over the limit\n",
        "four\n",
        "five\n",
    ] {
        let _ = file.prepare(line.len()).unwrap();
        assert_eq!(file.write(line.as_bytes()).unwrap(), line.len());
    }
    let shown = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
    assert_eq!(shown("access.log").as_deref(), Some("four\nfive\n"));
    assert_eq!(
        shown("access.log.1").as_deref(),
        Some("a line over the limit\n")
    );
    assert_eq!(shown("access.log.2").as_deref(), Some("three\n"));
    assert_eq!(shown("access.log.3"), None);
    let mut file = LogFile::open(&path, 10, 1).unwrap();
    assert!(file.prepare(5).unwrap());
    assert_eq!(shown("access.log").as_deref(), Some(""));
}

/// Writes a line; returns the contents of the log.
fn append(file: &mut LogFile, line: &str) -> String {
    let _ = file.prepare(line.len()).unwrap();
    assert_eq!(file.write(line.as_bytes()).unwrap(), line.len());
    fs::read_to_string(file.path()).unwrap()
}

#[test]
fn a_rotation_that_fails_loses_no_line_and_no_older_file() {
    // A folder in the place of a file cannot be replaced by a file: the one cannot be moved aside, the other not shifted.
    for obstacle in ["access.log.rotating", "access.log.1"] {
        let folder = tempfile::tempdir().unwrap();
        let path = log_file(&folder);
        let beside = |name: &str| folder.path().join(name);
        fs::create_dir_all(beside(obstacle).join("inside")).unwrap();
        fs::write(beside("access.log.2"), "two\n").unwrap();
        if obstacle != "access.log.1" {
            fs::write(beside("access.log.1"), "one\n").unwrap();
        }
        let mut file = LogFile::open(&path, 10, 3).unwrap();
        let mut expected = String::new();
        for line in ["first line\n", "second line\n", "third line\n"] {
            expected.push_str(line);
            assert_eq!(append(&mut file, line), expected, "{obstacle}");
            file.retry_at = file.retry_at.map(|_| tokio::time::Instant::now());
        }
        assert!(file.retry_at.is_some(), "{obstacle} was no obstacle");
        assert_eq!(lines(&beside("access.log.2")), ["two"], "{obstacle}");
        fs::remove_dir_all(beside(obstacle)).unwrap();
        assert_eq!(append(&mut file, "fourth\n"), "fourth\n", "{obstacle}");
        assert_eq!(lines(&beside("access.log.1")).len(), 3, "{obstacle}");
        assert!(file.retry_at.is_none(), "{obstacle}");
    }
}

#[test]
fn a_rotation_that_was_interrupted_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = log_file(&folder);
    let beside = |name: &str| folder.path().join(name);
    fs::write(beside("access.log.rotating"), "moved aside\n").unwrap();
    let mut file = LogFile::open(&path, 10, 3).unwrap();
    append(&mut file, "first line\n");
    append(&mut file, "second line\n");
    assert_eq!(lines(&beside("access.log.1")), ["first line"]);
    assert_eq!(lines(&beside("access.log.2")), ["moved aside"]);
}

#[test]
fn renamed_or_truncated_files_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = log_file(&folder);
    let (log, dropped) = open(&path);
    let old = folder.path().join("rotated");
    log.push(&LINE);
    until("the first line is written", || lines(&path).len() == 1);
    fs::rename(&path, &old).unwrap();
    log.push(&LINE);
    until("the new file has a line", || lines(&path).len() == 1);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    log.push(&LINE);
    log.close();
    assert_eq!(
        (lines(&old).len(), lines(&path).len(), dropped.get()),
        (1, 1, 0)
    );
}

#[test]
fn lines_wait_while_the_file_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("logs");
    fs::create_dir(&inner).unwrap();
    let path = inner.join("access.log");
    let (log, dropped) = open(&path);
    fs::remove_dir_all(&inner).unwrap();
    for _ in 0..3 {
        log.push(&LINE);
    }
    assert_eq!(dropped.get(), 0);
    fs::create_dir(&inner).unwrap();
    until("the lines are written", || lines(&path).len() == 3);
    fs::remove_dir_all(&inner).unwrap();
    log.push(&LINE);
    log.close();
    assert_eq!(dropped.get(), 1);
}

#[test]
fn lines_are_dropped_and_counted_once_the_queue_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("logs");
    fs::create_dir(&inner).unwrap();
    let (log, dropped) = open(&inner.join("access.log"));
    fs::remove_dir_all(&inner).unwrap();
    // One queue may already be with the writer.
    for _ in 0..3 * super::queue::QUEUE_BYTES_MAX / 100 {
        log.push(&LINE);
    }
    assert!(dropped.get() > 0);
    log.close();
}

#[test]
fn torn_line_of_an_earlier_process_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = log_file(&folder);
    fs::write(&path, "{\"time\":\"20").unwrap();
    let (log, _) = open(&path);
    log.push(&LINE);
    log.close();
    let lines = lines(&path);
    assert_eq!(lines[0], "{\"time\":\"20");
    assert!(serde_json::from_str::<serde_json::Value>(&lines[1]).is_ok());
}

#[test]
fn only_regular_files_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for path in [
        folder.path(),
        Path::new("/dev/null"),
        &folder.path().join("no/log"),
    ] {
        let error = LogFile::open(path, 1 << 20, 3).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(error.contains("set access_log"), "{error}");
    }
}

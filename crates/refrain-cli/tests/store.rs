//! A disk is damaged: the operator must learn which records are lost, and nothing is dropped without consent.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use refrain::{
    Engine, ErrorKind, Intent, Key, Outcome, Scope, Verdict,
    store::embedded::{Embedded, Options},
};
use refrain_testkit::wait;
use tempfile::TempDir;

/// Runs the command; returns exit code, stdout and stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    finish(command.arg("store").args(args))
}

fn finish(command: &mut Command) -> (i32, String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn open(folder: &Path) -> Embedded {
    Embedded::open(folder, Options::default()).unwrap()
}

/// Claims a key that may have an outcome in the store.
async fn ask(store: Embedded, key: &str) -> refrain::Result<Verdict<Outcome>> {
    let intent = Intent::new(Scope::none(), Key::new(key).unwrap());
    let work = async |_| Outcome::new(200, "a body to be damaged");
    Engine::new(store).run(&intent, work).await
}

/// A closed store with one completed record.
async fn store() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let done = ask(open(folder.path()), "order-7").await.unwrap();
    assert!(matches!(done, Verdict::Granted(_)));
    folder
}

/// Flips a bit of the outcome, like a bad disk, and removes the index that says where records are.
fn damage(folder: &Path) {
    let files = || {
        let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
        entries.collect::<Vec<PathBuf>>()
    };
    let ends = |path: &PathBuf, ending: &str| path.extension().is_some_and(|it| it == ending);
    let mut is_done = false;
    for path in files().into_iter().filter(|path| ends(path, "log")) {
        let mut bytes = fs::read(&path).unwrap();
        let body = b"a body to be damaged";
        if let Some(at) = bytes.windows(body.len()).position(|part| part == body) {
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            is_done = true;
        }
    }
    assert!(is_done, "the outcome was not found");
    for path in files().into_iter().filter(|path| ends(path, "idx")) {
        fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn a_sound_store_is_clean() {
    let folder = store().await;
    let dir = folder.path().to_str().unwrap();
    let (code, stdout, _) = run(&["check", dir]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("every record is readable"));
    let (code, stdout, _) = run(&["check", dir, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["damage"]), (0, &serde_json::json!([])));
    let (code, stdout, _) = run(&["accept-damage", dir]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("no damage"));
    let replay = ask(open(folder.path()), "order-7").await.unwrap();
    assert!(
        matches!(replay, Verdict::Replay(_)),
        "the check changed the store"
    );
}

#[tokio::test]
async fn damage_is_reported_and_only_given_up_on_purpose() {
    let folder = store().await;
    let dir = folder.path().to_str().unwrap();
    damage(folder.path());

    let (code, stdout, _) = run(&["check", dir]);
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("1 damaged place"), "{stdout}");
    assert!(stdout.contains("segment 1 offset "), "{stdout}");
    let (code, stdout, _) = run(&["check", dir, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["damage"][0]["segment"]), (1, &1.into()));
    assert!(json["damage"][0]["offset"].as_u64().unwrap() > 0);

    let (code, stdout, stderr) = run(&["accept-damage", dir]);
    assert_eq!(code, 2, "{stdout}");
    assert!(stdout.contains("EXECUTES AGAIN"), "{stdout}");
    assert!(stderr.contains("--yes"), "{stderr}");
    let refused = ask(open(folder.path()), "order-7").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "still refused");

    let (code, stdout, _) = run(&["accept-damage", dir, "--yes"]);
    assert_eq!(code, 0, "{stdout}");
    assert!(
        stdout.contains("Accepted: 1 damaged place discarded"),
        "{stdout}"
    );
    assert_eq!(run(&["check", dir]).0, 0);
    let again = ask(open(folder.path()), "order-7").await.unwrap();
    assert!(matches!(again, Verdict::Granted(_)), "the key is not free");
}

/// Truncates the segment, like an incomplete copy: at the start of the frame with the outcome.
fn truncate(folder: &Path) {
    let path = folder.join("00000001.log");
    let bytes = fs::read(&path).unwrap();
    let body = b"a body to be damaged";
    let body = bytes.windows(body.len()).position(|part| part == body);
    let frame = bytes[..body.unwrap()]
        .windows(4)
        .rposition(|it| it == b"rFr1");
    fs::write(&path, &bytes[..frame.unwrap()]).unwrap();
}

/// A store whose process was killed: its last segment is not closed.
async fn killed() -> TempDir {
    let live = tempfile::tempdir().unwrap();
    let store = open(live.path());
    let done = ask(store.clone(), "order-7").await.unwrap();
    assert!(matches!(done, Verdict::Granted(_)));
    // The first write used the spare segment. No file may change while the folder is copied.
    wait::until("the next segment is in the manifest", async || {
        let manifest = fs::read_to_string(live.path().join("manifest")).unwrap();
        let segments = manifest.lines().filter(|it| it.starts_with("segment "));
        segments.count() == 2
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(live.path()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    drop(store);
    folder
}

#[tokio::test]
async fn a_truncated_segment_is_damage_and_not_a_torn_write() {
    for folder in [store().await, killed().await] {
        let dir = folder.path().to_str().unwrap();
        assert_eq!(run(&["check", dir]).0, 0);
        let _ = fs::remove_file(folder.path().join("00000001.idx"));
        truncate(folder.path());
        let (code, stdout, _) = run(&["check", dir]);
        assert_eq!(code, 1, "{stdout}");
        assert!(stdout.contains("end of the segment is missing"), "{stdout}");
        for key in ["order-7", "order-8"] {
            let refused = ask(open(folder.path()), key).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        }
    }
}

/// Runs the command as an unprivileged user.
fn run_unprivileged(args: &[&str]) -> (i32, String, String) {
    let refrain = env!("CARGO_BIN_EXE_refrain");
    let mut command = match rustix::process::geteuid().is_root() {
        true => Command::new("setpriv"),
        false => Command::new(refrain),
    };
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", refrain]);
    }
    finish(command.arg("store").args(args))
}

fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes the files of a store usable for all users.
fn share(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        chmod(&entry.unwrap().path(), 0o666);
    }
    chmod(folder, 0o777);
}

/// Checks that the command names the inaccessible file or folder, and the fix.
fn check_denied(command: &[&str], folder: &Path, denied: &Path) {
    let args = [command, &[folder.to_str().unwrap()]].concat();
    let (code, stdout, stderr) = run_unprivileged(&args);
    assert_eq!(code, 69, "{args:?} {stdout}{stderr}");
    assert!(stderr.contains("Permission denied"), "{stderr}");
    assert!(stderr.contains("run as the owner"), "{stderr}");
    assert!(stderr.contains(denied.to_str().unwrap()), "{stderr}");
}

/// The lock can be taken, but another file is inaccessible.
#[tokio::test]
async fn a_denied_file_behind_the_lock_is_named_with_the_fix() {
    for name in ["manifest", "00000001.log"] {
        let folder = store().await;
        share(folder.path());
        assert_eq!(
            run_unprivileged(&["check", folder.path().to_str().unwrap()]).0,
            0
        );
        let denied = folder.path().join(name);
        chmod(&denied, 0o000);
        check_denied(&["check"], folder.path(), &denied);
        check_denied(&["accept-damage", "--yes"], folder.path(), &denied);
    }
    let folder = store().await;
    damage(folder.path());
    share(folder.path());
    chmod(folder.path(), 0o555);
    check_denied(&["accept-damage", "--yes"], folder.path(), folder.path());
    chmod(folder.path(), 0o700);
}

#[tokio::test]
async fn an_unreadable_folder_is_not_called_missing() {
    let folder = store().await;
    let dir = folder.path().to_str().unwrap();
    // First the folder as a whole, then only its files.
    for (folder_mode, file_mode) in [(0o000, 0o600), (0o755, 0o000)] {
        for entry in fs::read_dir(folder.path()).unwrap() {
            chmod(&entry.unwrap().path(), file_mode);
        }
        chmod(folder.path(), folder_mode);
        for command in [
            &["check"][..],
            &["check", "--json"],
            &["accept-damage", "--yes"],
        ] {
            let args = [command, &[dir]].concat();
            let (code, stdout, stderr) = run_unprivileged(&args);
            assert_eq!(code, 69, "{args:?} {stdout}{stderr}");
            assert!(stderr.contains("Permission denied"), "{stderr}");
            assert!(stderr.contains("run as the owner"), "{stderr}");
            assert!(!stderr.contains("not a Refrain store"), "{stderr}");
        }
        chmod(folder.path(), 0o700);
    }
}

#[tokio::test]
async fn a_folder_in_use_or_of_somebody_else_is_left_alone() {
    let held = store().await;
    let _holder = open(held.path());
    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("precious.txt"), "mine").unwrap();
    let absent = foreign.path().join("absent");
    let cases = [
        (held.path(), 69, "held by another process"),
        (foreign.path(), 64, "not a Refrain store"),
        (&absent, 64, "not a Refrain store"),
    ];
    for (folder, expected, words) in cases {
        for command in [
            &["check"][..],
            &["check", "--json"],
            &["accept-damage", "--yes"],
        ] {
            let args = [command, &[folder.to_str().unwrap()]].concat();
            let (code, stdout, stderr) = run(&args);
            assert_eq!(code, expected, "{args:?} {stdout}{stderr}");
            assert!(stderr.contains(words), "{stderr}");
            if command.contains(&"--json") {
                let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
                assert!(json["error"].as_str().unwrap().contains(words));
            }
        }
    }
    assert!(!absent.exists(), "a check created a store");
    assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 1);
}

//! A journal file that is truncated or changed at any byte, belongs to another program, is locked by another process,
//! or is being rewritten. Reading it wrongly would send a payment again.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use refrain::{
    Error, ErrorKind,
    client::{Journal, journal::Options},
};

use crate::{
    server::{Server, Step, answer},
    stage::{Stage, body, client_on, key, open, post, told},
};

const CHILD: &str = "REFRAIN_TEST_JOURNAL";

/// A journal with one finished and one open call; returns its bytes and its length before the last record.
async fn written(stage: &Stage, last: &str) -> (Vec<u8>, usize) {
    let script = [
        answer(201, "", "one"),
        Step::Close,
        Step::Close,
        Step::Close,
        Step::Close,
    ];
    let server = Server::start(script).await;
    let client = stage.client();
    let call = client
        .call(key("first"))
        .send(post(server.url("/pay"), "20"));
    assert_eq!(body(&call.await.unwrap()), "one");
    drop(client);
    let before = fs::metadata(&stage.path).unwrap().len();
    let client = stage.client();
    // The finished call is still there, so nothing was removed from the file.
    let call = client
        .call(key("second"))
        .send(post(server.url("/pay"), last));
    assert_eq!(told(&call.await.unwrap()), "unknown: AttemptsUsedUp");
    drop(client);
    let bytes = fs::read(&stage.path).unwrap();
    // The intent of the finished call was dropped when the file was opened.
    assert!(bytes.len() > 200 && bytes.len() as u64 + 400 > before);
    let frame = find_last(&bytes);
    (bytes, frame)
}

/// Returns the offset of the last frame.
fn find_last(bytes: &[u8]) -> usize {
    bytes.windows(4).rposition(|it| it == b"rJn1").unwrap()
}

fn reopen(stage: &Stage, bytes: &[u8]) -> Result<Journal, Error> {
    fs::write(&stage.path, bytes).unwrap();
    Journal::open(&stage.path)
}

#[tokio::test]
async fn a_torn_end_is_cut_off_wherever_it_was_torn() {
    let stage = Stage::new();
    let (bytes, frame) = written(&stage, &"x".repeat(700)).await;
    for cut in frame..bytes.len() {
        let journal =
            reopen(&stage, &bytes[..cut]).unwrap_or_else(|error| panic!("{cut}: {error}"));
        assert_eq!(open(&client_on(journal)).await, 0, "cut at {cut}");
        assert_eq!(fs::metadata(&stage.path).unwrap().len(), frame as u64);
    }
    assert_eq!(open(&client_on(reopen(&stage, &bytes).unwrap())).await, 1);
    // After a power failure the file may have its full length, with some sectors empty.
    for start in (frame.next_multiple_of(512)..bytes.len())
        .step_by(512)
        .chain([frame])
    {
        let mut torn = bytes.clone();
        let end = bytes.len().min((start / 512 + 1) * 512);
        torn[start..end].fill(0);
        let journal = reopen(&stage, &torn).unwrap_or_else(|error| panic!("{start}: {error}"));
        assert_eq!(open(&client_on(journal)).await, 0, "empty from {start}");
    }
    // The journal can be continued from there.
    let server = Server::start([]).await;
    let client = client_on(Journal::open(&stage.path).unwrap());
    for name in ["first", "third"] {
        let call = client.call(key(name)).send(post(server.url("/pay"), "20"));
        // The server of the first call has another address now.
        let told = call
            .await
            .map_or_else(|error| format!("{:?}", error.kind()), |it| told(&it));
        assert_eq!(
            told,
            if name == "first" {
                "Mismatch"
            } else {
                "answered 200"
            }
        );
    }
}

#[tokio::test]
async fn a_flipped_byte_anywhere_is_noticed_and_named() {
    let stage = Stage::new();
    let (bytes, frame) = written(&stage, "20").await;
    let place = stage.path.display().to_string();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x20;
        let error = reopen(&stage, &flipped).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&place), "{at}: {text}");
        match at {
            0..8 => assert_eq!(error.kind(), ErrorKind::Unsupported, "{at}: {text}"),
            8.. => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {text}");
                let offset = match at {
                    ..48 => 0,
                    at if at < frame => 48,
                    _ => frame,
                };
                assert!(text.contains(&format!("offset {offset}")), "{at}: {text}");
            }
        }
        assert_eq!(
            fs::read(&stage.path).unwrap(),
            flipped,
            "the file must stay unchanged"
        );
    }
}

#[tokio::test]
async fn bodies_of_zeros_and_frames_within_bodies_are_only_bodies() {
    let (stage, server) = (Stage::new(), Server::start(vec![Step::Close; 8]).await);
    let client = stage.client();
    let zeros = "\0".repeat(5_000);
    let call = client
        .call(key("zeros"))
        .send(post(server.url("/pay"), &zeros));
    assert_eq!(told(&call.await.unwrap()), "unknown: AttemptsUsedUp");
    drop(client);
    let forged = String::from_utf8_lossy(&fs::read(&stage.path).unwrap()).into_owned();
    let client = stage.client();
    let call = client
        .call(key("forged"))
        .send(post(server.url("/pay"), &forged));
    assert_eq!(told(&call.await.unwrap()), "unknown: AttemptsUsedUp");
    drop(client);
    let client = stage.client();
    assert_eq!(client.resume().await.unwrap().all().await.len(), 2);
    let bodies: Vec<_> = server.seen().into_iter().map(|seen| seen.body).collect();
    assert!(bodies[8..].contains(&zeros) && bodies[8..].contains(&forged));
}

#[test]
fn foreign_file_is_not_opened_as_a_journal() {
    let stage = Stage::new();
    let mut other_version = b"refr.jnl".to_vec();
    other_version.extend(9_u32.to_le_bytes());
    other_version.extend([7; 32]);
    other_version.extend(crc32fast::hash(&other_version).to_le_bytes());
    let cases: [(&[u8], ErrorKind, &str); 5] = [
        (b"", ErrorKind::Unsupported, "is empty"),
        (b"dear diary", ErrorKind::Unsupported, "not a journal"),
        (&other_version, ErrorKind::Unsupported, "version 9"),
        (b"refr.jnl", ErrorKind::Corrupt, "offset 0"),
        (&other_version[..30], ErrorKind::Corrupt, "offset 0"),
    ];
    for (bytes, kind, text) in cases {
        let error = reopen(&stage, bytes).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(fs::read(&stage.path).unwrap(), bytes);
    }
    let nowhere = stage.folder().join("nowhere").join("calls.journal");
    let error = Journal::open(nowhere).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let folder = Journal::open(stage.folder()).unwrap_err();
    assert_eq!(folder.kind(), ErrorKind::Unsupported, "{folder}");
}

#[tokio::test]
async fn journal_is_readable_by_its_owner_only() {
    let (stage, server) = (Stage::new(), Server::start([]).await);
    let options = Options {
        rewrite_bytes_min: 0,
        ..Options::default()
    };
    let client = stage.client_with(options);
    for number in 0..3 {
        let mode = fs::metadata(&stage.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let call = client.call(key(&format!("order-{number}")));
        call.send(post(server.url("/pay"), "20"))
            .await
            .unwrap()
            .into_answer()
            .unwrap();
    }
}

#[test]
fn child_that_wants_the_same_journal() {
    let Some(path) = env::var_os(CHILD) else {
        return;
    };
    let error = Journal::open(Path::new(&path)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    println!("refused: {error}");
}

#[test]
fn a_second_process_is_refused_at_once() {
    let stage = Stage::new();
    let journal = Journal::open(&stage.path).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args([
            "journal::child_that_wants_the_same_journal",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, &stage.path)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    let holder = format!("pid {}", std::process::id());
    assert!(
        child.status.success() && said.contains("refused") && said.contains(&holder),
        "{said}"
    );
    drop(journal);
    Journal::open(&stage.path).unwrap();
}

#[tokio::test]
async fn the_file_is_written_anew_while_it_is_used() {
    let script = [Step::Close, Step::Close, Step::Close, Step::Close];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let options = Options {
        rewrite_bytes_min: 20_000,
        finished_calls_max: 10,
        ..Options::default()
    };
    let client = stage.client_with(options.clone());
    let large = "x".repeat(1_000);
    let call = client
        .call(key("open"))
        .send(post(server.url("/pay"), &large));
    assert_eq!(told(&call.await.unwrap()), "unknown: AttemptsUsedUp");
    let mut longest = 0;
    for number in 0..200 {
        let call = client.call(key(&format!("order-{number}")));
        let ending = call.send(post(server.url("/pay"), &large)).await.unwrap();
        assert_eq!(told(&ending), "answered 200");
        longest = longest.max(fs::metadata(&stage.path).unwrap().len());
    }
    assert!((15_000..40_000).contains(&longest), "{longest}");
    assert!(!stage.path.with_extension("journal.new").exists());
    // Only the last ten and the open one are left.
    for (number, sent) in [(190, 0), (199, 0), (189, 1)] {
        let before = server.seen().len();
        let call = client.call(key(&format!("order-{number}")));
        call.send(post(server.url("/pay"), &large))
            .await
            .unwrap()
            .into_answer()
            .unwrap();
        assert_eq!(server.seen().len() - before, sent, "{number}");
    }
    drop(client);
    let client = stage.client_with(options);
    assert!(
        fs::metadata(&stage.path).unwrap().len() < 4_000,
        "only live records are left"
    );
    let resumed = client.resume().await.unwrap().all().await;
    assert_eq!((resumed.len(), resumed[0].key.as_str()), (1, "open"));
    assert_eq!(server.seen().pop().unwrap().body, large);
}

#[tokio::test]
async fn finished_calls_take_no_more_room_than_they_may() {
    let script = vec![answer(200, "", &"y".repeat(10_000)); 20];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let options = Options {
        rewrite_bytes_min: 0,
        finished_bytes_max: 50_000,
        ..Options::default()
    };
    let client = stage.client_with(options);
    for number in 0..20 {
        let call = client.call(key(&format!("order-{number}")));
        call.send(post(server.url("/pay"), "20"))
            .await
            .unwrap()
            .into_answer()
            .unwrap();
        assert!(fs::metadata(&stage.path).unwrap().len() < 150_000);
    }
}

#[tokio::test]
async fn same_journal_under_another_path_is_locked() {
    let stage = Stage::new();
    let journal = Journal::open(&stage.path).unwrap();
    let link = stage.folder().join("link");
    std::os::unix::fs::symlink(&stage.path, &link).unwrap();
    assert_eq!(Journal::open(&link).unwrap_err().kind(), ErrorKind::Held);
    drop(journal);
    let server = Server::start([]).await;
    let options = Options {
        rewrite_bytes_min: 0,
        finished_calls_max: 1,
        ..Options::default()
    };
    let client = client_on(Journal::open_with(&link, options).unwrap());
    for number in 0..5 {
        let call = client.call(key(&format!("order-{number}")));
        let ending = call.send(post(server.url("/pay"), "20")).await.unwrap();
        assert_eq!(told(&ending), "answered 200");
    }
    drop(client);
    assert!(link.is_symlink(), "the target of the link was rewritten");
    let client = stage.client();
    let call = client
        .call(key("order-4"))
        .send(post(server.url("/pay"), "20"));
    assert_eq!(told(&call.await.unwrap()), "answered 200");
    assert_eq!(server.seen().len(), 5);
}

#[tokio::test]
async fn later_corruption_is_detected_and_not_copied() {
    let script = [answer(200, "", "the one answer")];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let options = Options {
        rewrite_bytes_min: 1_000,
        ..Options::default()
    };
    let client = stage.client_with(options);
    let send = async |name: &str, large: &str| {
        let call = client.call(key(name));
        call.send(post(server.url("/pay"), large)).await
    };
    assert_eq!(body(&send("first", "20").await.unwrap()), "the one answer");
    let mut bytes = fs::read(&stage.path).unwrap();
    let at = bytes.windows(7).position(|it| it == b"the one").unwrap();
    bytes[at] = b'T';
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&stage.path)
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[at..=at], at as u64).unwrap();
    for name in ["second", "third"] {
        let error = send("first", "20").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        // With one more record the file would be rewritten.
        let large = "x".repeat(2_000);
        assert_eq!(body(&send(name, &large).await.unwrap()), "fine");
    }
    assert_eq!(server.seen().len(), 3);
}

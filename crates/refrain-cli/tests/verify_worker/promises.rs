//! The consumer's guarantee decides what a crash may lose, and its supervisor decides which cases can be tested.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use refrain_testkit::servers::PrivateRedis;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    ONE, Stage, check_told, gallery, said, started,
    support::{self, Upstream, answer},
};

/// At-most-once allows a message that is lost in a crash or a failure, and no second effect.
#[test]
fn a_mark_before_handling_is_at_most_once() {
    let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
    let told = ["--guarantee", "at-most-once"];
    let marked = ("mark_before_handle.py", &ONE[..]);
    let text = check_told(&stage, &redis, marked, &told, &[]);
    assert_eq!(text.matches("as at-most-once allows").count(), 2, "{text}");
}

#[test]
fn effect_and_mark_apart_are_not_exactly_once() {
    let told = ["--guarantee", "exactly-once", "--case", "killed-in-flight"];
    let found = ["killed-in-flight"];
    for (guarantee, want) in [(&told[..], &found[..]), (&told[2..], &[])] {
        let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
        let apart = ("effect_then_mark.py", &ONE[..]);
        check_told(&stage, &redis, apart, guarantee, want);
    }
}

/// A ledger over Redis: GET /effects/ID reads `effects:ID`.
fn ledger_in(redis: &PrivateRedis) -> Upstream {
    let port: u16 = redis.url().rsplit(':').next().unwrap().parse().unwrap();
    Upstream::start(move |seen, stream| {
        let id = seen.start().rsplit('/').next().unwrap().to_owned();
        let mut redis = TcpStream::connect(("127.0.0.1", port)).unwrap();
        redis
            .write_all(format!("GET effects:{id}\r\n").as_bytes())
            .unwrap();
        let mut lines = BufReader::new(redis).lines();
        let count = match lines.next().unwrap().unwrap().as_str() {
            "$-1" => "0".to_owned(),
            _ => lines.next().unwrap().unwrap(),
        };
        answer(stream, "200 OK", &[], count.as_bytes())
    })
}

#[test]
fn effect_and_mark_together_are_exactly_once() {
    let redis = PrivateRedis::start().unwrap();
    let stage = Stage::with(ledger_in(&redis));
    let told = ["--guarantee", "exactly-once"];
    check_told(&stage, &redis, ("exactly_once.py", &ONE), &told, &[]);
    let verdicts = stage.verdicts();
    for id in ["killed-in-flight", "failed-message", "dead-letter-replay"] {
        assert!(
            verdicts.contains(&(id.into(), "pass".into())),
            "{verdicts:?}"
        );
    }
}

#[test]
fn redrive_command_redrives_dead_letters() {
    let check = |name: &str, command: &str, want: &[&str], word: &str| {
        let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
        let url = redis.url();
        let port = url.rsplit(':').next().unwrap();
        let program = gallery().join("redrive.py");
        let command = command
            .replace("REDRIVE", &format!("python3 -B {}", program.display()))
            .replace("PORT", port);
        let told = [
            "--redrive-command",
            &command,
            "--case",
            "dead-letter-replay",
        ];
        let text = check_told(&stage, &redis, (name, &ONE), &told, want);
        assert!(text.contains(word), "`{word}` is not in: {text}");
    };
    let found = ["dead-letter-replay"];
    check("right.py", "REDRIVE PORT orders", &[], "1 passed");
    check(
        "dead_letter_refused.py",
        "REDRIVE PORT orders",
        &found,
        "the consumer rejected it",
    );
    check(
        "right.py",
        "true",
        &found,
        "--redrive-command did not redrive it",
    );
    let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
    let url = redis.url();
    let restart = started(&stage, "right.py", &url, &ONE);
    let mut command = stage.verify(&url, &restart);
    let command = command.args(["--message-id", "{id}", "--case", "dead-letter-replay"]);
    let output = command
        .args(["--redrive-command", "exit 3"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69), "{}", said(&output));
    assert!(said(&output).contains("--redrive-command: failed with exit status: 3"));
}

/// A consumer with its own supervisor, which may or may not restart it.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn with_pid_alone_a_supervisor_must_restart_the_consumer() {
    let check = |rounds: &str, patience: &str, verdict: &str, word: &str| {
        let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
        let url = redis.url();
        let start = started(&stage, "right.py", &url, &ONE);
        let start = start.trim_end_matches(" & wait");
        let script = format!("for n in {rounds}; do {start} & echo $! >pid; wait; done");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(&stage.folder);
        let _kept = Kept(command.process_group(0).spawn().unwrap());
        let pid = || fs::read_to_string(stage.path("pid")).unwrap_or_default();
        support::until("it is started", || pid().ends_with('\n'));
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        let output = command
            .args(["verify", "--worker", "--broker", &url, "--queue", "orders"])
            .args(["--body", r#"{"order":"{id}"}"#, "--message-id", "{id}"])
            .args(["--slow-body", r#"{"order":"{id}","slow":3}"#])
            .arg("--effects-url")
            .arg(format!("http://{}/effects/{{id}}", stage.ledger.address))
            .args(["--pid", pid().trim(), "--case", "killed-in-flight"])
            .args(["--patience", patience, "--json", "report.json"])
            .current_dir(&stage.folder)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let want = [("killed-in-flight".to_owned(), verdict.to_owned())];
        assert_eq!(stage.verdicts(), want, "{}", said(&output));
        assert!(said(&output).contains(word), "{}", said(&output));
    };
    check("1 2 3", "20s", "pass", "1 passed");
    check("1", "10s", "skipped", "the consumer was not restarted");
}

//! `refrain verify --worker` must pass `refrain work` in front of a service without keys, and must report exactly the
//! one bug of each broken consumer.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "verify_worker/promises.rs"]
mod promises;
mod support;

use std::{
    collections::HashMap,
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain_testkit::servers::PrivateRedis;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use support::{AfterResponse, Seen, Upstream, answer};
use tempfile::TempDir;

const CASES: [&str; 10] = [
    "duplicate-message",
    "same-body-other-id",
    "duplicates-at-once",
    "out-of-order",
    "duplicate-in-flight",
    "late-duplicate",
    "two-consumers",
    "failed-message",
    "killed-in-flight",
    "dead-letter-replay",
];

/// Effects and attempts of a message.
#[derive(Debug, Default)]
struct Book {
    effects: HashMap<String, u64>,
    tried: HashMap<String, u64>,
}

/// A service without idempotency keys, which is its own ledger.
///
/// POST /events handles an order, with the delay and the failures that it asks for.
/// POST and GET /effects/ID add and count.
fn naive() -> Upstream {
    let book = Arc::new(Mutex::new(Book::default()));
    Upstream::start(move |seen, stream| {
        let (method, path) = seen.start().split_once(' ').unwrap();
        match (method, path.strip_prefix("/effects/")) {
            ("GET", Some(id)) => {
                let effects = book.lock().unwrap().effects.get(id).copied();
                let count = effects.unwrap_or_default().to_string();
                answer(stream, "200 OK", &[], count.as_bytes())
            }
            ("POST", Some(id)) => {
                *book.lock().unwrap().effects.entry(id.into()).or_default() += 1;
                answer(stream, "200 OK", &[], b"")
            }
            _ => handle(&book, seen, stream),
        }
    })
}

fn handle(book: &Mutex<Book>, seen: &Seen, stream: &mut TcpStream) -> AfterResponse {
    let order: Value = serde_json::from_slice(&seen.body).unwrap();
    let id = order["order"].as_str().unwrap().to_owned();
    let who = seen.header("refrain-worker").unwrap_or_default();
    let mut locked = book.lock().unwrap();
    let tried = locked.tried.entry(format!("{who} {id}")).or_default();
    *tried += 1;
    if *tried <= order["fail"].as_u64().unwrap_or_default() {
        drop(locked);
        return answer(stream, "500 Internal Server Error", &[], b"not yet");
    }
    drop(locked);
    let slow = order["slow"].as_f64().unwrap_or_default();
    std::thread::sleep(Duration::from_secs_f64(slow));
    *book.lock().unwrap().effects.entry(id).or_default() += 1;
    answer(stream, "200 OK", &[], b"")
}

/// A folder, a ledger, and programs to run.
struct Stage {
    folder: TempDir,
    ledger: Upstream,
}

impl Stage {
    fn new() -> Self {
        Self::with(naive())
    }

    fn with(ledger: Upstream) -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            ledger,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The options that all consumers are verified with.
    fn verify(&self, broker: &str, restart: &str) -> Command {
        // A consumer with this bug must be killed while it handles a message, even if the measured time was too long.
        let slow = match restart.contains("_before_handle") {
            true => "2",
            false => "0.4",
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        command
            .args([
                "verify", "--worker", "--broker", broker, "--queue", "orders",
            ])
            .args(["--body", r#"{"order":"{id}"}"#])
            .args([
                "--slow-body",
                &r#"{"order":"{id}","slow":0.4}"#.replace("0.4", slow),
            ])
            .args(["--failing-body", r#"{"order":"{id}","fail":1}"#])
            .args(["--poison-body", r#"{"order":"{id}","fail":3}"#])
            .args(["--dead-letter", "orders-dead"])
            .arg("--effects-url")
            .arg(format!("http://{}/effects/{{id}}", self.ledger.address))
            .args(["--restart-command", restart, "--late", "1s"])
            .arg("--json")
            .arg(self.path("report.json"))
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    /// The command that starts `refrain work` for the same messages, in front of the service without keys.
    fn refrain_work(&self, broker: &str, key: &str, names: &[&str]) -> String {
        let worker = |name: &str| {
            format!(
                "[[worker]]\nname = \"{name}\"\nsource = \"{broker}\"\nqueue = \"orders\"\nkey = [\"{key}\"]\n\
                 deliver = \"http://{}/events\"\ndead_letter = \"orders-dead\"\nattempts = 3\nbackoff = \"20ms\"\n\
                 backoff_max = \"200ms\"\nack_wait = \"3s\"\nlease = \"8s\"\n",
                self.ledger.address
            )
        };
        let workers: String = names.iter().map(|name| worker(name)).collect();
        let text = format!("store = \"file:records\"\n{workers}");
        fs::write(self.path("refrain.toml"), text).unwrap();
        let program = env!("CARGO_BIN_EXE_refrain");
        format!("exec {program} work --config refrain.toml 2>>work.log >>work.log")
    }

    /// The verdict of each case that was run.
    fn verdicts(&self) -> Vec<(String, String)> {
        let report = fs::read(self.path("report.json")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let cases = report["operations"][0]["cases"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        cases
            .iter()
            .map(|case| (text(&case["id"]), text(&case["verdict"])))
            .collect()
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Two consumers that each get every message.
const TWO: [&str; 2] = ["billing", "shipping"];
/// For brokers where consumers of one queue share its messages.
const ONE: [&str; 1] = ["billing"];

/// Checks that `refrain work` passes every case; only the case for two consumers is left out if there is one.
fn check_work(stage: &Stage, broker: &str, key: &str, names: &[&str], arguments: &[&str]) {
    let restart = stage.refrain_work(broker, key, names);
    let output = stage
        .verify(broker, &restart)
        .args(["--consumers", &names.len().to_string()])
        .args(arguments)
        .output()
        .unwrap();
    let log = fs::read_to_string(stage.path("work.log")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{}{log}", said(&output));
    let want = CASES.map(|id| match (id, names.len()) {
        ("two-consumers", 1) => (id.to_owned(), "skipped".to_owned()),
        _ => (id.to_owned(), "pass".to_owned()),
    });
    assert_eq!(stage.verdicts(), want, "{}{log}", said(&output));
}

#[test]
fn refrain_work_passes_every_case_on_redis() {
    let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
    let named = ["--message-id", "{id}"];
    check_work(&stage, &redis.url(), "id", &TWO, &named);
}

#[cfg(feature = "nats")]
#[test]
fn refrain_work_passes_every_case_on_nats() {
    let stage = Stage::new();
    let nats = refrain_testkit::servers::PrivateNats::start().unwrap();
    let header = ["--header", "Order-Id: {id}", "--message-id", "{id}-{n}"];
    check_work(&stage, &nats.url(), "header:Order-Id", &TWO, &header);
}

#[cfg(feature = "amqp")]
#[test]
fn refrain_work_passes_every_case_on_rabbitmq() {
    let stage = Stage::new();
    let rabbit = refrain_testkit::servers::PrivateRabbit::start().unwrap();
    let named = ["--message-id", "{id}"];
    check_work(&stage, &rabbit.url(), "id", &ONE, &named);
}

#[test]
fn refrain_work_passes_every_case_on_postgresql() {
    let stage = Stage::new();
    let postgres = refrain_testkit::servers::PrivatePostgres::start().unwrap();
    check_work(&stage, &postgres.url(), "body:/order", &ONE, &[]);
}

/// The command that starts a consumer of the gallery.
fn started(stage: &Stage, name: &str, redis: &str, consumers: &[&str]) -> String {
    let port = redis.rsplit(':').next().unwrap();
    let program = gallery().join(name);
    let started = consumers.iter().map(|consumer| {
        format!(
            "python3 -B {} {port} orders {consumer} http://{}/effects 2>>work.log",
            program.display(),
            stage.ledger.address
        )
    });
    started.collect::<Vec<_>>().join(" & ") + " & wait"
}

fn gallery() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/broken/consumers")
}

/// Checks that these cases fail, and no others, for a consumer of the gallery with these names.
fn check_broken(name: &str, consumers: &[&str], want: &[&str]) {
    let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
    check_told(&stage, &redis, (name, consumers), &[], want);
}

/// The same with more options; returns the output.
fn check_told(
    stage: &Stage,
    redis: &PrivateRedis,
    (name, consumers): (&str, &[&str]),
    more: &[&str],
    want: &[&str],
) -> String {
    let url = redis.url();
    let restart = started(stage, name, &url, consumers);
    // Only a lost message uses up the whole time.
    let patience = match want.is_empty() && !more.contains(&"at-most-once") {
        true => "30s",
        false => "10s",
    };
    let output = stage
        .verify(&url, &restart)
        .args(["--message-id", "{id}", "--patience", patience])
        .args(["--consumers", &consumers.len().to_string()])
        .args(more)
        .output()
        .unwrap();
    let log = fs::read_to_string(stage.path("work.log")).unwrap_or_default();
    let code = i32::from(!want.is_empty());
    assert_eq!(output.status.code(), Some(code), "{}{log}", said(&output));
    let failed = stage.verdicts().into_iter();
    let failed = failed.filter(|(_, verdict)| verdict == "fail");
    let failed: Vec<_> = failed.map(|(id, _)| id).collect();
    assert_eq!(failed, want, "{}{log}", said(&output));
    said(&output)
}

#[test]
fn the_right_consumer_passes() {
    check_broken("right.py", &["billing", "shipping"], &[]);
}

#[test]
fn duplicates_that_take_effect_are_found() {
    check_broken(
        "no_dedup.py",
        &["billing"],
        &[
            "duplicate-message",
            "duplicates-at-once",
            "out-of-order",
            "duplicate-in-flight",
            "late-duplicate",
        ],
    );
}

#[test]
fn a_mark_before_handling_is_found() {
    check_broken(
        "mark_before_handle.py",
        &["billing"],
        &["failed-message", "killed-in-flight"],
    );
}

#[test]
fn an_acknowledgement_before_handling_is_found() {
    check_broken(
        "ack_before_handle.py",
        &["billing"],
        &["failed-message", "killed-in-flight"],
    );
}

#[test]
fn a_key_without_the_consumers_name_is_found() {
    let consumers = ["billing", "shipping"];
    check_broken("no_consumer_name.py", &consumers, &["two-consumers"]);
}

#[test]
fn a_refused_dead_letter_is_found() {
    check_broken(
        "dead_letter_refused.py",
        &["billing"],
        &["dead-letter-replay"],
    );
}

#[test]
fn untestable_setup_is_reported_with_the_fix() {
    let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
    let url = redis.url();
    let check = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_refrain"))
            .arg("verify")
            .args(arguments)
            .current_dir(&stage.folder)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "`{word}` is not in: {text}");
        }
    };
    let effects = format!("http://{}/effects/{{id}}", stage.ledger.address);
    let basic = [
        "--worker",
        "--broker",
        &url,
        "--queue",
        "orders",
        "--effects-url",
        &effects,
    ];
    let with = |more: &[&'static str]| -> Vec<String> {
        basic
            .iter()
            .chain(more)
            .map(|it| (*it).to_owned())
            .collect()
    };
    let check_with = |more: &[&'static str], code: i32, words: &[&str]| {
        let all = with(more);
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        check(&all, code, words);
    };
    check(&["--broker", &url], 2, &["--worker"]);
    check(&["--worker"], 64, &["no broker; pass", "--broker"]);
    check(&["--worker", "--broker", &url], 64, &["--queue NAME"]);
    check(
        &[
            "--worker",
            "--broker",
            "redis://queue.example",
            "--queue",
            "q",
            "--body",
            "{id}",
        ],
        64,
        &["queue.example", "another machine", "--yes"],
    );
    check(
        &[
            "--worker", "--broker", &url, "--queue", "q", "--body", "{id}",
        ],
        64,
        &["--effects-url or --effects-sql"],
    );
    check_with(&[], 64, &["no message to publish"]);
    check_with(&["--body", "{}"], 64, &["has no {id}"]);
    check_with(
        &["--body", "{id}", "--case", "lost-answer"],
        64,
        &["unknown consumer case"],
    );
    check_with(
        &["--body", "{id}", "--guarantee", "twice"],
        2,
        &["at-least-once"],
    );
    check_with(
        &["--body", "{id}", "--patience", "1s"],
        69,
        &[
            "had no effect within 1s",
            "check that the consumer is running",
        ],
    );
    check(&["--worker", "--list"], 0, &["dead-letter-replay"]);
    let dead = "redis://127.0.0.1:9";
    check(
        &[
            "--worker",
            "--broker",
            dead,
            "--queue",
            "q",
            "--body",
            "{id}",
            "--effects-url",
            &effects,
        ],
        69,
        &["127.0.0.1:9"],
    );
}

#[test]
fn a_file_says_the_same_and_reports_are_written() {
    let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
    let url = redis.url();
    let run = |baseline: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_refrain"))
            .args(["verify", "--worker", "--config"])
            .arg(gallery().join("verify.toml"))
            .args(["--broker", &url, "--case", "duplicate-message"])
            .arg("--effects-url")
            .arg(format!("http://{}/effects/{{id}}", stage.ledger.address))
            .arg("--restart-command")
            .arg(started(&stage, "no_dedup.py", &url, &ONE))
            .args(["--html", "r.html", "--junit", "r.xml", "--sarif", "r.sarif"])
            .args(["--json", "r.json"])
            .args(baseline)
            .current_dir(&stage.folder)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text = said(&output);
    for word in [
        "order\n",
        "FAIL     duplicate-message",
        "fix:",
        "1 message, but 3 effects",
    ] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    for name in ["r.html", "r.xml", "r.sarif", "r.json"] {
        let report = fs::read_to_string(stage.path(name)).unwrap();
        assert!(report.contains("duplicate-message"), "{name}: {report}");
        assert!(report.contains("3 effects"), "{name}: {report}");
    }
    let page = fs::read_to_string(stage.path("r.html")).unwrap();
    assert!(
        page.contains("publish to orders") && !page.contains(">lost<"),
        "{page}"
    );
    fs::copy(stage.path("r.json"), stage.path("before.json")).unwrap();
    let output = run(&["--baseline", "before.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn an_interruption_leaves_no_process_and_no_report() {
    let (stage, redis) = (Stage::new(), PrivateRedis::start().unwrap());
    let url = redis.url();
    let restart = format!("echo $$ >pid; {}", started(&stage, "right.py", &url, &ONE));
    let mut command = stage.verify(&url, &restart);
    let child = command.args(["--message-id", "{id}"]).stdout(Stdio::null());
    let mut child = child.spawn().unwrap();
    let pid = || -> Option<i32> {
        let text = fs::read_to_string(stage.path("pid")).ok()?;
        text.trim().parse().ok()
    };
    support::until("it is started", || pid().is_some());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let pid = Pid::from_raw(pid().unwrap()).unwrap();
    support::until("the process is gone", || test_kill_process(pid).is_err());
    assert!(!stage.path("report.json").exists());
}

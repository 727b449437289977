//! `refrain work` with a real Redis and a real target: no message may be lost, and none may run twice unannounced.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "kills_support/proxy.rs"]
mod kills;
mod receipts_support;
mod support;

use std::{
    collections::HashMap,
    fs,
    io::Write as _,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    consume::{Broker, Message, Source},
    http::{Code, PROBLEMS_PATH},
};
use refrain_testkit::servers::{PrivateRedis, free_port};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{AfterResponse, Seen, Upstream, answer, call, request_to, until};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A Redis, a folder for the store, and a runtime to publish with.
struct Stage {
    redis: PrivateRedis,
    folder: TempDir,
    runtime: Runtime,
}

impl Stage {
    fn new() -> Self {
        Self {
            redis: PrivateRedis::start().unwrap(),
            folder: TempDir::new().unwrap(),
            runtime: Runtime::new().unwrap(),
        }
    }

    /// Configures a worker of the queue `orders`, with additional settings.
    fn write(&self, target: SocketAddr, settings: &str) {
        let text = format!(
            "store = \"file:records\"\n[proxy]\ndrain = \"5s\"\n[[worker]]\nname = \"billing\"\nsource = \"{}\"\nqueue = \"orders\"\n\
             deliver = \"http://{target}/events?q=1\"\nbackoff = \"20ms\"\nbackoff_max = \"200ms\"\nack_wait = \"2s\"\nlease = \"8s\"\n{settings}\n",
            self.redis.url()
        );
        fs::write(self.folder.path().join("refrain.toml"), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        command
            .arg("work")
            .args(arguments)
            .current_dir(&self.folder);
        command
    }

    fn start(&self) -> Worker {
        let errors = fs::File::create(self.folder.path().join("stderr")).unwrap();
        let output = fs::File::create(self.folder.path().join("stdout")).unwrap();
        let arguments = ["--admin", "127.0.0.1:0"];
        let child = self
            .command(&arguments)
            .stdout(output)
            .stderr(errors)
            .spawn();
        Worker(child.unwrap())
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn publish(&self, messages: &[Message]) {
        let url = self.redis.url();
        self.runtime.block_on(async {
            let publisher = refrain_brokers::open_publisher(&url).await.unwrap();
            for message in messages {
                publisher.publish("orders", message).await.unwrap();
            }
        });
    }

    /// Reads one message of another queue without removing it.
    fn peek(&self, queue: &str) -> Message {
        let source = Source::new(self.redis.url(), queue, "looking");
        self.runtime.block_on(async {
            let broker: Arc<dyn Broker> = refrain_brokers::open(&source).await.unwrap();
            let pulled = broker.pull(1, support::PATIENCE).await.unwrap();
            pulled.into_iter().next().unwrap().message
        })
    }

    /// Number of deliveries with this outcome, from the worker's metrics.
    fn counted(&self, outcome: &str) -> u64 {
        let said = self.said();
        let address = said
            .lines()
            .find_map(|line| line.strip_prefix("admin http://"));
        let Some(address) = address.and_then(|text| text.parse().ok()) else {
            return 0;
        };
        let metrics = call(address, request_to(address, "GET /metrics"));
        let name = format!("refrain_messages_total{{consumer=\"billing\",outcome=\"{outcome}\"}} ");
        let mut lines = metrics.text().lines();
        lines
            .find_map(|line| line.strip_prefix(&name)?.parse().ok())
            .unwrap()
    }

    fn said(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.path().join(name));
        read("stdout").unwrap() + &read("stderr").unwrap()
    }
}

/// A worker that is killed on drop.
struct Worker(Child);

impl Worker {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn terminate(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn order(number: usize) -> Message {
    Message::new(format!("{{\"order\":{number}}}"))
        .with_id(format!("order-{number}"))
        .with_content_type("application/json")
        .with_header("traceparent", "00-1-2-01")
        .with_header("authorization", "not to be passed on")
}

#[test]
fn a_message_is_delivered_once_however_often_it_is_published() {
    let stage = Stage::new();
    let target = Upstream::start(|_, stream| answer(stream, "202 Accepted", &[], b"ok"));
    stage.write(target.address, "dead_letter = \"dead\"");
    let mut worker = stage.start();
    stage.publish(&[order(1), order(1), order(2), order(1)]);
    until("all messages are handled", || {
        stage.counted("completed") == 2 && stage.counted("duplicate") == 2
    });
    assert_eq!(worker.terminate(), Some(0), "{}", stage.said());
    let said = stage.said();
    assert!(said.contains("2 completed, 2 duplicate"), "{said}");
    let seen = target.seen();
    let first = seen
        .iter()
        .find(|seen| seen.header("idempotency-key") == Some("order-1"));
    let first = first.unwrap();
    assert_eq!(first.start(), "POST /events?q=1");
    assert_eq!(first.body, b"{\"order\":1}");
    for (name, value) in [
        ("content-type", Some("application/json")),
        ("traceparent", Some("00-1-2-01")),
        ("authorization", None),
        ("refrain-attempt", Some("1")),
        ("refrain-worker", Some("billing")),
    ] {
        assert_eq!(first.header(name), value, "{name}");
    }
    assert!(first.header("refrain-fence").is_some() && first.header("refrain-record").is_some());
    assert_eq!(target.count(), 2);
}

#[test]
fn message_rejected_by_the_target_is_dead_lettered_at_once_and_can_be_redriven() {
    let stage = Stage::new();
    let refuses = Arc::new(Mutex::new(true));
    let target = {
        let refuses = refuses.clone();
        Upstream::start(move |_, stream| match *refuses.lock().unwrap() {
            true => answer(stream, "422 Unprocessable", &[], b"no such customer"),
            false => answer(stream, "200 OK", &[], b""),
        })
    };
    stage.write(target.address, "dead_letter = \"dead\"");
    let mut worker = stage.start();
    stage.publish(&[order(1)]);
    let letter = stage.peek("dead");
    let told = |name: &str| letter.header(name).map(|value| value.to_vec());
    assert_eq!(letter.payload, "{\"order\":1}");
    assert_eq!(told("Refrain-Dead-Reason").unwrap(), b"rejected");
    assert_eq!(told("Refrain-Dead-Attempts").unwrap(), b"1");
    let failure = String::from_utf8(told("Refrain-Dead-Last-Failure").unwrap()).unwrap();
    assert!(failure.contains("422: no such customer"), "{failure}");
    assert_eq!(worker.terminate(), Some(0));
    assert_eq!(target.count(), 1);

    *refuses.lock().unwrap() = false;
    let redriven = stage.run(&["--redrive"]);
    let said = String::from_utf8(redriven.stdout).unwrap();
    assert!(
        redriven.status.success() && said.contains("1 redriven"),
        "{said}"
    );
    let mut worker = stage.start();
    until("it is delivered again", || target.count() == 2);
    assert_eq!(worker.terminate(), Some(0));
    assert_eq!(target.seen()[1].header("idempotency-key"), Some("order-1"));
    // No dead letter is left to redrive.
    let said = String::from_utf8(stage.run(&["--redrive", "--json"]).stdout).unwrap();
    assert!(said.contains("\"sent\":0"), "{said}");
}

#[test]
fn failures_are_tried_again_and_not_before_the_target_says() {
    let stage = Stage::new();
    let since = tokio::time::Instant::now();
    let times = Arc::new(Mutex::new(Vec::new()));
    let target = {
        let times = times.clone();
        Upstream::start(move |seen, stream| {
            times.lock().unwrap().push(since.elapsed());
            match seen.header("refrain-attempt") {
                Some("1") => answer(stream, "500 Oh", &[], b""),
                Some("2") => answer(stream, "429 Slow", &[("retry-after", "1")], b""),
                _ => answer(stream, "200 OK", &[], b""),
            }
        })
    };
    stage.write(target.address, "dead_letter = \"dead\"");
    let mut worker = stage.start();
    stage.publish(&[order(1)]);
    until("it succeeds", || target.count() == 3);
    assert_eq!(worker.terminate(), Some(0));
    let times = times.lock().unwrap();
    assert!(times[2] - times[1] >= Duration::from_secs(1), "{times:?}");
    assert!(stage.said().contains("1 completed"), "{}", stage.said());
}

#[test]
fn a_refusal_for_now_is_retried_and_an_unknown_outcome_follows_the_guarantee() {
    for (guarantee, completed, dead) in [("at-least-once", 4, 0), ("at-most-once", 3, 1)] {
        let stage = Stage::new();
        let target = Upstream::start(refusing_once);
        let settings = format!("dead_letter = \"dead\"\nguarantee = \"{guarantee}\"");
        stage.write(target.address, &settings);
        let mut worker = stage.start();
        stage.publish(&[order(1), order(2), order(3), order(4)]);
        until("all messages are handled", || {
            stage.counted("completed") + stage.counted("dead-lettered") == 4
        });
        assert_eq!(stage.counted("completed"), completed, "{}", stage.said());
        if dead == 1 {
            let letter = stage.peek("dead");
            let reason = letter.header("Refrain-Dead-Reason").unwrap();
            assert_eq!(reason, "outcome-unknown");
            assert_eq!(letter.payload, "{\"order\":4}");
        }
        assert_eq!(worker.terminate(), Some(0), "{}", stage.said());
        assert_eq!(target.count(), 8 - dead, "{guarantee}");
    }
}

/// A service that rejects the first attempt of each order, each in another way, as Refrain or a similar proxy would.
fn refusing_once(seen: &Seen, stream: &mut std::net::TcpStream) -> AfterResponse {
    let problem = |code: Code| {
        let problem = code.answer("", PROBLEMS_PATH);
        let status = format!("{} Refused", problem.status().as_u16());
        let media_type = problem.headers()["content-type"].to_str().unwrap();
        (
            status,
            ("content-type", media_type.to_owned()),
            problem.into_body(),
        )
    };
    let retry_after = ("retry-after", "0".to_owned());
    let (status, (name, value), body) = match seen.header("refrain-attempt") {
        Some("1") => match seen.header("idempotency-key") {
            Some("order-1") => problem(Code::InFlight),
            Some("order-2") => problem(Code::StoreUnavailable),
            Some("order-3") => ("409 Conflict".to_owned(), retry_after, "busy".into()),
            _ => problem(Code::OutcomeUnknown),
        },
        _ => ("200 OK".to_owned(), retry_after, "done".into()),
    };
    answer(stream, &status, &[(name, &value)], &body)
}

/// Executes the order and closes the connection on the first attempt.
fn losing(seen: &Seen, stream: &mut std::net::TcpStream) -> AfterResponse {
    match seen.header("refrain-attempt") {
        Some("1") => AfterResponse::Close,
        _ => answer(stream, "200 OK", &[], b""),
    }
}

#[test]
fn a_lost_answer_is_tried_again_under_the_same_key_or_left_to_a_person() {
    for (guarantee, sent) in [("at-least-once", 2), ("at-most-once", 1)] {
        let stage = Stage::new();
        let target = Upstream::start(losing);
        let settings = format!("dead_letter = \"dead\"\nguarantee = \"{guarantee}\"");
        stage.write(target.address, &settings);
        let mut worker = stage.start();
        stage.publish(&[order(1), order(1)]);
        until("it was sent", || target.count() == sent);
        if sent == 1 {
            let letter = stage.peek("dead");
            let reason = letter.header("Refrain-Dead-Reason").unwrap();
            assert_eq!(reason, "outcome-unknown");
        }
        assert_eq!(worker.terminate(), Some(0), "{}", stage.said());
        assert_eq!(target.count(), sent);
        let keys: Vec<_> = target
            .seen()
            .iter()
            .map(|seen| seen.header("idempotency-key").map(str::to_owned))
            .collect();
        assert!(
            keys.iter().all(|key| key.as_deref() == Some("order-1")),
            "{keys:?}"
        );
    }
}

#[test]
fn receipt_resolves_a_message_whose_response_was_lost() {
    let stage = Stage::new();
    let place = receipts_support::ServiceDatabase::new();
    let service = receipts_support::rust(&place);
    let receipts = place.url();
    stage.write(
        service.address,
        &format!(
            "dead_letter = \"dead\"\nguarantee = \"exactly-once\"\nreceipts = \"{receipts}\"\ntimeout = \"1s\""
        ),
    );
    let file = stage.folder.path().join("refrain.toml");
    rewrite(&file, "/events?q=1", "/v1/payments");
    let mut worker = stage.start();
    let pay = |key: &str, fail: &str| {
        let body = format!("{{\"customer\":\"{key}\",\"amount\":20}}");
        let message = Message::new(body)
            .with_id(key)
            .with_content_type("application/json")
            .with_header("x-fail", fail.to_owned());
        stage.publish(&[message]);
    };
    let handled = || stage.counted("completed") + stage.counted("duplicate");
    // From the first receipt on, exactly-once is in force.
    pay("first", "");
    until("the first is paid", || handled() == 1);
    for (at, fault) in (2..).zip(["error-after-commit", "hang-after-commit"]) {
        pay(fault, fault);
        until(fault, || handled() == at);
        assert_eq!(place.payments_of(fault), 1, "{fault}: {}", stage.said());
    }
    assert_eq!(worker.terminate(), Some(0), "{}", stage.said());
    assert!(!stage.said().contains("dead-lettered"), "{}", stage.said());
}

#[test]
fn a_worker_that_is_killed_again_and_again_loses_nothing() {
    const KILLS: usize = 8;
    /// Orders that are published in each life.
    const EACH: usize = 15;
    const ORDERS: usize = KILLS * EACH;
    let stage = Stage::new();
    // The target's own ledger: attempts by key.
    let ledger: Arc<Mutex<HashMap<String, Vec<String>>>> = Arc::default();
    let target = {
        let ledger = ledger.clone();
        Upstream::start(move |seen, stream| {
            let header = |name: &str| seen.header(name).unwrap().to_owned();
            let mut ledger = ledger.lock().unwrap();
            let runs = ledger.entry(header("idempotency-key")).or_default();
            runs.push(header("refrain-attempt"));
            drop(ledger);
            std::thread::sleep(Duration::from_millis(5));
            answer(stream, "200 OK", &[], b"")
        })
    };
    stage.write(
        target.address,
        "dead_letter = \"dead\"\nconcurrency = 8\nattempts = 50",
    );
    let handled = || ledger.lock().unwrap().len();
    for life in 0..KILLS {
        let numbers = life * EACH..(life + 1) * EACH;
        let orders: Vec<_> = numbers
            .flat_map(|number| [order(number), order(number)])
            .collect();
        stage.publish(&orders);
        let before = handled();
        let mut worker = stage.start();
        until("the worker makes progress", || {
            handled() >= before + EACH / 2
        });
        worker.kill();
    }
    let mut worker = stage.start();
    until("every order is handled", || handled() == ORDERS);
    // The broker redelivers the messages of killed workers after its ack timeout; they are skipped or run again.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(worker.terminate(), Some(0), "{}", stage.said());
    let ledger = ledger.lock().unwrap();
    assert_eq!(ledger.len(), ORDERS);
    // Only messages in flight at a kill may have run twice.
    let twice = ledger.values().filter(|runs| runs.len() > 1).count();
    assert!(twice <= KILLS * 8, "{twice} with {KILLS} kills");
}

/// A worker without its store or its broker handles nothing: `/readyz` has to say which one is missing.
#[test]
fn it_is_ready_while_store_and_broker_answer() {
    let mut stage = Stage::new();
    let mut store = PrivateRedis::start().unwrap();
    let target = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""));
    stage.write(target.address, "");
    let file = stage.folder.path().join("refrain.toml");
    rewrite(&file, "file:records", &store.url());
    let worker = stage.start();
    stage.publish(&[order(1)]);
    until("it is handled", || stage.counted("completed") == 1);
    let said = stage.said();
    let address = said
        .lines()
        .find_map(|line| line.strip_prefix("admin http://"));
    let address = address.unwrap().parse().unwrap();
    let ready = || {
        let ready = call(address, request_to(address, "GET /readyz"));
        let told: Value = serde_json::from_slice(&ready.body).unwrap();
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        (ready.status, text("reason"), text("detail"))
    };
    until("it is ready", || ready().0 == 200);
    store.kill().unwrap();
    until("the store is reported as missing", || ready().0 == 503);
    assert_eq!(ready().1, "store");
    store.restart().unwrap();
    until("the store is back", || ready().0 == 200);
    stage.redis.kill().unwrap();
    until("the broker is reported as missing", || {
        let (status, reason, detail) = ready();
        status == 503 && reason == "broker" && detail.starts_with("worker billing: ")
    });
    stage.redis.restart().unwrap();
    until("the broker is back", || ready().0 == 200);
    // A store that lost records must not run them again.
    store.flush().unwrap();
    until("the loss is reported", || {
        let (status, reason, detail) = ready();
        status == 503 && reason == "store" && detail.contains("has lost")
    });
    drop(worker);
}

#[test]
fn a_store_that_may_lose_claims_is_refused_for_at_most_once_and_accepted_where_that_is_said() {
    let stage = Stage::new();
    let store = PrivateRedis::start_with(&[("appendfsync", "everysec")]).unwrap();
    let target = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""));
    let file = stage.folder.path().join("refrain.toml");
    let write = |settings: &str| {
        stage.write(target.address, settings);
        rewrite(&file, "file:records", &store.url());
    };
    write("guarantee = \"at-most-once\"");
    let refused = stage.run(&[]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{text}");
    for words in [
        "`billing` is at-most-once",
        "appendfsync is everysec",
        "accept_lossy_claims = true",
    ] {
        assert!(text.contains(words), "{text}");
    }
    write("guarantee = \"at-most-once\"\naccept_lossy_claims = true");
    let mut worker = stage.start();
    stage.publish(&[order(1)]);
    until("it is handled", || stage.counted("completed") == 1);
    assert_eq!(worker.terminate(), Some(0), "{}", stage.said());
}

#[test]
fn invalid_settings_are_reported_before_start() {
    let stage = Stage::new();
    let check = |output: &Output, code: i32, words: &[&str]| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        for word in words {
            assert!(text.contains(word), "`{word}` is not in: {text}");
        }
    };
    check(&stage.run(&[]), 64, &["refrain.toml", "cannot be read"]);
    let file = stage.folder.path().join("refrain.toml");
    fs::write(&file, "store = \"memory:\"\n").unwrap();
    check(&stage.run(&[]), 64, &["has no [[worker]]"]);
    stage.write("127.0.0.1:9".parse().unwrap(), "");
    check(
        &stage.run(&["--worker", "biling"]),
        64,
        &["no worker `biling`", "billing"],
    );
    rewrite(
        &file,
        &stage.redis.url(),
        &format!("redis://127.0.0.1:{}", free_port().unwrap()),
    );
    check(&stage.run(&[]), 69, &["127.0.0.1"]);
    rewrite(&file, "redis://", "kafka://");
    let refused = stage.run(&[]);
    assert!(
        [Some(64), Some(69)].contains(&refused.status.code()),
        "{refused:?}"
    );
    check(&stage.run(&["--nonsense"]), 2, &["--nonsense"]);
}

fn rewrite(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    let mut file = fs::File::create(file).unwrap();
    file.write_all(text.replace(from, to).as_bytes()).unwrap();
}

//! The admin address of `refrain work`: a message whose outcome is unknown, a queue that grows and dead letters that
//! nobody redrives have to be found and settled without stopping the worker.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use refrain::{
    audit::{self, Check, Visit, Written},
    consume::Message,
};
use refrain_testkit::servers::PrivateRedis;
use serde_json::{Value, json};
use support::{
    AfterResponse, HttpResponse, Upstream, answer, call, request_json, request_to, until,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const TOKEN: &str = "a token of the test";

/// A Redis, and a worker of the queue `orders` with an embedded store.
struct Stage {
    redis: PrivateRedis,
    folder: TempDir,
    runtime: Runtime,
    worker: Option<Child>,
}

impl Stage {
    fn new() -> Self {
        Self {
            redis: PrivateRedis::start().unwrap(),
            folder: TempDir::new().unwrap(),
            runtime: Runtime::new().unwrap(),
            worker: None,
        }
    }

    fn write(&self, target: SocketAddr, settings: &str) {
        let text = format!(
            "store = \"file:records\"\n[[worker]]\nname = \"billing\"\nsource = \"{}\"\nqueue = \"orders\"\n\
             deliver = \"http://{target}/events\"\ndead_letter = \"dead\"\nbackoff = \"20ms\"\nbackoff_max = \"200ms\"\n{settings}\n",
            self.redis.url()
        );
        fs::write(self.folder.path().join("refrain.toml"), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        command.args(arguments).current_dir(&self.folder);
        command.stdin(Stdio::null());
        for name in ["ADMIN", "ADMIN_TOKEN", "ADMIN_TOKEN_FILE"] {
            command.env_remove(format!("REFRAIN_{name}"));
        }
        command
    }

    /// Starts the worker, and returns its admin address.
    fn start(&mut self, variables: &[(&str, &str)]) -> SocketAddr {
        let file = |name: &str| fs::File::create(self.folder.path().join(name)).unwrap();
        let mut command = self.command(&["work", "--admin", "127.0.0.1:0"]);
        command.envs(variables.iter().copied());
        let child = command.stdout(file("stdout")).stderr(file("stderr"));
        self.worker = Some(child.spawn().unwrap());
        let mut address = None;
        until("the admin address is printed", || {
            let said = fs::read_to_string(self.folder.path().join("stdout")).unwrap();
            let mut lines = said.lines();
            let text = lines.find_map(|line| line.strip_prefix("admin http://"));
            address = text.and_then(|text| text.parse().ok());
            address.is_some()
        });
        address.unwrap()
    }

    /// Runs `refrain records`; returns exit code and output.
    fn records(&self, admin: SocketAddr, arguments: &[&str]) -> (Option<i32>, String) {
        let url = format!("http://{admin}");
        let arguments = [&["records", "--admin", &url], arguments].concat();
        let output = self.command(&arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    fn publish(&self, ids: &[&str]) {
        let url = self.redis.url();
        self.runtime.block_on(async {
            let publisher = refrain_brokers::open_publisher(&url).await.unwrap();
            for id in ids {
                let message = Message::new(format!("payload of {id}")).with_id(*id);
                publisher.publish("orders", &message).await.unwrap();
            }
        });
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

fn read(admin: SocketAddr, path: &str) -> Value {
    let response = call(admin, request_to(admin, &format!("GET {path}")));
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

fn send(admin: SocketAddr, path: &str, body: &Value) -> HttpResponse {
    let start = format!("POST {path}");
    call(admin, request_json(admin, &start, &body.to_string()))
}

/// The state of the worker `billing`.
fn status(admin: SocketAddr) -> Value {
    let workers = read(admin, "/api/workers");
    assert_eq!(workers["workers"][0]["name"], "billing", "{workers}");
    workers["workers"][0].clone()
}

fn counted(admin: SocketAddr, outcome: &str) -> u64 {
    let status = status(admin);
    let counts = status["counts"].as_array().unwrap();
    let found = counts.iter().find(|count| count[0] == outcome);
    found.unwrap()[1].as_u64().unwrap()
}

/// A target that rejects every message, or accepts it.
fn rejecting() -> (Upstream, Arc<Mutex<bool>>) {
    let rejects = Arc::new(Mutex::new(true));
    let script = rejects.clone();
    let target = Upstream::start(move |_, stream| {
        let rejects = *script.lock().unwrap();
        match rejects {
            true => answer(stream, "422 Unprocessable", &[], b"no such customer"),
            false => answer(stream, "200 OK", &[], b""),
        }
    });
    (target, rejects)
}

#[test]
fn unknown_outcome_of_a_message_is_found_and_resolved_while_the_worker_runs() {
    let mut stage = Stage::new();
    let target = Upstream::start(|_, _| AfterResponse::Close);
    stage.write(
        target.address,
        "guarantee = \"at-most-once\"\nretention = \"60d\"",
    );
    let admin = stage.start(&[]);
    stage.publish(&["order-1"]);
    until("it is a dead letter", || {
        counted(admin, "dead-lettered") == 1
    });

    let found = stage.records(admin, &["find", "--key", "order-1", "--json"]);
    let found: Value = serde_json::from_str(&found.1).unwrap();
    let record = &found["records"][0];
    assert_eq!(record["operation"], "billing", "{found}");
    assert_eq!(record["state"], "indeterminate", "{found}");
    let id = record["id"].as_str().unwrap();
    let listed = stage.records(admin, &["list", "--operation", "billing"]).1;
    assert!(listed.contains(id), "{listed}");

    let resolve = ["resolve", id, "--status", "200", "--reason", "in the books"];
    let (code, said) = stage.records(admin, &resolve);
    assert_eq!(code, Some(0), "{said}");
    let record = read(admin, &format!("/api/records/{id}"));
    assert_eq!(record["state"], "completed", "{record}");
    // As long as the worker keeps its outcomes, not as long as the default.
    let days = record["retention_left_seconds"].as_f64().unwrap() / 86_400.0;
    assert!((59.0..=60.0).contains(&days), "{record}");

    let body = json!({ "reason": "it took effect" });
    let redriven = send(admin, "/api/workers/billing/redrive", &body);
    let redriven: Value = serde_json::from_slice(&redriven.body).unwrap();
    assert_eq!(redriven["skipped"], 1, "{redriven}");
    assert_eq!(
        target.count(),
        1,
        "an effect that happened does not run again"
    );
}

#[test]
fn dead_letters_are_listed_and_redriven_while_the_worker_runs() {
    let mut stage = Stage::new();
    let (target, rejects) = rejecting();
    stage.write(target.address, "audit = true");
    let admin = stage.start(&[]);
    let orders = ["order-1", "order-2", "order-3"];
    stage.publish(&orders);
    until("they are dead letters", || {
        counted(admin, "dead-lettered") == 3
    });

    // The number is read every 10 s at most.
    until("they are counted", || status(admin)["dead_letters"] == 3);
    let letters = "/api/workers/billing/dead-letters";
    let all = read(admin, letters);
    let first = &all["dead_letters"][0];
    assert_eq!(all["dead_letters"].as_array().unwrap().len(), 3, "{all}");
    assert_eq!(all["are_all"], true);
    assert_eq!(first["reason"], "rejected");
    let failure = first["last_failure"].as_str().unwrap();
    assert!(failure.contains("no such customer"), "{all}");
    assert!(!all.to_string().contains("payload of"), "{all}");
    let some = read(admin, &format!("{letters}?limit=2"));
    assert_eq!(some["dead_letters"].as_array().unwrap().len(), 2, "{some}");
    assert_eq!(some["are_all"], false);

    *rejects.lock().unwrap() = false;
    let redrive = "/api/workers/billing/redrive";
    for (path, body, expected) in [
        (redrive, json!({}), 400),
        (redrive, json!({ "reason": " " }), 400),
        (redrive, json!({ "reason": "fixed", "at_most": 0 }), 400),
        (
            "/api/workers/biling/redrive",
            json!({ "reason": "fixed" }),
            404,
        ),
    ] {
        let refused = send(admin, path, &body);
        assert_eq!(refused.status, expected, "{path} {body}");
    }
    assert_eq!(target.count(), 3, "a refused redrive sends nothing");

    let body = json!({ "reason": "the customer exists now", "by": "anna", "at_most": 2 });
    let redriven = send(admin, redrive, &body);
    assert_eq!(redriven.status, 200, "{}", redriven.text());
    let redriven: Value = serde_json::from_slice(&redriven.body).unwrap();
    let expected =
        json!({ "is_running": false, "sent": 2, "skipped": 0, "left": 0, "error": null });
    assert_eq!(redriven, expected);
    until("two are handled", || counted(admin, "completed") == 2);
    let left = read(admin, letters);
    assert_eq!(left["dead_letters"].as_array().unwrap().len(), 1, "{left}");
    let after = status(admin);
    assert_eq!(after["redrive"], expected);
    assert_eq!(after["dead_letters"], 1, "{after}");

    let entries = entries(&stage.folder.path().join("records/audit"));
    let redriven: Vec<_> = entries.iter().filter(|it| it.event == "redriven").collect();
    assert_eq!(redriven.len(), 2);
    for entry in redriven {
        assert_eq!(entry.actor.as_deref(), Some("loopback"));
        assert_eq!(entry.by.as_deref(), Some("anna"));
        assert_eq!(entry.reason.as_deref(), Some("the customer exists now"));
        assert_eq!(entry.operation.as_deref(), Some("billing"));
    }
}

fn entries(folder: &Path) -> Vec<Written> {
    let mut all = Vec::new();
    let mut visit = |visit: Visit<'_>| {
        if let Visit::Entry(entry, _) = visit {
            all.push(entry.clone());
        }
    };
    let found = audit::verify(folder, &Check::default(), &mut visit).unwrap();
    assert_eq!(found.damage, []);
    all
}

#[test]
fn a_queue_that_grows_shows_as_lag_until_it_is_handled() {
    let mut stage = Stage::new();
    let gate = Arc::new(Mutex::new(()));
    let target = {
        let gate = gate.clone();
        Upstream::start(move |_, stream| {
            drop(gate.lock().unwrap());
            answer(stream, "200 OK", &[], b"")
        })
    };
    stage.write(target.address, "concurrency = 1");
    let closed = gate.lock().unwrap();
    let admin = stage.start(&[]);
    stage.publish(&["order-1", "order-2", "order-3", "order-4"]);
    until("one is handled and three wait", || {
        let status = status(admin);
        status["lag"] == 3 && status["unacknowledged"] == 1 && status["in_flight"] == 1
    });
    let status_now = status(admin);
    assert!(status_now["oldest_seconds"].is_u64(), "{status_now}");
    assert_eq!(status_now["is_approximate"], false);
    let metrics = call(admin, request_to(admin, "GET /metrics"));
    for line in [
        "refrain_worker_lag{consumer=\"billing\"} 3",
        "refrain_worker_unacknowledged{consumer=\"billing\"} 1",
        "refrain_worker_in_flight{consumer=\"billing\"} 1",
        "refrain_messages_total{consumer=\"billing\",outcome=\"completed\"} 0",
        "refrain_audit_log_shut 0",
    ] {
        let text = metrics.text();
        assert!(text.lines().any(|it| it == line), "{line} in {text}");
    }
    drop(closed);
    until("nothing waits", || {
        let status = status(admin);
        status["lag"] == 0 && status["unacknowledged"] == 0 && status["in_flight"] == 0
    });
    assert_eq!(counted(admin, "completed"), 4);
}

#[test]
fn records_and_dead_letters_need_the_token_and_an_open_address_needs_one() {
    let mut stage = Stage::new();
    let (target, _) = rejecting();
    stage.write(target.address, "");
    let refused = stage.command(&["work", "--admin", "0.0.0.0:0"]).output();
    let refused = refused.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{said}");
    assert!(said.contains("REFRAIN_ADMIN_TOKEN"), "{said}");

    let admin = stage.start(&[("REFRAIN_ADMIN_TOKEN", TOKEN)]);
    let statuses = |start: &str| {
        let bare = call(admin, request_to(admin, start)).status;
        let shown =
            format!("{start} HTTP/1.1\r\nhost: {admin}\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
        (bare, call(admin, shown).status)
    };
    for path in [
        "/api/workers",
        "/api/workers/billing/dead-letters",
        "/api/records",
        "/metrics",
    ] {
        assert_eq!(statuses(&format!("GET {path}")), (401, 200), "{path}");
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(statuses(&format!("GET {path}")), (200, 200), "{path}");
    }
    let body = json!({ "reason": "without a token" });
    let refused = send(admin, "/api/workers/billing/redrive", &body);
    assert_eq!(refused.status, 401);
}

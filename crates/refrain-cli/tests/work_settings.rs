//! Settings and secrets of `refrain work`: their sources, and what is printed of them.
//! A store named in the environment was ignored: two nodes used a folder each, and an order ran on both.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output},
};

use refrain::consume::Message;
use refrain_testkit::servers::PrivateRedis;
use rustix::process::{Pid, Signal, kill_process};
use support::{Upstream, answer, call, request_to, until};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A machine with a refrain.toml that names no store.
struct Node {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

/// A worker that is killed on drop.
struct Running<'a> {
    node: &'a Node,
    child: Child,
}

impl Node {
    fn new(worker: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let text = format!(
            "[[worker]]\nname = \"billing\"\nqueue = \"orders\"\ndead_letter = \"dead\"\n\
             backoff = \"20ms\"\nack_wait = \"2s\"\nlease = \"8s\"\n{worker}\n"
        );
        fs::write(folder.path().join("refrain.toml"), text).unwrap();
        Self {
            folder,
            variables: Vec::new(),
        }
    }

    fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.into(), value.to_string()));
        self
    }

    /// Writes a file into its folder; returns the path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        command.args(arguments).current_dir(&self.folder);
        command.envs(self.variables.iter().cloned());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn start(&self) -> Running<'_> {
        self.start_with(&["--admin", "127.0.0.1:0"])
    }

    fn start_with(&self, arguments: &[&str]) -> Running<'_> {
        let file = |name: &str| fs::File::create(self.folder.path().join(name)).unwrap();
        let mut command = self.command(&["work"]);
        command.args(arguments);
        command.stdout(file("stdout")).stderr(file("stderr"));
        let child = command.spawn().unwrap();
        Running { node: self, child }
    }

    fn said(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.path().join(name)).unwrap();
        read("stdout") + &read("stderr")
    }

    fn has(&self, folder: &str) -> bool {
        self.folder.path().join(folder).exists()
    }
}

impl Running<'_> {
    /// Number of deliveries with this outcome, from the worker's metrics.
    fn counted(&self, outcome: &str) -> u64 {
        let said = self.node.said();
        let mut lines = said.lines();
        let address = lines.find_map(|line| line.strip_prefix("admin http://"));
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

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(
            self.child.wait().unwrap().code(),
            Some(0),
            "{}",
            self.node.said()
        );
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn publish(url: &str, message: &Message) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let publisher = refrain_brokers::open_publisher(url).await.unwrap();
        publisher.publish("orders", message).await.unwrap();
    });
}

fn order() -> Message {
    Message::new("{}")
        .with_id("order-1")
        .with_header("authorization", "not to be passed on")
}

#[test]
fn nodes_share_the_store_that_the_environment_names() {
    let redis = PrivateRedis::start().unwrap();
    let url = redis.url();
    let target = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""));
    let worker = format!(
        "source = \"{url}\"\ndeliver = \"http://{}/\"",
        target.address
    );
    let first = Node::new(&worker).with("REFRAIN_STORE", &url);
    let second = Node::new(&worker);
    let file = second.file("store.txt", &format!("{url}\n"));
    let second = second.with("REFRAIN_STORE_FILE", file);
    for (node, outcome) in [(&first, "completed"), (&second, "duplicate")] {
        let running = node.start();
        publish(&url, &order());
        until(outcome, || running.counted(outcome) == 1);
        running.stop();
        assert!(
            node.said().contains(&format!("store {url}")),
            "{}",
            node.said()
        );
        assert!(!node.has("refrain-data"));
    }
    assert_eq!(target.count(), 1);
}

#[test]
fn tiers_and_admin_are_given_by_environment_and_by_flag() {
    for is_flag in [false, true] {
        let redis = PrivateRedis::start().unwrap();
        let (url, tiers) = (redis.url(), format!("{}, file:records", redis.url()));
        let target = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""));
        let worker = format!(
            "source = \"{url}\"\ndeliver = \"http://{}/\"",
            target.address
        );
        let (node, flags) = match is_flag {
            // Flags have precedence over variables.
            true => (
                Node::new(&worker)
                    .with("REFRAIN_STORE", "file:other")
                    .with("REFRAIN_ADMIN", "127.0.0.1:1"),
                vec!["--store", &tiers, "--admin", "127.0.0.1:0"],
            ),
            false => (
                Node::new(&worker)
                    .with("REFRAIN_STORE", &tiers)
                    .with("REFRAIN_ADMIN", "127.0.0.1:0"),
                vec![],
            ),
        };
        let running = node.start_with(&flags);
        publish(&url, &order());
        until("it is delivered", || running.counted("completed") == 1);
        running.stop();
        assert!(
            node.said().contains(&format!("store {url}, file:records")),
            "{}",
            node.said()
        );
        assert!(node.has("records") && !node.has("refrain-data") && !node.has("other"));
        if !is_flag {
            let checked = node.run(&["check", "--json"]);
            let checked: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
            assert_eq!(checked["store"], serde_json::json!([url, "file:records"]));
        }
    }
}

/// Exit code and output.
fn told(output: Output) -> (Option<i32>, String) {
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code(), said)
}

/// A worker did not start because of a missing secret that only another process uses.
#[test]
fn only_the_secrets_that_a_command_uses_are_needed() {
    let lacking = "source = \"redis://127.0.0.1:1\"\ndeliver = \"http://127.0.0.1:1/\"\n\
         [[worker]]\nname = \"mail\"\nqueue = \"q\"\ndeliver = \"http://h/\"\nsource_env = \"MAIL_SOURCE\"\n\
         authorization = { secret_env = \"MAIL_TOKEN\" }\n\
         [[worker]]\nname = \"post\"\nqueue = \"q\"\ndeliver = \"http://h/\"\nsource = \"redis://h\"\n\
         receipts_env = \"POST_RECEIPTS\"\nguarantee = \"exactly-once\"\n\
         [[relay]]\noutbox_env = \"SHOP_OUTBOX\"\nto_env = \"SHOP_TO\"\n\
         [[operation]]\nmatch = \"POST /hook\"\nwebhook = \"stripe\"\nsignature = { secret_env = \"HOOK_SECRET\" }\n";
    let node = Node::new(lacking);
    let all = [
        "MAIL_SOURCE",
        "MAIL_TOKEN",
        "POST_RECEIPTS",
        "SHOP_OUTBOX",
        "SHOP_TO",
        "HOOK_SECRET",
    ];
    let no_upstream = ["proxy", "--config", "refrain.toml", "--store", "memory:"];
    for (arguments, code, needed) in [
        (&["check"][..], 64, &all[..]),
        (&["work", "--store", "memory:"], 64, &all[..3]),
        (
            &["work", "--store", "memory:", "--worker", "mail"],
            64,
            &all[..2],
        ),
        // It starts up to the broker, which is not running.
        (
            &["work", "--store", "memory:", "--worker", "billing"],
            69,
            &[],
        ),
        (&["relay"], 64, &all[3..5]),
        (&no_upstream, 64, &all[5..]),
        // It finds the folder, which has no log yet.
        (&["audit", "head"], 64, &[]),
    ] {
        let (exit, said) = told(node.run(arguments));
        assert_eq!(exit, Some(code), "{arguments:?}: {said}");
        for variable in all {
            let is_named = said.contains(&format!("neither {variable} nor"));
            assert_eq!(
                is_named,
                needed.contains(&variable),
                "{arguments:?}: {said}"
            );
        }
    }
}

#[test]
fn the_secret_of_an_overridden_setting_is_not_read() {
    let node = Node::new("source = \"redis://127.0.0.1:1\"\ndeliver = \"http://127.0.0.1:1/\"");
    let path = node.folder.path().join("refrain.toml");
    let worker = fs::read_to_string(&path).unwrap();
    // A wrong value is an error even if it is overridden.
    for (line, is_wrong) in [
        ("store_env = \"NOT_SET\"", false),
        ("store_file = \"not-there\"", false),
        ("store = \"mysql://h\"", true),
        ("listen = \"127.0.0.1:8378\"", false),
    ] {
        fs::write(&path, format!("{line}\n{worker}")).unwrap();
        let (exit, said) = told(node.run(&["check"]));
        assert_eq!(exit, Some(64), "{line}: {said}");
        assert!(said.contains("refrain.toml:1:"), "{line}: {said}");
        let variables = [
            ("REFRAIN_STORE", "memory:"),
            ("REFRAIN_LISTEN", "127.0.0.1:0"),
        ];
        let checked = node.command(&["check"]).envs(variables).output();
        let (exit, said) = told(checked.unwrap());
        let expected = if is_wrong { 64 } else { 0 };
        assert_eq!(exit, Some(expected), "{line}: {said}");
        let listens = ("REFRAIN_LISTEN", "127.0.0.1:0");
        let flag = ["work", "--store", "memory:"];
        let worked = node.command(&flag).envs([listens]).output();
        let (exit, said) = told(worked.unwrap());
        let expected = if is_wrong { 64 } else { 69 };
        assert_eq!(exit, Some(expected), "{line}: {said}");
    }
}

#[test]
fn every_address_is_read_from_its_variable() {
    let node = Node::new(
        "source_env = \"A_SOURCE\"\ndeliver = \"http://h/\"\nreceipts_env = \"A_RECEIPTS\"\n\
         [[operation]]\nmatch = \"POST /pay\"\nreceipts_env = \"B_RECEIPTS\"\n\
         [[relay]]\noutbox_env = \"A_OUTBOX\"\nto_env = \"A_TO\"",
    );
    let path = node.folder.path().join("refrain.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("store_env = \"A_STORE\"\n{text}")).unwrap();
    let address = |name: &str| match name {
        "A_SOURCE" | "A_TO" => format!("amqp://{name}:canary@h"),
        _ => format!("postgres://{name}:canary@h/x"),
    };
    for is_file in [false, true] {
        let mut command = node.command(&["check", "--json"]);
        for name in [
            "A_STORE",
            "A_SOURCE",
            "A_RECEIPTS",
            "B_RECEIPTS",
            "A_OUTBOX",
            "A_TO",
        ] {
            match is_file {
                true => command.env(
                    format!("{name}_FILE"),
                    node.file(name, &format!("{}\n", address(name))),
                ),
                false => command.env(name, address(name)),
            };
        }
        let (exit, said) = told(command.output().unwrap());
        assert_eq!(exit, Some(0), "{said}");
        let checked: serde_json::Value = serde_json::from_str(&said).unwrap();
        for (place, name) in [
            ("/store/0", "A_STORE"),
            ("/workers/0/source", "A_SOURCE"),
            ("/workers/0/receipts", "A_RECEIPTS"),
            ("/operations/0/receipts", "B_RECEIPTS"),
            ("/relays/0/outbox", "A_OUTBOX"),
            ("/relays/0/to", "A_TO"),
        ] {
            let hidden = address(name).replace("canary", "***");
            let shown = checked.pointer(place).and_then(|it| it.as_str());
            assert_eq!(shown, Some(&*hidden), "{place}: {said}");
        }
    }
}

#[test]
fn an_unreadable_file_with_a_value_is_reported_with_the_fix() {
    let node = Node::new("source = \"redis://h\"\ndeliver = \"http://h/\"")
        .with("REFRAIN_STORE_FILE", "not-there");
    let (exit, said) = told(node.run(&["check"]));
    assert_eq!(exit, Some(64), "{said}");
    for words in [
        "REFRAIN_STORE_FILE names not-there",
        "check the path and its permissions",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn secrets_come_from_environment_and_files_and_are_not_shown() {
    let redis = PrivateRedis::start().unwrap();
    let url = redis.url();
    let target = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""));
    let worker = format!(
        "source_env = \"BILLING_SOURCE\"\ndeliver = \"http://{}/?token=canary\"\n\
         authorization = {{ scheme = \"bearer\", secret_env = \"BILLING_TOKEN\" }}",
        target.address
    );
    let node = Node::new(&worker);
    let missing = node.run(&["work"]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(missing.status.code(), Some(64), "{said}");
    assert!(
        said.contains("neither BILLING_SOURCE nor BILLING_SOURCE_FILE"),
        "{said}"
    );
    assert!(
        !node.has("refrain-data"),
        "created before the configuration was valid"
    );

    let token = node.file("token.txt", "canary\n");
    let node = node
        .with("BILLING_SOURCE", &url)
        .with("BILLING_TOKEN_FILE", token);
    let running = node.start();
    publish(&url, &order());
    until("it is delivered", || running.counted("completed") == 1);
    running.stop();
    let seen = target.seen();
    assert_eq!(seen[0].header("authorization"), Some("Bearer canary"));
    assert_eq!(seen[0].start(), "POST /?token=canary");
    for arguments in [&["check"][..], &["check", "--json"]] {
        let output = node.run(arguments);
        let shown = String::from_utf8(output.stdout).unwrap() + &node.said();
        assert_eq!(output.status.code(), Some(0), "{shown}");
        assert!(!shown.contains("canary"), "{shown}");
    }
}

#[test]
fn dead_letters_are_listed_and_stay_where_they_are() {
    let redis = PrivateRedis::start().unwrap();
    let url = redis.url();
    let target = Upstream::start(|_, stream| answer(stream, "422 No", &[], b"no such customer"));
    let worker = format!(
        "source = \"{url}\"\ndeliver = \"http://{}/\"",
        target.address
    );
    let node = Node::new(&worker);
    let running = node.start();
    publish(&url, &order());
    until("the message is dead-lettered", || {
        running.counted("dead-lettered") == 1
    });
    // Beside a worker that holds the store, and repeatedly.
    for _ in 0..2 {
        let listed = node.run(&["work", "--dead-letters", "--json"]);
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        let billing = &listed["workers"]["billing"];
        assert_eq!(billing["queue"], "dead");
        assert_eq!(billing["are_all"], true);
        assert_eq!(billing["letters"].as_array().unwrap().len(), 1, "{listed}");
        let letter = &billing["letters"][0];
        assert_eq!(letter["reason"], "rejected");
        assert_eq!(letter["attempts"], 1);
        assert_eq!(letter["payload_bytes"], 2);
        assert_eq!(letter["key_digest"].as_str().unwrap().len(), 16);
        assert_eq!(letter["record"].as_str().unwrap().len(), 32);
        assert!(letter["time"].as_str().unwrap().ends_with('Z'), "{letter}");
        assert!(!listed.to_string().contains("order-1"), "{listed}");
    }
    let shown = node.run(&["work", "--dead-letters"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("1 dead letter in dead"), "{shown}");
    assert!(shown.contains("rejected, 1 attempts"), "{shown}");
    running.stop();
    let redriven = node.run(&["work", "--redrive"]);
    assert_eq!(redriven.status.code(), Some(0));
    let shown = node.run(&["work", "--dead-letters"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("0 dead letters in dead"), "{shown}");
    let none = Path::new("refrain-data/audit/redrive");
    assert!(node.folder.path().join(none).exists());
}

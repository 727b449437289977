//! A relay that dies between publishing and marking publishes again: the duplicates must have no effect, and messages
//! must stay in order.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Engine, Outcome,
    consume::{Backlog, Consumer, Count, Message, Outbox as _, Source},
    store,
};
use refrain_stores::postgres::{Outbox, PostgresOutbox, outbox};
#[cfg(feature = "nats")]
use refrain_testkit::servers::PrivateNats;
use refrain_testkit::{servers::PrivateRedis, wait};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, NoTls};

/// A new schema with an outbox on the test server, and a queue as the broker.
struct Stage {
    folder: tempfile::TempDir,
    schema: String,
    url: String,
    client: Client,
}

impl Stage {
    async fn open() -> Self {
        let server = refrain_testkit::servers::postgres_url();
        let schema = format!("refrain_relay_{}_{}", std::process::id(), next());
        let mark = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{mark}schema={schema}");
        let (client, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
        tokio::spawn(connection);
        let make = format!("CREATE SCHEMA {schema}");
        client.batch_execute(&make).await.unwrap();
        outbox::migrate(&url).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let stage = Self {
            folder,
            schema,
            url,
            client,
        };
        stage.write(&stage.url);
        stage
    }

    /// Writes a refrain.toml with this broker.
    fn write(&self, to: &str) {
        let text = format!(
            "[[relay]]\nname = \"shop\"\noutbox = \"{}\"\nto = \"{to}\"\nlease = \"1s\"\npoll = \"100ms\"\nin_flight_max = 4\n",
            self.url
        );
        fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("refrain.toml")
    }

    fn relay(&self, args: &[&str]) -> Child {
        let mut command = refrain(&["relay", "--config"]);
        command.arg(self.config()).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Starts a relay and waits until it works; returns its remaining output, too.
    fn relay_at_work(&self) -> (Child, BufReader<ChildStdout>) {
        let mut relay = self.relay(&[]);
        let (mut output, mut told) = (BufReader::new(relay.stdout.take().unwrap()), String::new());
        while !told.contains("relay shop:") {
            assert_ne!(output.read_line(&mut told).unwrap(), 0, "{told}");
        }
        (relay, output)
    }

    /// Appends messages in one transaction.
    async fn append(&mut self, messages: &[(String, usize)]) {
        let transaction = self.client.transaction().await.unwrap();
        let outbox = Outbox::in_schema(&self.schema);
        for (group, number) in messages {
            let message = Message::new(format!("{group}-{number}")).with_group(group);
            let appended = outbox.append(&transaction, "orders", &message).await;
            appended.unwrap();
        }
        transaction.commit().await.unwrap();
    }

    async fn backlog(&self) -> Backlog {
        let outbox = PostgresOutbox::open(&self.url).await.unwrap();
        outbox.backlog().await.unwrap()
    }

    async fn close(self) {
        let drop_schema = format!("DROP SCHEMA {} CASCADE", self.schema);
        self.client.batch_execute(&drop_schema).await.unwrap();
    }
}

fn next() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

fn refrain(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    for variable in ["REFRAIN_OUTBOX", "REFRAIN_TO"] {
        command
            .env_remove(variable)
            .env_remove(format!("{variable}_FILE"));
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Exit code, stdout and stderr.
fn ended(mut child: Child) -> (i32, String, String) {
    let status = child.wait().unwrap();
    let (mut told, mut said) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut told)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    (status.code().unwrap_or(-1), told, said)
}

fn tell(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[tokio::test]
async fn relay_publishes_existing_messages_once_and_reports_them() {
    let mut stage = Stage::open().await;
    let messages: Vec<_> = (0..20).map(|number| ("g".into(), number)).collect();
    stage.append(&messages).await;
    let (code, told, said) = ended(stage.relay(&["--once", "--json"]));
    assert_eq!((code, said.as_str()), (0, ""), "{told}");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let shop = &told["relays"]["shop"];
    assert_eq!(
        (shop["published"].as_u64(), shop["waiting"].as_u64()),
        (Some(20), Some(0)),
        "{told}"
    );
    let (code, told, _) = ended(stage.relay(&["--once"]));
    assert!(code == 0 && told.contains("shop: 0 published"), "{told}");
    let (code, told, _) = ended(stage.relay(&["--refused"]));
    assert!(code == 0 && told.contains("0 refused"), "{told}");
    let (code, told, _) = ended(stage.relay(&["--redrive", "--json"]));
    assert!(code == 0 && told.contains("\"shop\":0"), "{told}");
    let queued = format!("SELECT count(*) FROM {}.refrain_queue", stage.schema);
    let queued: i64 = stage.client.query_one(&queued, &[]).await.unwrap().get(0);
    assert_eq!(queued, 20);
    stage.close().await;
}

/// REFRAIN_TO was ignored, and the relay used the address in the file.
#[tokio::test]
async fn flags_go_before_the_environment_and_that_before_the_file() {
    let mut stage = Stage::open().await;
    let (url, nowhere) = (stage.url.clone(), "redis://127.0.0.1:1");
    let held = stage.folder.path().join("to.txt");
    fs::write(&held, format!("{url}\n")).unwrap();
    let held = held.to_str().unwrap().to_owned();
    let unset = "[[relay]]\nname = \"other\"\noutbox_env = \"NOT_SET\"\nto_env = \"NOT_SET\"\n";
    let shop = |outbox: &str, to: &str| {
        format!("store_env = \"NOT_SET\"\n[[relay]]\nname = \"shop\"\n{outbox}\n{to}\n{unset}")
    };
    let by_variable = shop("outbox_env = \"SHOP_OUTBOX\"", "to_env = \"SHOP_TO\"");
    let by_text = shop(
        &format!("outbox = \"{url}\""),
        &format!("to = \"{nowhere}\""),
    );
    let one = ["--relay", "shop"];
    let flags = ["--relay", "shop", "--to", &url];
    for (number, (file, args, variables)) in [
        // No file: the environment names both.
        (
            None,
            &[][..],
            vec![("REFRAIN_OUTBOX", &*url), ("REFRAIN_TO", &url)],
        ),
        // The file in the folder, with addresses in variables, and without the secrets of other sections.
        (
            Some(&by_variable),
            &one,
            vec![("SHOP_OUTBOX", &*url), ("SHOP_TO_FILE", &held)],
        ),
        (Some(&by_text), &one, vec![("REFRAIN_TO", &*url)]),
        (
            Some(&by_variable),
            &one,
            vec![("SHOP_OUTBOX", &*url), ("REFRAIN_TO_FILE", &held)],
        ),
        (Some(&by_text), &flags, vec![("REFRAIN_TO", nowhere)]),
    ]
    .into_iter()
    .enumerate()
    {
        match file {
            Some(text) => fs::write(stage.config(), text).unwrap(),
            None => fs::remove_file(stage.config()).unwrap(),
        }
        stage.append(&[("a".into(), number)]).await;
        let mut command = refrain(&["relay", "--once"]);
        command
            .args(args)
            .envs(variables)
            .current_dir(&stage.folder);
        let output = command.output().unwrap();
        let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{number}: {told}");
        assert!(told.contains("1 published"), "{number}: {told}");
    }
    let mut several = refrain(&["relay", "--once"]);
    let variables = [("REFRAIN_TO", &url), ("NOT_SET", &url)];
    several.envs(variables).current_dir(&stage.folder);
    let output = several.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("select one with --relay NAME"), "{said}");
    stage.close().await;
}

#[tokio::test]
async fn a_running_relay_names_the_file_that_it_read() {
    let stage = Stage::open().await;
    let mut command = refrain(&["relay"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.current_dir(&stage.folder).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert_eq!(line, "settings from refrain.toml");
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("relay shop: from the outbox at"), "{line}");
    tell(&child, Signal::TERM);
    assert_eq!(ended(child).0, 0);
    stage.close().await;
}

#[tokio::test]
async fn rejected_messages_are_shown_and_fail_the_command() {
    let mut stage = Stage::open().await;
    stage.append(&[("g".into(), 0), ("h".into(), 0)]).await;
    let refuse = format!(
        "UPDATE {}.refrain_outbox SET state = 1, error = 'too large' WHERE group_key = 'g'",
        stage.schema
    );
    stage.client.batch_execute(&refuse).await.unwrap();
    let (code, told, _) = ended(stage.relay(&["--once", "--json"]));
    assert!(
        code == 1 && told.contains("\"waiting_for_a_person\":1"),
        "{told}"
    );
    let (code, told, _) = ended(stage.relay(&["--refused"]));
    assert!(
        code == 1 && told.contains("group g, which is on hold") && told.contains("too large"),
        "{told}"
    );
    let (code, told, _) = ended(stage.relay(&["--redrive"]));
    assert!(
        code == 0 && told.contains("1 marked for another attempt"),
        "{told}"
    );
    let (code, told, _) = ended(stage.relay(&["--once"]));
    assert!(code == 0 && told.contains("1 published"), "{told}");
    stage.close().await;
}

#[tokio::test]
async fn relay_failures_are_explained() {
    let stage = Stage::open().await;
    let config = stage.config();
    let config = config.to_str().unwrap();
    for (args, want, words) in [
        (&["relay"][..], 64, "--outbox postgres://"),
        (
            &["relay", "--outbox", "postgres://app:hunter2@db/app"],
            64,
            "--to redis://",
        ),
        (
            &[
                "relay",
                "--outbox",
                "mysql://app:hunter2@db/app",
                "--to",
                "nats://n",
            ],
            64,
            "write postgres://USER@HOST/DATABASE",
        ),
        (
            &[
                "relay",
                "--outbox",
                "postgres://app:hunter2@db/app",
                "--to",
                "nat://n",
            ],
            64,
            "did you mean `nats://`?",
        ),
        (
            &[
                "relay",
                "--outbox",
                "postgres://app:hunter2@127.0.0.1:1/app",
                "--to",
                "redis://127.0.0.1",
            ],
            69,
            "check host and port",
        ),
        (
            &["relay", "--config", config, "--relay", "shopp"],
            64,
            "it has shop",
        ),
        (
            &["relay", "--config", config, "--to", "nat://n"],
            64,
            "did you mean `nats://`?",
        ),
        (&["relay", "--config", "nowhere.toml"], 64, "nowhere.toml"),
    ] {
        let output = refrain(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(want), "{args:?}: {said}");
        assert!(
            said.contains(words) && !said.contains("hunter2"),
            "{args:?}: {said}"
        );
    }
    stage.write("redis://127.0.0.1:1");
    let (code, _, said) = ended(stage.relay(&["--once"]));
    assert_eq!(code, 69, "{said}");
    let bare = refrain(&["migrate", "--outbox", "--print"])
        .output()
        .unwrap();
    let script = String::from_utf8(bare.stdout).unwrap();
    assert!(
        script.contains("EXISTS refrain_outbox (") && !script.contains("__"),
        "{script}"
    );
    stage.close().await;
}

/// Messages that took effect at the consumer, in order.
type Ledger = Arc<Mutex<Vec<String>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_between_publish_and_mark_does_no_harm() {
    let stage = Stage::open().await;
    let broker = stage.url.clone();
    check_killed(stage, &broker, 16).await;
}

/// A broker that delivers the messages of a group concurrently: only a consumer of one at a time sees their order.
#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_to_nats_that_is_killed_between_publish_and_mark_does_no_harm() {
    let nats = PrivateNats::start().unwrap();
    check_killed(Stage::open().await, &nats.url(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_to_redis_that_is_killed_between_publish_and_mark_does_no_harm() {
    let redis = PrivateRedis::start().unwrap();
    check_killed(Stage::open().await, &redis.url(), 1).await;
}

/// Kills relays to this broker; checks that a consumer of `in_flight_max` messages sees each once, groups in order.
async fn check_killed(mut stage: Stage, broker: &str, in_flight_max: usize) {
    const GROUPS: usize = 8;
    /// Messages of one group that are appended before each kill.
    const EACH: usize = 5;
    const KILLS: usize = 12;
    /// Minimum number of kills that hit a relay at work; with fewer the test proves too little.
    const HITS_MIN: usize = 3;
    const KILLS_MAX: usize = 100;
    stage.write(broker);
    let ledger = Ledger::default();
    let mut source = Source::new(broker, "orders", "billing");
    source.ack_wait = Duration::from_secs(5);
    let queue = refrain_brokers::open(&source).await.unwrap();
    let consumer = Consumer::new(queue, Engine::new(store::Memory::new()), "billing")
        .with_in_flight_max(in_flight_max);
    let (written, tally) = (ledger.clone(), consumer.tally());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let consuming = tokio::spawn(consumer.run(
        move |job| {
            let body = String::from_utf8(job.message.payload.to_vec()).unwrap();
            written.lock().unwrap().push(body);
            async { Ok(Outcome::new(0, "")) }
        },
        async { drop(stopped.await) },
    ));
    let mut relays = vec![stage.relay_at_work(), stage.relay_at_work()];
    let (mut kills, mut in_the_middle) = (0, 0);
    // Whether a kill hits depends on the machine: a fast one gets more kills.
    while kills < KILLS || in_the_middle < HITS_MIN && kills < KILLS_MAX {
        let numbers = kills * EACH..(kills + 1) * EACH;
        let some: Vec<_> = numbers
            .flat_map(|number| (0..GROUPS).map(move |group| (format!("g{group}"), number)))
            .collect();
        stage.append(&some).await;
        let pause = u64::from(rand::random::<u8>() % 16);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let (mut dead, _) = relays.remove(0);
        dead.kill().unwrap();
        dead.wait().unwrap();
        in_the_middle += usize::from(stage.backlog().await.waiting > 0);
        relays.push(stage.relay_at_work());
        kills += 1;
    }
    let each = kills * EACH;
    let effects = || ledger.lock().unwrap().len();
    wait::until_counted("all took effect", effects, GROUPS * each).await;
    wait::until("none is left", async || stage.backlog().await.waiting == 0).await;
    for (mut relay, mut output) in relays {
        let mut told = String::new();
        tell(&relay, Signal::TERM);
        output.read_to_string(&mut told).unwrap();
        assert_eq!(relay.wait().unwrap().code(), Some(0), "{told}");
        assert!(told.contains("stopping"), "{told}");
    }
    drop(stop);
    consuming.await.unwrap().unwrap();
    let ledger = ledger.lock().unwrap().clone();
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for body in &ledger {
        let (group, number) = body.rsplit_once('-').unwrap();
        groups
            .entry(group.into())
            .or_default()
            .push(number.parse().unwrap());
    }
    let wanted: Vec<usize> = (0..each).collect();
    assert_eq!(groups.len(), GROUPS);
    for (group, numbers) in groups {
        assert_eq!(numbers, wanted, "{group}: not each once and in order");
    }
    assert!(
        in_the_middle >= HITS_MIN,
        "{in_the_middle} of {kills} kills hit a relay at work: too few to prove anything"
    );
    println!("{} duplicates had no effect", tally.get(Count::Duplicate));
    stage.close().await;
}

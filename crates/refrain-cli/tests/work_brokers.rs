//! `refrain work` with real brokers: a bad certificate must be named, `--redrive` must distinguish "no dead
//! letters" from "broker unreachable" (NATS and RabbitMQ over TLS), and SQS and Kafka must deliver.

#![cfg(all(feature = "nats", feature = "amqp"))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "../../refrain-brokers/tests/support/pki.rs"]
mod pki;
mod support;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pki::Pki;
use refrain::consume::{Message, Source};
use refrain_testkit::servers::{PrivateNats, PrivateRabbit, free_port};
use rustix::process::{Pid, Signal, kill_process};
#[cfg(feature = "sqs")]
use support::request;
use support::{PATIENCE, Upstream, answer, call, request_to, until};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A folder with a `refrain.toml` and an embedded store.
struct Site {
    folder: TempDir,
    runtime: Runtime,
    source: String,
}

impl Site {
    fn new(source: String) -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            runtime: Runtime::new().unwrap(),
            source,
        }
    }

    fn write(&self, target: SocketAddr, queue: &str) {
        let source = &self.source;
        let text = format!(
            "store = \"file:records\"\n[proxy]\ndrain = \"5s\"\n[[worker]]\nname = \"billing\"\nsource = \"{source}\"\nqueue = \"{queue}\"\n\
             deliver = \"http://{target}/events\"\nbackoff = \"20ms\"\nbackoff_max = \"200ms\"\nlease = \"8s\"\ndead_letter = \"dead\"\n\
             redelivery = \"1d\"\n"
        );
        fs::write(self.folder.path().join("refrain.toml"), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        command.arg("work").args(arguments);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    fn start(&self) -> Worker {
        let file = |name: &str| fs::File::create(self.folder.path().join(name)).unwrap();
        let child = self
            .command(&["--log", "info", "--admin", "127.0.0.1:0"])
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn();
        Worker(child.unwrap())
    }

    /// Runs the command; returns its exit code and its output.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command(arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    fn publish(&self, destination: &str, text: &str) {
        self.runtime.block_on(async {
            let publisher = refrain_brokers::open_publisher(&self.source).await.unwrap();
            let message = Message::new(text.to_owned()).with_id(text);
            publisher.publish(destination, &message).await.unwrap();
        });
    }

    /// Runs `check` while a dead letter is held, as by a redrive that was killed; then returns the letter.
    fn while_held(&self, queue: &str, check: impl FnOnce()) {
        let source = Source::new(&self.source, queue, "billing-redrive");
        let (dead, held) = self.runtime.block_on(async {
            let dead = refrain_brokers::open(&source).await.unwrap();
            let held = dead.pull(1, PATIENCE).await.unwrap().pop().unwrap();
            (dead, held)
        });
        check();
        self.runtime.block_on(async {
            held.ticket.nack(Duration::ZERO).await.unwrap();
            dead.close().await.unwrap();
        });
    }

    /// The worker's admin address, once it is printed.
    fn admin(&self) -> Option<SocketAddr> {
        let said = self.said();
        let mut lines = said.lines();
        let address = lines.find_map(|line| line.strip_prefix("admin http://"));
        address.and_then(|text| text.parse().ok())
    }

    fn is_ready(&self) -> bool {
        let admin = self.admin();
        admin.is_some_and(|address| call(address, request_to(address, "GET /readyz")).status == 200)
    }

    /// Number of deliveries with this outcome, from the worker's metrics.
    fn counted(&self, outcome: &str) -> u64 {
        let Some(address) = self.admin() else {
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

/// Checks that a worker starts, works, idles and stops without logging an error.
fn works_quietly(source: String) {
    let site = Site::new(source);
    let target = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""));
    site.write(target.address, "orders");
    let mut worker = site.start();
    // The first message comes after the worker has looked for its queue, which does not exist yet.
    until("the worker is ready", || site.is_ready());
    for number in 1..=3 {
        site.publish("orders", &format!("order-{number}"));
        until("it is delivered", || target.count() == number);
    }
    assert_eq!(worker.terminate(), Some(0), "{}", site.said());
    let said = site.said();
    assert!(said.contains("3 completed"), "{said}");
    assert!(!said.contains("ERROR"), "{said}");
}

/// Checks that two messages with the same id are delivered once.
#[cfg(any(feature = "sqs", feature = "kafka"))]
fn delivers_once(source: String) {
    let site = Site::new(source);
    let target = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""));
    site.write(target.address, "orders");
    for _ in 0..2 {
        site.publish("orders", "order-1");
    }
    let mut worker = site.start();
    until("both are handled", || {
        site.counted("completed") == 1 && site.counted("duplicate") == 1
    });
    assert_eq!(worker.terminate(), Some(0), "{}", site.said());
    assert_eq!(target.count(), 1, "{}", site.said());
}

#[cfg(feature = "sqs")]
#[test]
fn equal_messages_on_sqs_are_delivered_once() {
    let server = refrain_testkit::servers::PrivateSqs::start().unwrap();
    let address = server.endpoint();
    let address = address.strip_prefix("http://").unwrap().parse().unwrap();
    for queue in ["orders", "dead"] {
        let body = format!("{{\"QueueName\":\"{queue}\"}}");
        let made = call(
            address,
            request(
                "POST /",
                &[
                    ("Content-Type", "application/x-amz-json-1.0"),
                    ("X-Amz-Target", "AmazonSQS.CreateQueue"),
                    (
                        "Authorization",
                        "AWS4-HMAC-SHA256 Credential=key/20260101/eu-central-1/sqs/aws4_request, SignedHeaders=host, Signature=0",
                    ),
                ],
                body.as_bytes(),
            ),
        );
        assert_eq!(made.status, 200, "{}", made.text());
    }
    delivers_once(server.url());
}

#[cfg(feature = "kafka")]
#[test]
fn equal_messages_on_kafka_are_delivered_once() {
    let cluster = rdkafka::mocking::MockCluster::new(1).unwrap();
    for topic in ["orders", "dead"] {
        cluster.create_topic(topic, 1, 1).unwrap();
    }
    delivers_once(format!("kafka://{}", cluster.bootstrap_servers()));
}

/// Checks that the worker does not start, and says why.
fn refuses(source: String) {
    let site = Site::new(source);
    site.write("127.0.0.1:1".parse().unwrap(), "orders");
    let (code, said) = site.run(&[]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("certificate"), "{said}");
    assert!(
        !said.contains("check the address, and that the server is running"),
        "{said}"
    );
}

#[test]
fn nats_over_tls_is_worked_without_an_error_in_the_log() {
    let (pki, other) = (Pki::new(), Pki::new());
    let tls = format!(
        "{{ cert_file: {:?}, key_file: {:?} }}",
        pki.path("server.pem"),
        pki.path("server.key")
    );
    let server = PrivateNats::start_with(&[("tls", &tls)]).unwrap();
    let url = |pki: &Pki| {
        let (port, ca) = (server.port(), pki.show("ca.pem"));
        format!("nats+tls://127.0.0.1:{port}?ca={ca}")
    };
    works_quietly(url(&pki));
    refuses(url(&other));
}

#[test]
fn rabbitmq_over_tls_is_worked_without_an_error_in_the_log() {
    let (pki, other) = (Pki::new(), Pki::new());
    let port = free_port().unwrap();
    let listener = format!("127.0.0.1:{port}");
    let files = ["ca.pem", "server.pem", "server.key"].map(|name| pki.show(name));
    let _server = PrivateRabbit::start_with(&[
        ("listeners.ssl.default", &*listener),
        ("ssl_options.cacertfile", &*files[0]),
        ("ssl_options.certfile", &*files[1]),
        ("ssl_options.keyfile", &*files[2]),
    ])
    .unwrap();
    let url = |pki: &Pki| {
        let ca = pki.show("ca.pem");
        format!("amqps://guest:guest@localhost:{port}/%2f?ca={ca}")
    };
    works_quietly(url(&pki));
    refuses(url(&other));
}

/// Creates a stream with JetStream's own requests, as an operator would.
fn make_stream(server: &PrivateNats, name: &str, subjects: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = format!("{{\"name\":\"{name}\",\"subjects\":[\"{subjects}\"]}}");
    let length = body.len();
    write!(
        stream,
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB $JS.API.STREAM.CREATE.{name} answer {length}\r\n{body}\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let told = lines.find(|line| line.contains("stream_create_response"));
    assert!(told.unwrap().contains("\"config\""));
}

/// The stream has many subjects, and a redriven letter returns to its own.
#[test]
fn redrive_distinguishes_letters_no_letters_and_an_unreachable_broker() {
    for queue in ["ORDERS", "orders.>"] {
        let mut server = PrivateNats::start().unwrap();
        make_stream(&server, "ORDERS", "orders.>");
        let site = Site::new(server.url());
        let refuses = Arc::new(AtomicBool::new(true));
        let target = {
            let refuses = refuses.clone();
            Upstream::start(move |_, stream| match refuses.load(Ordering::SeqCst) {
                true => answer(stream, "422 Unprocessable", &[], b""),
                false => answer(stream, "200 OK", &[], b""),
            })
        };
        site.write(target.address, queue);
        let (code, said) = site.run(&["--redrive"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("no dead letters in dead"), "{said}");

        let mut worker = site.start();
        site.publish("orders.eu", "order-1");
        until("it is a dead letter", || {
            site.said()
                .contains("a message was sent to the dead letters")
        });
        assert_eq!(worker.terminate(), Some(0), "{}", site.said());
        site.while_held("dead", || {
            let (code, said) = site.run(&["--redrive"]);
            assert_eq!(code, Some(69), "{said}");
            assert!(said.contains("another redrive"), "{said}");
            assert!(!said.contains("no dead letters"), "{said}");
        });
        let (code, said) = site.run(&["--redrive"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("1 redriven"), "{said}");

        refuses.store(false, Ordering::SeqCst);
        let before = target.count();
        let mut worker = site.start();
        until("it is delivered again", || target.count() > before);
        assert_eq!(worker.terminate(), Some(0), "{}", site.said());
        let seen = target.seen();
        let subject = seen.last().unwrap().header("refrain-subject");
        assert_eq!(subject, Some("orders.eu"), "{queue}");

        server.kill().unwrap();
        let (code, said) = site.run(&["--redrive"]);
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains("cannot read all dead letters"), "{said}");
        assert!(!said.contains("no dead letters"), "{said}");
    }
}

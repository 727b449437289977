//! A crash test is only as good as its server: a server that was not really killed, or restarted empty,
//! proves nothing. And repeated test runs must not leave servers and folders behind.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use refrain_servers::{PrivateNats, PrivatePostgres, PrivateRabbit, PrivateRedis};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a paused server must not answer.
const SILENCE: Duration = Duration::from_secs(1);

/// Number of processes whose working directory is in a folder.
fn processes_in(folder: &Path) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let folders = entries.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok());
    folders.filter(|cwd| cwd.starts_with(folder)).count()
}

/// The answer of Redis to one command.
fn redis(port: u16, command: &str) -> String {
    redis_within(PATIENCE, port, command)
}

/// Like [`redis`]; empty if no answer arrives within `patience`.
fn redis_within(patience: Duration, port: u16, command: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream
        .write_all(format!("{command}\r\n").as_bytes())
        .unwrap();
    let mut answer = [0; 256];
    let len = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

/// What NATS sends in answer to some protocol lines, including its greeting, up to the `end` that is waited for.
fn nats(port: u16, lines: &str, end: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(lines.as_bytes()).unwrap();
    let (mut answer, mut part) = (String::new(), [0; 4096]);
    while !answer.contains(end) {
        let len = stream.read(&mut part).unwrap_or(0);
        assert!(len > 0, "`{end}` does not come: {answer}");
        answer += &String::from_utf8_lossy(&part[..len]);
    }
    answer
}

/// The greeting of NATS, which is one line.
fn nats_greeting(port: u16) -> String {
    nats(port, "", "\r\n")
}

/// Sends a JetStream request, and waits until the response contains `wanted`.
fn jetstream(port: u16, subject: &str, body: &str, wanted: &str) {
    let len = body.len();
    let lines = format!("CONNECT {{}}\r\nSUB answer 1\r\nPUB {subject} answer {len}\r\n{body}\r\n");
    nats(port, &lines, wanted);
}

/// Whether RabbitMQ answers the protocol header within `patience`.
fn rabbit_answers(port: u16, patience: Duration) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    stream.read_exact(&mut [0]).is_ok()
}

/// Whether PostgreSQL answers an SSLRequest message within `patience`, with yes or no.
fn postgres_answers(port: u16, patience: Duration) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
    stream.read_exact(&mut [0]).is_ok()
}

fn file_of(server: &PrivatePostgres) -> PathBuf {
    server.data_folder().join("PG_VERSION")
}

#[test]
fn a_redis_that_is_killed_comes_back_with_what_it_acknowledged() {
    let mut server = PrivateRedis::start().unwrap();
    assert_eq!(redis(server.port(), "SET a b"), "+OK\r\n");
    server.kill().unwrap();
    assert!(!server.is_running());
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    server.restart().unwrap();
    assert_eq!(redis(server.port(), "GET a"), "$1\r\nb\r\n");
}

#[test]
fn a_redis_takes_the_settings_of_the_test() {
    let settings = [
        ("appendfsync", "everysec"),
        ("maxmemory-policy", "allkeys-lru"),
    ];
    let mut server = PrivateRedis::start_with(&settings).unwrap();
    let everysec = redis(server.port(), "CONFIG GET appendfsync");
    assert!(everysec.contains("everysec"), "{everysec}");
    server.restart_with(&[("requirepass", "open")]).unwrap();
    assert!(redis(server.port(), "PING").starts_with("-NOAUTH"));
}

#[test]
fn a_server_that_is_paused_answers_when_it_goes_on() {
    let server = PrivateRedis::start().unwrap();
    server.pause().unwrap();
    assert_eq!(redis_within(SILENCE, server.port(), "PING"), "");
    server.resume().unwrap();
    assert_eq!(redis(server.port(), "PING"), "+PONG\r\n");
}

#[test]
fn a_postgres_is_killed_restarted_and_paused_with_all_its_processes() {
    let mut server = PrivatePostgres::start_with(&[("log_checkpoints", "on")]).unwrap();
    let folder = server.data_folder();
    assert!(postgres_answers(server.port(), PATIENCE));
    assert!(processes_in(&folder) > 1);
    server.kill().unwrap();
    assert_eq!(processes_in(&folder), 0);
    server.restart().unwrap();
    assert!(
        server.log().contains("automatic recovery"),
        "{}",
        server.log()
    );
    server.pause().unwrap();
    assert!(!postgres_answers(server.port(), SILENCE));
    server.resume().unwrap();
    assert!(postgres_answers(server.port(), PATIENCE));
    server.restart_with(&[]).unwrap();
    assert!(server.log().contains("database system is shut down"));
}

#[test]
fn a_nats_that_is_killed_comes_back_with_its_streams() {
    let mut server = PrivateNats::start().unwrap();
    let stream = r#"{"name":"S","subjects":["s"],"retention":"limits","storage":"file"}"#;
    let create = "$JS.API.STREAM.CREATE.S";
    jetstream(server.port(), create, stream, "stream_create_response");
    jetstream(server.port(), "s", "hello", r#""seq":1"#);
    server.kill().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    server.restart().unwrap();
    jetstream(server.port(), "s", "hello", r#""seq":2"#);
}

#[test]
fn a_nats_takes_the_settings_of_the_test() {
    let mut server = PrivateNats::start_with(&[("jetstream", "disabled")]).unwrap();
    assert!(!nats_greeting(server.port()).contains(r#""jetstream":true"#));
    let users = "{ user: app, password: secret }";
    server.restart_with(&[("authorization", users)]).unwrap();
    let greeting = nats_greeting(server.port());
    assert!(greeting.contains(r#""jetstream":true"#), "{greeting}");
    assert!(greeting.contains(r#""auth_required":true"#), "{greeting}");
}

#[test]
fn a_rabbitmq_is_killed_restarted_paused_and_dropped_with_all_its_processes() {
    let mut server = PrivateRabbit::start_with(&[("heartbeat", "7")]).unwrap();
    let folder = server.data_folder();
    assert!(rabbit_answers(server.port(), PATIENCE));
    // The server, `epmd`, and the helper processes of both.
    assert!(processes_in(&folder) > 2);
    server.kill().unwrap();
    assert_eq!(processes_in(&folder), 0);
    assert!(!rabbit_answers(server.port(), SILENCE));
    server.restart().unwrap();
    server.pause().unwrap();
    assert!(!rabbit_answers(server.port(), SILENCE));
    server.resume().unwrap();
    assert!(rabbit_answers(server.port(), PATIENCE));
    server.stop().unwrap();
    assert_eq!(processes_in(&folder), 0);
    assert!(server.log().contains("SIGTERM received"));
    server.restart().unwrap();
    drop(server);
    assert_eq!(processes_in(&folder), 0);
    assert!(!folder.exists());
}

#[test]
fn a_server_that_is_dropped_leaves_nothing_even_if_it_is_paused() {
    let server = PrivatePostgres::start().unwrap();
    let (folder, file) = (server.data_folder(), file_of(&server));
    assert!(file.exists());
    server.pause().unwrap();
    drop(server);
    assert_eq!(processes_in(&folder), 0);
    assert!(!folder.parent().unwrap().exists());
}

#[test]
fn settings_that_no_server_takes_are_named_with_the_log() {
    let error = PrivatePostgres::start_with(&[("no_such_setting", "1")]).unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
    let error = PrivateRedis::start_with(&[("no-such-setting", "1")]).unwrap_err();
    assert!(error.to_string().contains("no-such-setting"), "{error}");
    let error = PrivateNats::start_with(&[("no_such_setting", "1")]).unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
    let error = PrivateRabbit::start_with(&[("no.such.setting", "1")]).unwrap_err();
    // The setting's name is too far up in Erlang's report, so the message does not contain it.
    assert!(error.to_string().contains("configuration"), "{error}");
}

/// Runs only in the child process of the test below: prints its server's folder, and waits to be killed.
#[test]
fn child_that_holds_a_server_until_it_is_killed() {
    if std::env::var_os("REFRAIN_HOLD_A_SERVER").is_some() {
        let server = PrivatePostgres::start().unwrap();
        println!("folder {}", server.data_folder().display());
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn a_process_that_is_killed_leaves_no_server_behind() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_that_holds_a_server", "--nocapture"])
        .env("REFRAIN_HOLD_A_SERVER", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(output).map_while(Result::ok);
    let folder = lines.find_map(|line| Some(line.split_once("folder ")?.1.to_owned()));
    let folder = PathBuf::from(folder.expect("a server"));
    assert!(processes_in(&folder) > 1);
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..6_000 {
        if processes_in(&folder) == 0 && !folder.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} processes are left", processes_in(&folder));
}

//! A proxy that cannot start must say why, and one that stops must finish its requests or record them as unknown.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    net::TcpListener,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use refrain::store::embedded::{self, Embedded};
use support::{
    AfterResponse, Client, Proxy, Starting, Upstream, answer, call, get, post, request, until,
};

/// Checks the exit code and words of the message.
fn check(starting: &Starting, code: i32, words: &[&str]) {
    let (exited, text) = starting.refused();
    assert_eq!(exited, Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

fn minimal() -> Starting {
    Starting::new()
        .arg("--upstream", "http://127.0.0.1:9")
        .arg("--store", "memory:")
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--admin"] {
        let mut starting = minimal();
        let at = starting.args.iter().position(|arg| arg == flag).unwrap();
        starting.args[at + 1].clone_from(&address);
        check(&starting, 69, &[&address, "in use", "another port"]);
    }
}

#[test]
fn a_bad_file_is_named_with_line_and_column() {
    for (text, words) in [
        ("listen = \n", &["refrain.toml:1:10"][..]),
        ("[policy]\nwait = \"soon\"\n", &["refrain.toml:2:8", "soon"]),
        (
            "[policy]\nwaitt = \"1s\"\n",
            &["refrain.toml:2:1", "waitt", "`wait`"],
        ),
        (
            "[proxy]\ndrain = \"0s\"\n",
            &["refrain.toml:2:9", "out of range"],
        ),
        ("[proxy]\nthreads = 5000\n", &["refrain.toml:2:11", "1024"]),
        (
            "upstream = \"ftp://x\"\n",
            &["refrain.toml:1:12", "ftp://x"],
        ),
        (
            "[[operation]]\nmatch = \"POST orders\"\n",
            &["refrain.toml:2:9"],
        ),
    ] {
        check(&minimal().file(text), 64, words);
    }
}

#[test]
fn bad_flags_and_variables_are_named() {
    let missing = minimal().arg("--config", "nowhere.toml");
    check(&missing, 64, &["nowhere.toml"]);
    check(
        &minimal().arg("--upstrem", "x"),
        2,
        &["--upstrem", "--upstream"],
    );
    check(&minimal().arg("--log", "loud"), 64, &["loud", "debug"]);
    check(&Starting::new(), 64, &["--upstream"]);
    for (flag, value) in [
        ("--upstream", "127.0.0.1:3000"),
        ("--upstream", "ftp://127.0.0.1"),
        ("--upstream", "http://"),
        ("--store", "papyrus:"),
        ("--listen", "nowhere"),
        ("--admin", "127.0.0.1"),
    ] {
        let mut starting = minimal();
        match starting.args.iter().position(|arg| arg == flag) {
            Some(at) => starting.args[at + 1] = value.into(),
            None => starting = starting.arg(flag, value),
        }
        check(&starting, 64, &[value]);
    }
    let variable = Starting::new().variable("REFRAIN_UPSTREAM", "ftp://127.0.0.1");
    check(&variable, 64, &["ftp://127.0.0.1"]);
    let file = minimal().variable("REFRAIN_LOG_FILE", "nowhere.txt");
    check(&file, 64, &["REFRAIN_LOG_FILE", "nowhere.txt"]);
}

/// Without an upstream, a failed start must not leave a store folder behind.
#[test]
fn nothing_is_made_before_the_configuration_is_whole() {
    let starting = Starting::new();
    check(&starting, 64, &["--upstream"]);
    let made: Vec<_> = fs::read_dir(starting.folder.path()).unwrap().collect();
    assert!(made.is_empty(), "{made:?}");
}

#[test]
fn a_blank_admin_token_is_refused() {
    let words = ["REFRAIN_ADMIN_TOKEN", "is empty"];
    for blank in ["", " ", "\t\n"] {
        let token = minimal().variable("REFRAIN_ADMIN_TOKEN", blank);
        check(&token, 64, &words);
        let mut starting = minimal();
        let path = starting.folder.path().join("token");
        fs::write(&path, blank).unwrap();
        starting = starting.variable("REFRAIN_ADMIN_TOKEN_FILE", path.display());
        check(&starting, 64, &words);
    }
}

#[test]
fn further_names_of_the_admin_listener_need_a_token() {
    let named = minimal().file("admin_hosts = \"refrain.internal\"\n");
    check(&named, 64, &["admin_hosts", "REFRAIN_ADMIN_TOKEN"]);
    let named = minimal().file("admin_hosts = [\"http://refrain.internal\"]\n");
    check(&named, 64, &["invalid host name", "without scheme"]);
}

#[test]
fn the_environment_stands_between_flags_and_file() {
    let upstream = Upstream::echo();
    let named = Starting::new();
    let file = named.folder.path().join("upstream.txt");
    fs::write(&file, format!("http://{}\n", upstream.address)).unwrap();
    let proxy = named
        .file("upstream = \"http://127.0.0.1:9\"\nstore = \"file:nowhere\"")
        .variable("REFRAIN_UPSTREAM_FILE", file.display())
        .variable("REFRAIN_STORE", "file:nowhere-else")
        .arg("--store", "memory:")
        .start();
    assert_eq!(call(proxy.address, get("/")).status, 200);
    let kept = fs::read_dir(proxy.folder()).unwrap();
    let kept = kept.filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(kept.count(), 0);
}

#[test]
fn unavailable_database_is_named_without_its_password() {
    for (store, words) in [
        (
            "postgres://app:hunter2@127.0.0.1:1/app",
            ["127.0.0.1:1", "check host and port"],
        ),
        (
            "postgres://app:hunter2@db/app?schema=Mine",
            ["schema=Mine", "lower-case"],
        ),
        (
            "postgresql://app:hunter2@db/app?sslmode=sure",
            ["sslmode=sure", "verify-full"],
        ),
    ] {
        let starting = Starting::new().arg("--upstream", "http://127.0.0.1:9");
        let starting = starting.arg("--store", store);
        check(&starting, 69, &words);
        assert!(!starting.refused().1.contains("hunter2"), "{store}");
    }
}

#[test]
fn unavailable_store_is_named() {
    let upstream = Upstream::echo();
    let proxy = Proxy::durable(upstream.address, "");
    let held = proxy.folder().join("records");
    let second = Starting::new()
        .arg("--upstream", "http://127.0.0.1:9")
        .arg("--store", format!("file:{}", held.display()));
    check(&second, 69, &[held.to_str().unwrap()]);
    // The first proxy is not affected.
    assert_eq!(call(proxy.address, post("k", "x")).status, 200);
    let starting = Starting::new().arg("--upstream", "http://127.0.0.1:9");
    let file = starting.folder.path().join("a-file");
    fs::write(&file, "x").unwrap();
    for folder in [file.join("records"), file, "/proc/records".into()] {
        let starting = Starting::new()
            .arg("--upstream", "http://127.0.0.1:9")
            .arg("--store", format!("file:{}", folder.display()));
        check(&starting, 69, &[folder.to_str().unwrap()]);
    }
}

/// A proxy that waits for the whole drain time does not exit during the test.
const LONG_DRAIN: &str = "[proxy]\ndrain = \"10m\"";

/// An upstream that responds after a delay.
fn slow(millis: u64) -> Upstream {
    Upstream::start(move |seen, stream| {
        thread::sleep(Duration::from_millis(millis));
        answer(stream, "200 OK", &[], &seen.body)
    })
}

#[test]
fn shutdown_finishes_running_requests_and_accepts_no_new_ones() {
    let upstream = slow(600);
    let proxy = Proxy::durable(upstream.address, LONG_DRAIN);
    let address = proxy.address;
    let mut idle = Client::connect(address);
    let mut fresh = Client::connect(address);
    let mut partial = Client::connect(address);
    partial.send("GET / HTTP/1.1\r\nhost:");
    assert_eq!(idle.send(get("/")).answer().status, 200);
    let mut clients: Vec<_> = [post("k", "x"), get("/a")]
        .into_iter()
        .map(|bytes| {
            let mut client = Client::connect(address);
            client.send(bytes);
            client
        })
        .collect();
    upstream.wait_for(3);
    proxy.terminate();
    assert!(idle.is_closed());
    assert!(fresh.is_closed());
    until("no connection is accepted", || {
        std::net::TcpStream::connect(address).is_err()
    });
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
        assert!(client.is_closed());
    }
    assert_eq!(proxy.ended().code(), Some(0));
    assert_eq!(upstream.count(), 3);
}

/// Stops the proxy while it sends a long response to a slow client.
fn check_whole(bytes: &[u8]) {
    // Larger than the socket buffers of a client that does not read.
    const LARGE: usize = 16 << 20;
    let upstream = Upstream::start(|_, stream| answer(stream, "200 OK", &[], &vec![b'x'; LARGE]));
    let settings = format!(
        "{LONG_DRAIN}\nclient_timeout = \"10m\"\nthreads = 1\n[policy]\noutcome_bytes_max = \"64MiB\""
    );
    let proxy = Proxy::start(upstream.address, &settings);
    let mut slow = Client::connect_narrow(proxy.address);
    slow.send(bytes);
    assert_eq!(slow.head().unwrap().status, 200);
    let mut partial = Client::connect(proxy.address);
    partial.send("GET / HTTP/1.1\r\nhost:");
    until("both are accepted", || {
        proxy.metric("refrain_connections") == 2.0
    });
    proxy.terminate();
    // By then the proxy has closed every connection that it does not wait for.
    assert!(partial.is_closed());
    assert_eq!(slow.exactly(LARGE).len(), LARGE);
    assert!(slow.is_closed());
    assert_eq!(proxy.ended().code(), Some(0));
}

#[test]
fn shutdown_finishes_a_response_that_the_client_reads_slowly() {
    let key = ("idempotency-key", "k");
    for connection in ["close", "keep-alive"] {
        let connection = ("connection", connection);
        check_whole(&request("GET /", &[connection], b""));
        check_whole(&request("POST /orders", &[connection, key], b"x"));
    }
}

#[test]
fn a_stop_under_load_drops_nothing() {
    let upstream = slow(20);
    let proxy = Proxy::durable(upstream.address, "");
    let address = proxy.address;
    let callers: Vec<_> = (0..12)
        .map(|by| {
            let mut client = Client::connect(address);
            thread::spawn(move || {
                let mut answered = 0;
                loop {
                    let bytes = match answered % 2 {
                        0 => post(&format!("{by}-{answered}"), "x"),
                        _ => get("/"),
                    };
                    match client.send(bytes).try_answer() {
                        Some(answer) => assert_eq!(answer.status, 200, "{}", answer.head),
                        None => return answered,
                    }
                    answered += 1;
                }
            })
        })
        .collect();
    until("many requests have a response", || upstream.count() > 80);
    proxy.terminate();
    assert_eq!(proxy.ended().code(), Some(0));
    let answered: usize = callers.into_iter().map(|it| it.join().unwrap()).sum();
    assert!(answered > 50, "{answered}");
    // Requests that reached the upstream got a response; the others never reached it.
    assert_eq!(upstream.count(), answered);
}

/// Starts a proxy on records that outlive it.
fn on(records: &std::path::Path, upstream: &Upstream, settings: &str) -> Proxy {
    Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", format!("file:{}", records.display()))
        .file(settings)
        .start()
}

/// Stops a proxy whose upstream never responds, and checks the response of its successor.
fn check_doubt(settings: &str, stop: impl Fn(&Proxy)) {
    let upstream = Upstream::start(|_, _| {
        thread::sleep(support::PATIENCE);
        AfterResponse::Close
    });
    let records = tempfile::tempdir().unwrap();
    let settings = format!("[policy]\nlease = \"1s\"\nwait = \"10ms\"\n{settings}");
    let proxy = on(records.path(), &upstream, &settings);
    let mut client = Client::connect(proxy.address);
    client.send(post("k", "x"));
    upstream.wait_for(1);
    stop(&proxy);
    assert_eq!(proxy.ended().code(), Some(0));
    let proxy = on(records.path(), &upstream, &settings);
    until("the outcome is unknown", || {
        let answer = call(proxy.address, post("k", "x"));
        assert_eq!(answer.status, 409);
        answer.code().as_deref() == Some("outcome-unknown")
    });
    assert_eq!(upstream.count(), 1);
}

#[test]
fn request_cut_by_shutdown_has_an_unknown_outcome() {
    check_doubt("[proxy]\ndrain = \"300ms\"", Proxy::terminate);
}

#[test]
fn a_second_signal_does_not_wait() {
    check_doubt(LONG_DRAIN, |proxy| {
        proxy.terminate();
        // Two signals before the first one is handled count as one.
        until("the first signal is handled", || {
            std::net::TcpStream::connect(proxy.address).is_err()
        });
        proxy.terminate();
    });
}

#[test]
fn a_tunnel_does_not_hold_up_the_end() {
    let is_up = Arc::new(AtomicBool::new(false));
    let upstream = Upstream::start({
        let is_up = is_up.clone();
        move |_, stream| {
            use std::io::Write as _;
            let switched =
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
            stream.write_all(switched.as_bytes()).unwrap();
            is_up.store(true, Relaxed);
            thread::sleep(support::PATIENCE);
            AfterResponse::Close
        }
    });
    let proxy = Proxy::start(upstream.address, LONG_DRAIN);
    let mut client = Client::connect(proxy.address);
    let upgrade = [("connection", "upgrade"), ("upgrade", "x")];
    client.send(request("GET /", &upgrade, b""));
    assert_eq!(client.answer().status, 101);
    proxy.terminate();
    assert_eq!(proxy.ended().code(), Some(0));
    assert!(client.is_closed());
}

/// Clients reject a switch of protocols that does not say so.
#[test]
fn an_upgrade_during_the_shutdown_is_still_announced() {
    let is_stopping = Arc::new(AtomicBool::new(false));
    let stopping = is_stopping.clone();
    let upstream = Upstream::start(move |_, stream| {
        use std::io::Write as _;
        until("the proxy stops", || stopping.load(Relaxed));
        let switched =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        stream.write_all(switched.as_bytes()).unwrap();
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, LONG_DRAIN);
    let mut client = Client::connect(proxy.address);
    let upgrade = [("connection", "upgrade"), ("upgrade", "x")];
    client.send(request("GET /", &upgrade, b""));
    upstream.wait_for(1);
    proxy.terminate();
    until("no connection is accepted", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    });
    is_stopping.store(true, Relaxed);
    let switched = client.answer();
    assert_eq!(switched.status, 101);
    assert_eq!(switched.header("connection"), Some("upgrade"));
    assert_eq!(switched.header("upgrade"), Some("x"));
    assert_eq!(proxy.ended().code(), Some(0));
}

#[test]
fn greeting_says_which_operation_wins_and_what_is_only_observed() {
    let policy = "
        [[operation]]
        match = \"POST /orders\"

        [[operation]]
        match = \"POST /orders/{id}\"
        mode = \"observe\"
    ";
    let starting = minimal().file(policy);
    let text = starting.greeting();
    assert!(text.contains("the most specific pattern wins"), "{text}");
    assert!(!text.contains("first match"), "{text}");
    assert!(text.contains("\nstore memory: ("), "{text}");
    assert!(!text.contains("memory::"), "{text}");
    let line = |name: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("{name} is not in: {text}"))
    };
    assert!(line("POST /orders:").contains("at-most-once"), "{text}");
    let observed = line("POST /orders/{id}:");
    assert!(observed.contains("observed only"), "{text}");
    assert!(!observed.contains("at-most-once"), "{text}");
    assert!(!observed.contains("refused"), "{text}");

    let proxy = starting.start();
    let told = proxy.ask_admin("/api/operations");
    let told: serde_json::Value = serde_json::from_str(told.text()).unwrap();
    let operation = |name: &str| {
        let operations = told["operations"].as_array().unwrap().iter();
        operations.clone().find(|it| it["name"] == name).unwrap()
    };
    assert_eq!(operation("POST /orders")["in_force"], "at-most-once");
    assert_eq!(operation("POST /orders").get("mode"), None);
    let observed = operation("POST /orders/{id}");
    assert_eq!(observed["in_force"], serde_json::Value::Null);
    assert_eq!(observed["mode"], "observe");
}

/// A folder that only root may use.
fn denied(starting: &Starting) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(starting.folder.path(), open).unwrap();
    let folder = starting.folder.path().join("denied");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o000)).unwrap();
    folder
}

#[test]
fn denied_folders_are_named_with_the_fix() {
    let starting = Starting::new()
        .through(support::unprivileged())
        .arg("--upstream", "http://127.0.0.1:9");
    let folder = denied(&starting);
    for folder in [folder.clone(), folder.join("records")] {
        let store = format!("file:{}", folder.display());
        let starting = Starting::new()
            .through(support::unprivileged())
            .arg("--upstream", "http://127.0.0.1:9")
            .arg("--store", store);
        let words = [
            "Permission denied",
            "run as the owner",
            "store = \"file:DIR\"",
        ];
        check(&starting, 69, &words);
        check(&starting, 69, &[folder.to_str().unwrap()]);
    }
    let audited = starting
        .arg("--store", "memory:")
        .arg("--audit-log", folder.join("audit").display())
        .file("[[operation]]\nmatch = \"POST /pay\"\nclass = \"monetary\"\n");
    let words = [
        "Permission denied",
        "run as the owner",
        "audit_log = \"DIR\"",
    ];
    check(&audited, 69, &words);
}

/// The store's lock can be taken, but its manifest cannot be read or written.
#[test]
fn denied_files_behind_the_lock_are_named_with_the_fix() {
    use std::os::unix::fs::PermissionsExt as _;
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, folder_mode) in [("", 0o555), ("manifest", 0o777)] {
        let folder = tempfile::tempdir().unwrap();
        drop(Embedded::open(folder.path(), embedded::Options::default()).unwrap());
        for entry in fs::read_dir(folder.path()).unwrap() {
            chmod(&entry.unwrap().path(), 0o666);
        }
        chmod(folder.path(), folder_mode);
        if !name.is_empty() {
            chmod(&folder.path().join(name), 0o000);
        }
        let starting = Starting::new()
            .through(support::unprivileged())
            .arg("--upstream", "http://127.0.0.1:9")
            .arg("--store", format!("file:{}", folder.path().display()))
            .arg("--audit-log", folder.path().join("audit").display());
        let words = [
            folder.path().to_str().unwrap(),
            "manifest",
            "Permission denied",
            "run as the owner",
            "store = \"file:DIR\"",
        ];
        check(&starting, 69, &words);
        chmod(folder.path(), 0o700);
    }
}

#[test]
fn denied_ports_are_named_with_the_fix() {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let first: u16 = first.trim().parse().unwrap();
    // On a machine without privileged ports there is nothing to test.
    let Some(port) = first.checked_sub(1).filter(|port| *port > 0) else {
        return;
    };
    let address = format!("127.0.0.1:{port}");
    for flag in ["--listen", "--admin"] {
        let mut starting = minimal().through(support::unprivileged());
        let at = starting.args.iter().position(|arg| arg == flag).unwrap();
        starting.args[at + 1].clone_from(&address);
        check(
            &starting,
            69,
            &[&address, "permission denied", "CAP_NET_BIND_SERVICE"],
        );
    }
    for flag in ["--listen", "--control"] {
        let mut starting = Starting::new().through(support::unprivileged());
        let ports = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"];
        let args = [&["chaos", "--upstream", "http://127.0.0.1:9"][..], &ports];
        starting.args = args.concat().into_iter().map(String::from).collect();
        let at = starting.args.iter().position(|arg| arg == flag).unwrap();
        starting.args[at + 1].clone_from(&address);
        check(
            &starting,
            69,
            &[&address, "permission denied", "CAP_NET_BIND_SERVICE"],
        );
    }
}

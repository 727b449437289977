//! A unique word in every field of a request, a response and the settings: no log, metric, API, store file or command
//! line shows one that it must not show. SECURITY.md says which place may show which field.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, Output},
};

use refrain_testkit::servers::PrivateRedis;
use rustix::process::{Resource, Signal, getrlimit};
use support::{
    AfterResponse, Client, HttpResponse, Proxy, Seen, Starting, Upstream, answer, call, find, get,
    http2, request, until,
};

const KEY: &str = "zqkey7x";
const PATH: &str = "zqpath7x";
const QUERY: &str = "zqquery7x";
const HEADER: &str = "zqheader7x";
const COOKIE: &str = "zqcookie7x";
const AUTHORIZATION: &str = "zqauthorization7x";
const API_KEY: &str = "zqapikey7x";
const BODY: &str = "zqbody7x";
const REPLAYED_HEADER: &str = "zqlocation7x";
const OTHER_HEADER: &str = "zqresponse7x";
const SET_COOKIE: &str = "zqsetcookie7x";
const RESPONSE_BODY: &str = "zqanswer7x";
const ADMIN_TOKEN: &str = "zqadmintoken7x";
const READER_TOKEN: &str = "zqreadertoken7x";
const STORE_PASSWORD: &str = "zqstorepassword7x";

const ALL: [&str; 15] = [
    KEY,
    PATH,
    QUERY,
    HEADER,
    COOKIE,
    AUTHORIZATION,
    API_KEY,
    BODY,
    REPLAYED_HEADER,
    OTHER_HEADER,
    SET_COOKIE,
    RESPONSE_BODY,
    ADMIN_TOKEN,
    READER_TOKEN,
    STORE_PASSWORD,
];

/// The words that stand in `text`, also in base64 or as hex digits.
fn found(text: &[u8]) -> Vec<&'static str> {
    let stands = |word: &str| {
        let hex: String = word.bytes().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{:?}", word.as_bytes());
        let plain = [word, &hex, list.trim_matches(['[', ']'])];
        plain.iter().any(|it| find(text, it.as_bytes()).is_some())
            || base64_of(word)
                .iter()
                .any(|it| find(text, it.as_bytes()).is_some())
    };
    ALL.into_iter().filter(|word| stands(word)).collect()
}

/// The digits that a word has in base64, wherever it begins, without those that its neighbours change.
fn base64_of(word: &str) -> [String; 3] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    [0, 1, 2].map(|shift| {
        let bytes: Vec<u8> = [&[0; 2][..shift], word.as_bytes()].concat();
        let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
        let whole = (shift * 8).div_ceil(6)..bytes.len() * 8 / 6;
        let digit = |at: usize| (at * 6..at * 6 + 6).fold(0, |all, at| all << 1 | bit(at));
        whole
            .map(|at| char::from(DIGITS[usize::from(digit(at))]))
            .collect()
    })
}

#[track_caller]
fn check(place: &str, text: &[u8], allowed: &[&str]) {
    for word in found(text) {
        let shown = String::from_utf8_lossy(text);
        assert!(allowed.contains(&word), "{place} shows {word}: {shown}");
    }
}

/// Executes orders; breaks off at `lost`, after the request was read.
fn shop(seen: &Seen, stream: &mut TcpStream) -> AfterResponse {
    if seen.start().contains("/lost") {
        return AfterResponse::Close;
    }
    let headers = [
        ("location", REPLAYED_HEADER),
        ("x-internal", OTHER_HEADER),
        ("set-cookie", SET_COOKIE),
    ];
    answer(stream, "201 Created", &headers, RESPONSE_BODY.as_bytes())
}

fn headers(key: String, api_key: &str) -> Vec<(&'static str, String)> {
    vec![
        ("idempotency-key", key),
        ("authorization", AUTHORIZATION.into()),
        ("cookie", format!("session={COOKIE}")),
        ("x-api-key", api_key.into()),
        ("x-note", HEADER.into()),
        ("traceparent", HEADER.into()),
    ]
}

fn key_of(target: &str) -> String {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    format!("{KEY}-{}", path.len())
}

fn order(start: &str, api_key: &str, body: &str) -> Vec<u8> {
    // A key for each path: the same key on another path is another request.
    let headers = headers(key_of(start), api_key);
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    request(start, &headers, body.as_bytes())
}

fn order_http2(proxy: &Proxy, path: &str) -> Option<u16> {
    let headers = headers(key_of(path), API_KEY);
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "shop.test"),
        (":path", path),
    ];
    fields.extend(headers.iter().map(|(name, value)| (*name, &**value)));
    http2::call(proxy.address, &fields, Some(BODY))
}

/// Sends requests that end in every way: executed, replayed, refused for each reason, unknown, unguarded, malformed.
fn send_all(proxy: &Proxy) {
    let target = format!("/orders/{PATH}?q={QUERY}");
    let start = format!("POST {target}");
    let lost = format!("POST /orders/{PATH}/lost?q={QUERY}");
    let call = |bytes: Vec<u8>| call(proxy.address, bytes);
    let first = call(order(&start, API_KEY, BODY));
    assert_eq!((first.status, first.text()), (201, RESPONSE_BODY));
    assert!(call(order(&start, API_KEY, BODY)).is_replay());
    let answers = [
        (order(&start, API_KEY, "other"), "key-reused"),
        (order(&start, "other", BODY), "credential-changed"),
        (order(&lost, API_KEY, BODY), "outcome-unknown"),
        (order(&lost, API_KEY, BODY), "outcome-unknown"),
        (
            request(
                &start,
                &[("idempotency-key", &format!("{KEY} \u{e9}"))],
                b"",
            ),
            "key-invalid",
        ),
        (
            request(
                &start,
                &[("bad name", HEADER), ("authorization", AUTHORIZATION)],
                b"",
            ),
            "request-malformed",
        ),
    ];
    for (bytes, code) in answers {
        let refused = call(bytes);
        assert_eq!(refused.code().as_deref(), Some(code), "{}", refused.head);
        check(code, refused.head.as_bytes(), &[]);
        check(code, &refused.body, &[]);
    }
    assert_eq!(
        call(order(&format!("GET {target}"), API_KEY, "")).status,
        201
    );
    assert_eq!(
        order_http2(proxy, &format!("/orders/{PATH}/two")),
        Some(201)
    );
    assert_eq!(
        order_http2(proxy, &format!("/orders/{PATH}/lost-two")),
        Some(502)
    );
    cut_off(proxy, &start);
}

/// A client that goes away in the middle of its request.
fn cut_off(proxy: &Proxy, start: &str) {
    let whole = order(start, API_KEY, BODY);
    let mut client = Client::connect(proxy.address);
    client.stream.write_all(&whole[..whole.len() - 3]).unwrap();
}

/// One scope for all callers, so that another credential finds the record.
const SETTINGS: &str = "[[operation]]\nmatch = \"POST /orders/{id}\"\nscope = [\"route\"]\naudit = true\n\
    [[operation]]\nmatch = \"POST /orders/{id}/{rest}\"\nscope = [\"route\"]\naudit = true\n";

/// A proxy that logs everything, with secrets in all of its own settings.
fn started(upstream: &Upstream, store: &str, settings: &str) -> Proxy {
    Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--log", "trace")
        .arg("--access-log", "access.log")
        .arg("--audit-log", "audit")
        .variable("REFRAIN_STORE", store)
        .variable("REFRAIN_ADMIN_TOKEN", ADMIN_TOKEN)
        .variable("REFRAIN_ADMIN_READER_TOKEN", READER_TOKEN)
        .file(settings)
        .start()
}

fn ask(proxy: &Proxy, path: &str, token: &str) -> HttpResponse {
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n\r\n",
        proxy.admin
    );
    call(proxy.admin, head)
}

/// All bytes of the files below a folder, without the zeros at their ends: segments are allocated in advance.
fn bytes_below(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(bytes_below(&entry.path())),
            false => {
                let mut bytes = fs::read(entry.path()).unwrap();
                bytes.truncate(bytes.iter().rposition(|it| *it != 0).map_or(0, |at| at + 1));
                all.extend(bytes);
            }
        }
    }
    all
}

/// The identities of all records.
fn records(proxy: &Proxy) -> Vec<String> {
    let listed: serde_json::Value =
        serde_json::from_str(ask(proxy, "/api/records", READER_TOKEN).text()).unwrap();
    let records = listed["records"].as_array().unwrap().iter();
    records
        .map(|it| it["id"].as_str().unwrap().to_owned())
        .collect()
}

fn check_admin(proxy: &Proxy) {
    for refused in ["/api/records", "/metrics"] {
        let answer = ask(proxy, refused, "zqwrong7x");
        check(refused, answer.head.as_bytes(), &[]);
        check(refused, &answer.body, &[]);
    }
    check("/metrics", &ask(proxy, "/metrics", READER_TOKEN).body, &[]);
    // The target of a guarded request is its path, which operators need.
    for path in [
        "/",
        "/livez",
        "/readyz",
        "/api/overview",
        "/api/operations",
        "/api/requests",
        "/api/records",
        "/api/workers",
    ] {
        for token in [READER_TOKEN, ADMIN_TOKEN] {
            let answer = ask(proxy, path, token);
            check(path, answer.head.as_bytes(), &[]);
            check(path, &answer.body, &[PATH]);
        }
    }
    let all = records(proxy);
    assert!(all.len() >= 3, "{all:?}");
    let mut shown = Vec::new();
    for id in all {
        let answer = ask(proxy, &format!("/api/records/{id}"), READER_TOKEN);
        check(
            "a record",
            &answer.body,
            &[PATH, REPLAYED_HEADER, RESPONSE_BODY],
        );
        shown.extend(answer.body);
    }
    // The words can be found: what a record may show, it shows.
    assert_eq!(found(&shown), [PATH, REPLAYED_HEADER, RESPONSE_BODY]);
}

fn check_files(proxy: &Proxy) {
    let folder = proxy.folder();
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    until("the access log is written", || {
        read("access.log").iter().filter(|it| **it == b'\n').count() >= 11
    });
    check("the access log", &read("access.log"), &[]);
    let log = proxy.errors();
    assert!(log.contains("TRACE"), "{log}");
    // A line about an unknown outcome names the request.
    check("the log", log.as_bytes(), &[PATH]);
    assert_eq!(found(log.as_bytes()), [PATH]);
    let audit = bytes_below(&folder.join("audit"));
    assert!(!audit.is_empty());
    check("the audit log", &audit, &[PATH]);
    let proc = Path::new("/proc").join(proxy.pid().to_string());
    check(
        "the command line",
        &fs::read(proc.join("cmdline")).unwrap(),
        &[],
    );
    let tasks = fs::read_dir(proc.join("task")).unwrap().map(Result::unwrap);
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    assert_eq!(
        children.collect::<String>(),
        "",
        "the proxy has child processes"
    );
}

#[test]
fn no_place_shows_a_secret_of_requests_or_settings() {
    let upstream = Upstream::start(shop);
    let proxy = started(&upstream, "file:records", SETTINGS);
    send_all(&proxy);
    check_admin(&proxy);
    check_files(&proxy);
    let stored = bytes_below(&proxy.folder().join("records"));
    check(
        "the store",
        &stored,
        &[PATH, REPLAYED_HEADER, RESPONSE_BODY],
    );
    assert_eq!(found(&stored), [PATH, REPLAYED_HEADER, RESPONSE_BODY]);
}

#[test]
fn no_place_shows_the_password_of_a_store() {
    let server = PrivateRedis::start().unwrap();
    let store = server
        .url()
        .replace("://", &format!("://default:{STORE_PASSWORD}@"));
    let upstream = Upstream::start(shop);
    let proxy = started(&upstream, &store, SETTINGS);
    send_all(&proxy);
    check_admin(&proxy);
    check_files(&proxy);
    drop(server);
    // What the proxy says about a store that is gone.
    let lost = call(proxy.address, order("POST /orders/1", API_KEY, BODY));
    assert_eq!(lost.code().as_deref(), Some("store-unavailable"));
    check("a problem", &lost.body, &[]);
    check("/readyz", &ask(&proxy, "/readyz", "").body, &[]);
    check_files(&proxy);
}

/// What operators turn on is shown, which also proves that the checks above would find it.
#[test]
fn keys_and_queries_are_shown_where_the_policy_says_so() {
    let upstream = Upstream::start(shop);
    let clear = "[policy]\nrecords_keys = \"clear\"\nrecords_query = true\n";
    let proxy = started(&upstream, "file:records", &format!("{clear}{SETTINGS}"));
    send_all(&proxy);
    let stored = bytes_below(&proxy.folder().join("records"));
    let listed = ask(&proxy, "/api/records", READER_TOKEN).body;
    for text in [stored, listed] {
        let shown = found(&text);
        assert!(
            [KEY, PATH, QUERY].iter().all(|it| shown.contains(it)),
            "{shown:?}"
        );
    }
    check("the log", proxy.errors().as_bytes(), &[PATH]);
}

#[test]
fn words_are_found_in_every_encoding() {
    for word in ALL {
        for text in [
            format!("a {word} b"),
            format!("{:?}", word.as_bytes()),
            word.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ] {
            assert!(found(text.as_bytes()).contains(&word), "{text}");
        }
    }
    // "a zqkey7x", "ab zqkey7x" and "abc zqkey7x".
    for text in ["YSB6cWtleTd4", "YWIgenFrZXk3eA==", "YWJjIHpxa2V5N3g="] {
        assert_eq!(found(text.as_bytes()), [KEY], "{text}");
    }
    assert_eq!(found(b"zqnothing7x"), [""; 0]);
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args(arguments).current_dir(folder);
    command.env("REFRAIN_ADMIN_TOKEN", ADMIN_TOKEN);
    command.output().unwrap()
}

/// Commands that operators paste into tickets.
#[test]
fn commands_about_a_configuration_show_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("postgres://app:{STORE_PASSWORD}@127.0.0.1:1/app");
    let file = format!("store = \"{store}\"\nupstream = \"http://127.0.0.1:9\"\n{SETTINGS}");
    fs::write(folder.path().join("refrain.toml"), file).unwrap();
    for arguments in [
        &["check", "refrain.toml"][..],
        &["check", "refrain.toml", "--report"],
        &["check", "refrain.toml", "--json"],
        &["doctor"],
        &["doctor", "--json", "--node", "http://127.0.0.1:1"],
        &["proxy", "--config", "refrain.toml", "--log", "trace"],
        &["migrate", "--store", &store],
        &["records", "list", "--admin", "http://127.0.0.1:1"],
    ] {
        let output = run(folder.path(), arguments);
        let printed = [output.stdout, output.stderr].concat();
        assert!(!printed.is_empty(), "{arguments:?}");
        check(arguments[0], &printed, &[]);
    }
}

/// A core file would contain every credential and body in memory, and the proxy may be killed by any signal.
#[test]
fn a_killed_proxy_leaves_no_core_file() {
    let unlimited = [
        "sh",
        "-c",
        "ulimit -S -c $(ulimit -H -c); exec \"$0\" \"$@\"",
    ];
    let may_dump = getrlimit(Resource::Core).maximum != Some(0);
    let control = Command::new(unlimited[0])
        .args(&unlimited[1..])
        .args(["sh", "-c", "kill -ABRT $$"])
        .current_dir(tempfile::tempdir().unwrap().path())
        .status()
        .unwrap();
    assert_eq!(control.core_dumped(), may_dump, "{control}");
    let upstream = Upstream::start(shop);
    let proxy = Starting::new()
        .through(&unlimited)
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .start();
    assert_eq!(call(proxy.address, get("/")).status, 201);
    proxy.signal(Signal::ABORT);
    let status = proxy.ended();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!status.core_dumped(), "{status}");
}

//! `refrain verify` must fail an app without keys, and pass the same app behind `refrain proxy`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;
mod verify_support;

use std::{
    fs,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use support::{Starting, Upstream, answer, until};
use verify_support::{
    arguments, free_port, json, naive, naive_taking, of, proxy_command, refrain, run, token,
};

#[test]
fn the_proxy_makes_an_app_without_keys_pass_every_case() {
    let upstream = naive();
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .start();
    let url = format!("http://{}", proxy.address);
    let output = run(&arguments(&url, &upstream), &["--json", "-"]);
    let report = json(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (of(&report, "fail"), of(&report, "warn")),
        (vec![], vec![]),
        "{said}"
    );
    assert_eq!(
        of(&report, "skipped"),
        ["paused-past-lease", "kill-mid-request", "kill-after-answer"],
        "{said}"
    );
    assert_eq!(output.status.code(), Some(0), "{said}");
}

#[test]
fn the_proxy_with_records_on_disk_passes_even_when_it_is_paused_and_killed() {
    let (upstream, folder, port) = (naive(), tempfile::tempdir().unwrap(), free_port());
    let command = proxy_command(folder.path(), &upstream, port, "\"file:records\"");
    let url = format!("http://127.0.0.1:{port}");
    let more = ["--json", "-", "--restart-command", &command];
    let output = run(&arguments(&url, &upstream), &more);
    let report = json(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    let empty: Vec<String> = vec![];
    let found = (
        of(&report, "fail"),
        of(&report, "warn"),
        of(&report, "skipped"),
    );
    assert_eq!(found, (empty.clone(), empty.clone(), empty), "{said}");
    assert_eq!(output.status.code(), Some(0), "{said}");
    until("the proxy is gone", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}

#[test]
fn a_crash_that_forgets_keys_is_seen() {
    // Killed while the upstream works, even if the kill is late.
    let upstream = naive_taking(std::time::Duration::from_millis(500));
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let command = proxy_command(folder.path(), &upstream, port, "\"memory:\"");
    let all = arguments(&format!("http://127.0.0.1:{port}"), &upstream);
    check_killed(&all, &command, "but 2 effects");
}

/// Keeps keys and payments on disk, but never releases the claim of a dead holder.
const LOCKING: &str = r#"
import http.server, os, sys, time
class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        paid = len(open("paid").readlines()) if os.path.exists("paid") else 0
        self.say(200, str(paid))
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        key = self.headers["idempotency-key"]
        try:
            os.close(os.open(key, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            kept = open(key).read()
            return self.say(201, kept) if kept else self.say(409, "in progress")
        time.sleep(1)
        open("paid", "a").write("paid\n")
        open(key, "w").write('{"id":"%s"}' % key)
        self.say(201, open(key).read())
    def say(self, status, text):
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
"#;

#[test]
fn a_crash_that_locks_keys_is_seen() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    fs::write(folder.path().join("api.py"), LOCKING).unwrap();
    let command = format!(
        "cd {} && exec python3 api.py {port}",
        folder.path().display()
    );
    let url = format!("http://127.0.0.1:{port}");
    let count = format!("{url}/count");
    let all = [
        &url,
        "--op",
        "POST /payments",
        "--body",
        "20",
        "--effects-url",
        &count,
    ];
    check_killed(&all.map(String::from), &command, "the key stays locked");
}

/// Checks that the kill of the service that `command` starts is reported as a failure, with this reason.
fn check_killed(arguments: &[String], command: &str, seen: &str) {
    let more = [
        "--json",
        "-",
        "--restart-command",
        command,
        "--case",
        "kill-mid-request",
        "--patience",
        "1s",
    ];
    let output = run(arguments, &more);
    let report = json(&output);
    assert_eq!(of(&report, "fail"), ["kill-mid-request"], "{report:#}");
    let findings = report["operations"][0]["cases"][0]["findings"].to_string();
    assert!(findings.contains(seen), "{findings}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_app_without_keys_fails_and_the_reports_say_so() {
    let (upstream, folder) = (naive(), tempfile::tempdir().unwrap());
    let arguments = arguments(&format!("http://{}", upstream.address), &upstream);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (now, junit, sarif, html) = (
        path("now.json"),
        path("j.xml"),
        path("s.sarif"),
        path("r.html"),
    );
    let more = [
        "--case",
        "sequential-duplicate",
        "--case",
        "key-missing",
        "--json",
        &now,
        "--junit",
        &junit,
        "--sarif",
        &sarif,
        "--html",
        &html,
    ];
    let output = run(&arguments, &more);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("FAIL     sequential-duplicate"), "{said}");
    assert!(
        said.contains("1 failed, 0 warned, 1 passed, 0 skipped"),
        "{said}"
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(&now).unwrap()).unwrap();
    assert_eq!(of(&report, "fail"), ["sequential-duplicate"]);
    assert!(
        fs::read_to_string(&junit)
            .unwrap()
            .contains("<failure type=\"sequential-duplicate\"")
    );
    let sarif: Value = serde_json::from_str(&fs::read_to_string(&sarif).unwrap()).unwrap();
    assert_eq!(
        sarif["runs"][0]["results"][0]["ruleId"],
        "sequential-duplicate"
    );
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && page.contains("but 2 effects"));
    assert!(
        !page.contains(&token("alice", 1)["Authorization: Bearer ".len()..]),
        "a secret is shown"
    );
    // A failure that is in the baseline does not fail the run.
    let mut again = arguments.clone();
    again.retain(|it| it != "--seed" && it != "7");
    let same = ["--case", "sequential-duplicate", "--baseline", &now];
    assert_eq!(run(&again, &same).status.code(), Some(0));
    let news = ["--case", "late-duplicate", "--baseline", &now];
    assert_eq!(run(&again, &news).status.code(), Some(1));
}

#[test]
fn an_interruption_leaves_no_process_and_no_report() {
    let (upstream, folder, port) = (naive(), tempfile::tempdir().unwrap(), free_port());
    let pid_file = folder.path().join("pid");
    let command = proxy_command(folder.path(), &upstream, port, "\"memory:\"");
    let command = format!("echo $$ > {} && {command}", pid_file.display());
    let reports = folder.path().join("reports");
    fs::create_dir(&reports).unwrap();
    let html = reports.join("report.html").display().to_string();
    let mut all = arguments(&format!("http://127.0.0.1:{port}"), &upstream);
    all.extend(
        [
            "--late",
            "60s",
            "--html",
            &html,
            "--restart-command",
            &command,
        ]
        .map(String::from),
    );
    let at = all.iter().position(|it| it == "--late").unwrap();
    all.drain(at..at + 2);
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let mut child = refrain(&all)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    upstream.wait_for(20);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let pid: i32 = fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    until("the service is gone", || test_kill_process(pid).is_err());
    assert_eq!(fs::read_dir(&reports).unwrap().count(), 0);
}

#[test]
fn invalid_usage_is_reported_with_the_fix() {
    let upstream = naive();
    let url = format!("http://{}", upstream.address);
    let uncounted = format!("{url}/payments");
    let op = ["--op", "POST /payments", "--body", "20"];
    let wrong = |more: &[&str], code: i32, word: &str| {
        let output = refrain(more).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{more:?}: {text}");
        assert!(text.contains(word), "{more:?}: {text}");
    };
    wrong(&[], 64, "no service; pass its URL");
    wrong(&[&url], 64, "no operation; pass --op");
    wrong(&[&url, "--op", "POST"], 64, "invalid operation");
    wrong(&["ftp://x", op[0], op[1]], 64, "invalid address");
    let unknown = [
        "https://127.0.0.1:9",
        op[0],
        op[1],
        "--cacert",
        "no/such.pem",
    ];
    wrong(&unknown, 64, "cannot read --cacert=no/such.pem");
    wrong(
        &["https://127.0.0.1:9", op[0], op[1], "--insecure"],
        69,
        "does not respond",
    );
    wrong(&["http://192.0.2.1", op[0], op[1]], 64, "--yes");
    wrong(
        &["http://127.0.0.1:9", op[0], op[1]],
        69,
        "does not respond",
    );
    wrong(&[&url, "--op", "POST /nowhere"], 64, "returned 404");
    wrong(
        &[&[&url[..]], &op[..], &["--effects-url", &uncounted]].concat(),
        69,
        "status is 404",
    );
    wrong(
        &[&[&url[..]], &op[..], &["--case", "none"]].concat(),
        64,
        "unknown case",
    );
    wrong(
        &[&[&url[..]], &op[..], &["--late", "soon"]].concat(),
        64,
        "--late",
    );
    wrong(&["--config", "no/such.toml"], 64, "no/such.toml");
    assert_eq!(
        upstream
            .seen()
            .iter()
            .filter(|it| it.start().starts_with("POST /payments"))
            .count(),
        0
    );
    let output = refrain(&["--list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("kill-mid-request"));
}

/// A process that is killed on drop.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_is_named_is_paused_and_goes_on_afterwards() {
    let (upstream, folder, port) = (naive(), tempfile::tempdir().unwrap(), free_port());
    let command = proxy_command(folder.path(), &upstream, port, "\"file:records\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).stdout(Stdio::null());
    let proxy = Running(shell.spawn().unwrap());
    let is_up = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    until("the proxy is up", is_up);
    let (pid, url) = (proxy.0.id().to_string(), format!("http://127.0.0.1:{port}"));
    let more = ["--json", "-", "--pid", &pid, "--case", "paused-past-lease"];
    let output = run(&arguments(&url, &upstream), &more);
    assert_eq!(
        of(&json(&output), "pass"),
        ["paused-past-lease"],
        "{output:?}"
    );
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let state = state.rsplit(')').next().unwrap().trim_start();
    assert!(state.starts_with(['S', 'R']), "{state}");
}

#[test]
fn a_file_names_several_operations() {
    let (upstream, folder) = (naive(), tempfile::tempdir().unwrap());
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .start();
    fs::write(folder.path().join("payment.json"), r#"{"amount":20}"#).unwrap();
    let text = format!(
        "url = 'http://{}'\n[effects]\nurl = 'http://{}/count'\n\
         [[operation]]\nmatch = 'POST /payments'\nbody = '@payment.json'\n\
         [[operation]]\nmatch = 'POST /payments?order={{{{unique}}}}'\nbody = '20'\nheaders = ['X-Shop: a']\n",
        proxy.address, upstream.address
    );
    let file = folder.path().join("verify.toml");
    fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let more = [
        "--config",
        &file,
        "--case",
        "sequential-duplicate",
        "--json",
        "-",
    ];
    let output = refrain(&more).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    let operations = report["operations"].as_array().unwrap().iter();
    let names: Vec<_> = operations
        .map(|it| it["operation"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["POST /payments", "POST /payments?order={{unique}}"]);
    let seen = upstream.seen();
    let last = seen
        .iter()
        .rfind(|it| it.start().starts_with("POST"))
        .unwrap();
    assert!(
        last.start().starts_with("POST /payments?order=rv"),
        "{}",
        last.start()
    );
    assert_eq!(last.header("x-shop"), Some("a"));
    assert_eq!(
        seen.iter().find(|it| !it.body.is_empty()).unwrap().body,
        br#"{"amount":20}"#
    );
}

/// A service that answers everything with a page or a login: no verdict is possible.
#[test]
fn a_service_that_shows_nothing_is_neither_accused_nor_acquitted() {
    for (status, code, word) in [
        ("200 OK", 64, "cannot count effects"),
        (
            "404 Not Found",
            64,
            "not testable: POST /payments returned 404",
        ),
        (
            "401 Unauthorized",
            64,
            "not testable: POST /payments returned 401",
        ),
    ] {
        let upstream = Upstream::start(move |_, stream| answer(stream, status, &[], b"a page"));
        let url = format!("http://{}", upstream.address);
        let output = refrain(&[&url, "--op", "POST /payments", "--body", "{}"])
            .output()
            .unwrap();
        let said = format!("{output:?}");
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn effects_are_counted_with_sql() {
    let url = std::env::var("REFRAIN_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!("REFRAIN_TEST_POSTGRES_URL is not set: `cargo xtask test` starts a PostgreSQL and sets it")
    });
    let table = format!("refrain_verify_{}", std::process::id());
    sql(&url, &format!("CREATE TABLE {table} (amount text)"));
    let (place, insert) = (url.clone(), format!("INSERT INTO {table} VALUES ('20')"));
    let upstream = Upstream::start(move |_, stream| {
        sql(&place, &insert);
        answer(stream, "201 Created", &[], b"paid")
    });
    let service = format!("http://{}", upstream.address);
    let verify = |statement: &str| {
        let counting = format!("{url} {statement}");
        let more = [
            "--op",
            "POST /payments",
            "--body",
            "20",
            "--case",
            "sequential-duplicate",
        ];
        let all = [&[&*service], &more[..], &["--effects-sql", &counting]].concat();
        let output = refrain(&all).output().unwrap();
        (output.status.code(), format!("{output:?}"))
    };
    let counted = verify(&format!("SELECT count(*) FROM {table}"));
    let wrong = verify("SELECT 'many'");
    let missing = verify("SELECT count(*) FROM no_such_table_of_ours");
    sql(&url, &format!("DROP TABLE {table}"));
    assert!(counted.1.contains("but 2 effects"), "{counted:?}");
    assert_eq!(counted.0, Some(1), "{counted:?}");
    assert!(
        wrong.0 == Some(69) && wrong.1.contains("is not a number"),
        "{wrong:?}"
    );
    assert!(
        missing.0 == Some(69) && missing.1.contains("does not exist"),
        "{missing:?}"
    );
}

fn sql(url: &str, statement: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
        connection.abort();
    });
}

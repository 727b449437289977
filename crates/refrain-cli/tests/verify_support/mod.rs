//! Shared by the tests of `refrain verify`: an app without keys, a proxy in front of it, and the command.

#![allow(dead_code, reason = "each test file uses only part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use serde_json::Value;

use super::support::{Upstream, answer};

pub(crate) fn refrain(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("verify").args(arguments).stdin(Stdio::null());
    command
}

/// An app without idempotency keys: each POST takes a moment and creates a payment.
pub(crate) fn naive() -> Upstream {
    naive_taking(Duration::from_millis(20))
}

/// The same, with this time for each payment.
pub(crate) fn naive_taking(time: Duration) -> Upstream {
    let paid = Arc::new(AtomicUsize::new(0));
    Upstream::start(move |seen, stream| {
        let (method, target) = seen.start().split_once(' ').unwrap();
        let path = target.split('?').next().unwrap();
        match (method, path) {
            ("GET", "/count") => {
                let count = paid.load(SeqCst).to_string();
                answer(stream, "200 OK", &[], count.as_bytes())
            }
            ("POST", "/payments") if seen.body.starts_with(b"bad") => {
                answer(stream, "400 Bad Request", &[], b"bad amount")
            }
            ("POST", "/payments") if seen.body.starts_with(b"fails") => {
                answer(stream, "500 Internal Server Error", &[], b"failed")
            }
            ("POST", "/payments") => {
                std::thread::sleep(time);
                let id = paid.fetch_add(1, SeqCst) + 1;
                let (location, cookie) = (format!("/payments/{id}"), format!("session={id}"));
                let headers = [("location", &*location), ("set-cookie", &*cookie)];
                let is_binary = seen.header("content-type") == Some("application/octet-stream");
                let body = match is_binary {
                    true => seen.body.clone(),
                    false => format!("{{\"id\":{id}}}").into_bytes(),
                };
                answer(stream, "201 Created", &headers, &body)
            }
            _ => answer(stream, "404 Not Found", &[], b"not found"),
        }
    })
}

/// A bearer token with an invalid signature; the scope depends on its subject.
pub(crate) fn token(subject: &str, number: u32) -> String {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
    let part = |text: String| BASE64.encode(text);
    let claims = format!(r#"{{"iss":"test","sub":"{subject}","jti":"{number}"}}"#);
    let head = part(r#"{"alg":"HS256"}"#.into());
    format!(
        "Authorization: Bearer {head}.{}.{}",
        part(claims),
        part("signature".into())
    )
}

/// All options of a complete run.
pub(crate) fn arguments(url: &str, count: &Upstream) -> Vec<String> {
    let count = format!("http://{}/count", count.address);
    [
        url,
        "--op",
        "POST /payments?currency=1",
        "--body",
        r#"{"amount":20,"to":"bob"}"#,
        "--header",
        &token("alice", 1),
        "--other-credential",
        &token("mallory", 1),
        "--rotated-credential",
        &token("alice", 2),
        "--bad-body",
        "bad",
        "--failing-body",
        "fails",
        "--effects-url",
        &count,
        "--retention",
        "1s",
        "--late",
        "500ms",
        "--lease",
        "1s",
        "--seed",
        "7",
    ]
    .map(String::from)
    .into()
}

pub(crate) fn run(arguments: &[String], more: &[&str]) -> Output {
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    all.extend(more);
    refrain(&all).output().unwrap()
}

/// The ids of all cases with this verdict.
pub(crate) fn of(report: &Value, verdict: &str) -> Vec<String> {
    let cases = report["operations"][0]["cases"].as_array().unwrap().iter();
    let cases = cases.filter(|case| case["verdict"] == verdict);
    cases
        .map(|case| case["id"].as_str().unwrap().to_owned())
        .collect()
}

pub(crate) fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

pub(crate) fn free_port() -> u16 {
    refrain_testkit::servers::free_port().unwrap()
}

/// The command that starts a proxy in front of the app, on this port; `store` is as in refrain.toml.
pub(crate) fn proxy_command(folder: &Path, upstream: &Upstream, port: u16, store: &str) -> String {
    let file = folder.join("refrain.toml");
    let text = format!(
        "listen = \"127.0.0.1:{port}\"\nadmin = \"127.0.0.1:0\"\nupstream = \"http://{}\"\n\
         store = {store}\n[policy]\nlease = \"1s\"\nwait = \"300ms\"\n",
        upstream.address
    );
    fs::write(&file, text).unwrap();
    let refrain = env!("CARGO_BIN_EXE_refrain");
    format!(
        "cd {} && exec {refrain} proxy --config {}",
        folder.display(),
        file.display()
    )
}

//! A payment provider delivers an event until it gets a 2xx, possibly several times at once: it must run once.
//! A sender without the secret must be rejected. Tested with the real binary.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{fs, process::Command, thread, time::Duration};

use refrain::{
    clock::{Clock as _, SystemClock},
    key::Sender,
};
use refrain_testkit::webhook::signed;
use support::{HttpResponse, Proxy, Starting, Upstream, answer, call, get, request};

const SECRET: &str = "whsec_c3RyaWN0bHkgYmV0d2VlbiB1cw==";
const FORGED: &str = "whsec_Zm9yZ2Vk";

/// A route for each sender, all with the same secret.
fn file() -> String {
    let route = |sender: Sender| {
        format!(
            "[[operation]]\nmatch = \"POST /hooks/{sender}\"\nwebhook = \"{sender}\"\n\
             signature = {{ secret_env = [\"HOOKS_SECRET\", \"HOOKS_SECRET_OLD\"] }}\nwait = \"1m\"\n"
        )
    };
    Sender::ALL.map(route).concat()
}

fn starting(upstream: &Upstream) -> Starting {
    starting_with(upstream, &file())
}

fn starting_with(upstream: &Upstream, settings: &str) -> Starting {
    Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "file:records")
        .file(settings)
        .variable("HOOKS_SECRET", SECRET)
        .variable("HOOKS_SECRET_OLD", "b2xkb2xkb2xk")
}

/// Responds after a delay, with the number of the effect.
fn upstream() -> Upstream {
    Upstream::start(|seen, stream| {
        thread::sleep(Duration::from_millis(50));
        let number = seen.at.to_string();
        answer(stream, "202 Accepted", &[], number.as_bytes())
    })
}

fn event(id: &str) -> String {
    format!(r#"{{"id":"{id}","type":"charge.succeeded","created":1614265330}}"#)
}

/// Bytes of a delivery that is signed now.
fn delivery(sender: Sender, secret: &str, id: &str) -> Vec<u8> {
    let (time, body) = (SystemClock.wall().0 / 1_000, event(id));
    let headers = signed(sender, secret, id, time, body.as_bytes());
    let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
    let start = format!("POST /hooks/{sender}");
    request(&start, &headers, body.as_bytes())
}

fn metrics(proxy: &Proxy) -> HttpResponse {
    let ask = "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    call(proxy.admin, ask)
}

fn check_forged(answer: &HttpResponse) {
    assert_eq!(answer.status, 401, "{}", answer.head);
    assert_eq!(answer.code().as_deref(), Some("signature-invalid"));
}

#[test]
fn duplicates_cause_one_effect_and_all_are_told_2xx() {
    let upstream = upstream();
    let proxy = starting(&upstream).start();
    for (at, sender) in Sender::ALL.into_iter().enumerate() {
        let burst: Vec<_> = (0..8)
            .map(|_| {
                let address = proxy.address;
                thread::spawn(move || call(address, delivery(sender, SECRET, "evt_1")))
            })
            .collect();
        let answers: Vec<_> = burst.into_iter().map(|it| it.join().unwrap()).collect();
        for answer in &answers {
            assert_eq!((answer.status, answer.text()), (202, &*at.to_string()));
        }
        let fresh = answers.iter().filter(|answer| !answer.is_replay()).count();
        assert_eq!(fresh, 1, "{sender}");
        let late = call(proxy.address, delivery(sender, SECRET, "evt_1"));
        assert!(late.status == 202 && late.is_replay(), "{}", late.head);
        assert_eq!(upstream.count(), at + 1, "{sender}");
    }
    // The upstream can verify the signature again, because the delivery is unchanged.
    for (seen, sender) in upstream.seen().iter().zip(Sender::ALL) {
        assert_eq!(seen.body, event("evt_1").as_bytes(), "{sender}");
    }
    assert!(upstream.seen()[0].header("stripe-signature").is_some());
}

#[test]
fn forged_webhook_is_rejected_uses_no_key_and_is_counted() {
    let upstream = upstream();
    let proxy = starting(&upstream).start();
    for sender in Sender::ALL {
        check_forged(&call(proxy.address, delivery(sender, FORGED, "evt_1")));
        let start = format!("POST /hooks/{sender}");
        check_forged(&call(proxy.address, request(&start, &[], b"{}")));
        // Another spelling of the path is the same route.
        let unsigned = request(&format!("POST /hooks//{sender}/"), &[], b"{}");
        check_forged(&call(proxy.address, unsigned));
    }
    assert_eq!(upstream.count(), 0);
    let metrics = metrics(&proxy);
    let metrics = metrics.text();
    assert!(
        metrics.contains("refrain_unverified_total 15\n"),
        "{metrics}"
    );
    let is_counted = |line: &&str| {
        line.starts_with("refrain_requests_total{")
            && line.ends_with("outcome=\"signature-invalid\"} 3")
    };
    let counted = metrics.lines().filter(is_counted).count();
    assert_eq!(counted, Sender::ALL.len(), "{metrics}");
    assert!(
        metrics.contains("refrain_claims_granted_total 0\n"),
        "{metrics}"
    );
    for (at, sender) in Sender::ALL.into_iter().enumerate() {
        let real = call(proxy.address, delivery(sender, SECRET, "evt_1"));
        assert_eq!((real.status, real.is_replay()), (202, false), "{sender}");
        assert_eq!(upstream.count(), at + 1);
    }
    let rotated = delivery(Sender::Svix, "b2xkb2xkb2xk", "evt_2");
    assert_eq!(call(proxy.address, rotated).status, 202);
    let page = get("/.well-known/refrain/problems/signature-invalid");
    assert_eq!(call(proxy.address, page).status, 200);
}

#[test]
fn after_retention_a_late_duplicate_is_acknowledged_and_not_run() {
    let upstream = upstream();
    let settings = format!("{}retention = \"1s\"\n", file());
    let proxy = starting_with(&upstream, &settings).start();
    let last = Sender::StandardWebhooks;
    let send = || call(proxy.address, delivery(last, SECRET, "evt_1"));
    assert_eq!(send().text(), "0");
    support::until("retention has ended", || send().text().is_empty());
    let late = send();
    assert_eq!(
        (late.status, late.is_replay()),
        (200, true),
        "{}",
        late.head
    );
    assert_eq!(upstream.count(), 1);
    let metrics = metrics(&proxy);
    let counted = "outcome=\"acknowledged\"} ";
    assert!(metrics.text().contains(counted), "{}", metrics.text());
}

#[test]
fn secrets_come_from_variables_or_files_and_are_shown_nowhere() {
    let upstream = upstream();
    let starting = starting(&upstream);
    let place = starting.folder.path().join("hidden");
    fs::write(&place, format!("{SECRET}\n")).unwrap();
    let (config, folder) = (
        starting.folder.path().join("refrain.toml"),
        tempfile::tempdir().unwrap(),
    );
    let check = |variables: &[(&str, &str)], json: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        command
            .arg("check")
            .arg(&config)
            .args(json.then_some("--json"));
        command.envs(variables.iter().copied()).current_dir(&folder);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let file = place.display().to_string();
    let old = ("HOOKS_SECRET_OLD", "b2xkb2xkb2xk");
    for json in [false, true] {
        let (code, said) = check(&[("HOOKS_SECRET_FILE", &file), old], json);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("env:HOOKS_SECRET"), "{said}");
        assert!(!said.contains(SECRET) && !said.contains(old.1), "{said}");
        let (code, said) = check(&[("HOOKS_SECRET", "whsec_%%%"), old], json);
        assert_eq!(code, Some(64), "{said}");
        assert!(
            said.contains("env:HOOKS_SECRET is not a Standard Webhooks secret"),
            "{said}"
        );
        assert!(!said.contains("%%%"), "{said}");
    }
    let (code, said) = check(&[("HOOKS_SECRET", SECRET)], false);
    assert_eq!(code, Some(64), "{said}");
    let unset = "neither HOOKS_SECRET_OLD nor HOOKS_SECRET_OLD_FILE is set in the environment";
    assert!(said.contains(unset), "{said}");

    let proxy = starting.arg("--log", "trace").start();
    check_forged(&call(
        proxy.address,
        delivery(Sender::Stripe, FORGED, "evt_1"),
    ));
    assert_eq!(
        call(proxy.address, delivery(Sender::Stripe, SECRET, "evt_1")).status,
        202
    );
    let logged = fs::read_to_string(proxy.folder().join("stderr")).unwrap();
    assert!(logged.contains("missing or invalid"), "{logged}");
    assert!(
        !logged.contains(SECRET) && !logged.contains("evt_1"),
        "{logged}"
    );
}

/// A reader copies the configuration from the page, and the proxy has to start with it.
#[test]
fn the_file_on_the_page_about_webhooks_is_fine() {
    let page = include_str!("../../../docs/webhooks.md");
    let text = page.split("```toml\n").nth(1).unwrap();
    let text = text.split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("svix");
    fs::write(&secret, SECRET).unwrap();
    let text = text.replace("/run/secrets/svix", &secret.display().to_string());
    fs::write(folder.path().join("refrain.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args(["check", "refrain.toml"]).current_dir(&folder);
    for name in [
        "STRIPE_WEBHOOK_SECRET",
        "GITHUB_WEBHOOK_SECRET",
        "GITHUB_WEBHOOK_SECRET_OLD",
    ] {
        command.env(name, "x");
    }
    let output = command.output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("warning:"), "{said}");
}

#[test]
fn without_its_secret_the_proxy_does_not_start() {
    let upstream = upstream();
    let mut starting = starting(&upstream);
    starting
        .environment
        .retain(|(name, _)| name != "HOOKS_SECRET");
    let (code, said) = starting.refused();
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("refrain.toml:4:"), "{said}");
}

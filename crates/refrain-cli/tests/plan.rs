//! `refrain plan` as a user runs it: other commands must accept its files, it must keep manual edits, and it must
//! report drift. Golden files show every output; `UPDATE_GOLDEN=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use serde_json::Value;
use support::{Starting, Upstream, answer};

fn specs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../refrain-plan/tests/specs")
}

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command
        .arg("plan")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn refrain(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Plans a specification in a new folder.
fn planned(name: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: PathBuf| {
        let to = folder.path().join(from.strip_prefix(specs()).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    copy(specs().join(name));
    let parts = specs().join(name.rsplit_once('.').unwrap().0);
    fs::read_dir(parts)
        .into_iter()
        .flatten()
        .for_each(|part| copy(part.unwrap().path()));
    let document = folder.path().join(name).display().to_string();
    let output = plan(&[&document, "--out", &folder.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    (folder, document)
}

fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

/// Compares with the accepted output.
fn golden(folder: &Path, spec: &str, names: &[&str]) {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/plan_golden")
        .join(spec);
    for name in names {
        let (now, path) = (text(folder, name), home.join(format!("{name}.golden")));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&home).unwrap();
            fs::write(&path, &now).unwrap();
        }
        let before = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            now == before,
            "{} differs; check it, then accept it with UPDATE_GOLDEN=1\n{now}",
            path.display()
        );
    }
}

#[test]
fn every_output_is_as_it_was_found_good() {
    for spec in ["bank", "shop", "saas", "receiver"] {
        let (folder, _) = planned(&format!("{spec}.yaml"));
        let copy = format!("{spec}.refrain.yaml");
        golden(
            folder.path(),
            spec,
            &[
                "refrain.toml",
                "retrying-safely.md",
                "retrying-safely.html",
                "verify.toml",
                &copy,
            ],
        );
    }
    for spec in ["orders-async2", "orders-async3"] {
        let (folder, _) = planned(&format!("{spec}.yaml"));
        let copy = format!("{spec}.refrain.yaml");
        golden(
            folder.path(),
            spec,
            &["refrain.toml", "retrying-safely.md", &copy],
        );
        assert!(!folder.path().join("verify.toml").exists());
    }
}

#[test]
fn every_policy_is_accepted_and_every_copy_can_be_planned_again() {
    for spec in [
        "bank",
        "shop",
        "saas",
        "receiver",
        "travel",
        "utility",
        "orders-async2",
        "orders-async3",
    ] {
        let (folder, _) = planned(&format!("{spec}.yaml"));
        let path = |name: &str| folder.path().join(name).display().to_string();
        let checked = refrain(&["check", &path("refrain.toml")]);
        assert_eq!(checked.status.code(), Some(0), "{spec}: {}", said(&checked));
        let copy = path(&format!("{spec}.refrain.yaml"));
        let again = plan(&[&copy, "--out", &path("again"), "--json"]);
        assert_eq!(again.status.code(), Some(0), "{spec}: {}", said(&again));
        let report: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(
            report["plan"]["troubles"],
            Value::Array(Vec::new()),
            "{spec}"
        );
    }
}

#[test]
fn manual_edits_survive_and_drift_is_reported() {
    let (folder, document) = planned("shop.yaml");
    let out = folder.path().display().to_string();
    let check = || plan(&[&document, "--out", &out, "--check"]);
    assert_eq!(check().status.code(), Some(0), "{}", said(&check()));

    let policy = folder.path().join("refrain.toml");
    let edited = text(folder.path(), "refrain.toml").replace(
        "match = \"POST /api/orders\"\nclass = \"monetary\"",
        "match = \"POST /api/orders\"\nclass = \"create\"   # paid later\nretention = \"3d\"",
    );
    assert!(edited.contains("paid later"), "{edited}");
    fs::write(&policy, &edited).unwrap();
    assert_eq!(plan(&[&document, "--out", &out]).status.code(), Some(0));
    assert_eq!(text(folder.path(), "refrain.toml"), edited);
    assert!(
        text(folder.path(), "retrying-safely.md")
            .contains("| `POST /api/orders` | Idempotency-Key | 3d |"),
        "{}",
        text(folder.path(), "retrying-safely.md")
    );

    let api = fs::read_to_string(&document).unwrap();
    let api = api
        .replace("  /returns/{id}/receive:\n", "  /returns/{id}/lose:\n")
        .replace("/stock/availability", "/stock/corrections")
        .replace(
            "How many there are of several products",
            "Write corrections",
        );
    fs::write(&document, api).unwrap();
    let drifted = check();
    assert_eq!(drifted.status.code(), Some(1), "{}", said(&drifted));
    let told = said(&drifted);
    assert!(
        told.contains("gone  POST /api/returns/{id}/receive"),
        "{told}"
    );
    assert!(told.contains("new  POST /api/stock/corrections"), "{told}");
    assert_eq!(text(folder.path(), "refrain.toml"), edited, "--check wrote");
    assert_eq!(plan(&[&document, "--out", &out]).status.code(), Some(0));
    let merged = text(folder.path(), "refrain.toml");
    assert!(
        merged.contains("# paid later\nretention = \"3d\"")
            && merged.contains("POST /api/stock/corrections"),
        "{merged}"
    );
    let order: Vec<_> = [
        "POST /api/stock/reservations\"",
        "POST /api/stock/corrections\"",
        "POST /api/carts\"",
    ]
    .map(|it| merged.find(it).unwrap())
    .into();
    assert!(order.is_sorted(), "not in the API's order: {order:?}");
}

#[test]
fn files_of_others_are_left_alone_without_force() {
    let (folder, document) = planned("bank.yaml");
    let out = folder.path().display().to_string();
    let page = folder.path().join("retrying-safely.md");
    fs::write(
        &page,
        text(folder.path(), "retrying-safely.md") + "\nAsk us.\n",
    )
    .unwrap();
    let output = plan(&[&document, "--out", &out]);
    assert!(said(&output).contains("left"), "{}", said(&output));
    assert!(text(folder.path(), "retrying-safely.md").ends_with("Ask us.\n"));
    plan(&[&document, "--out", &out, "--force"]);
    assert!(!text(folder.path(), "retrying-safely.md").ends_with("Ask us.\n"));

    let policy = folder.path().join("refrain.toml");
    fs::write(&policy, "# mine\nstore = \"memory:\"\n").unwrap();
    let refused = plan(&[&document, "--out", &out]);
    assert_eq!(refused.status.code(), Some(64), "{}", said(&refused));
    assert!(said(&refused).contains("--force"), "{}", said(&refused));
    assert_eq!(
        text(folder.path(), "refrain.toml"),
        "# mine\nstore = \"memory:\"\n"
    );
    assert_eq!(
        plan(&[&document, "--out", &out, "--force"]).status.code(),
        Some(0)
    );
    assert!(text(folder.path(), "refrain.toml").starts_with("# mine\nstore = \"memory:\"\n"));
}

#[test]
fn bad_descriptions_are_told_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let check = |bytes: &[u8], part: &str| {
        let path = folder.path().join("api.yaml");
        fs::write(&path, bytes).unwrap();
        let output = plan(&[
            &path.display().to_string(),
            "--out",
            &folder.path().join("out").display().to_string(),
        ]);
        assert_eq!(output.status.code(), Some(64), "{}", said(&output));
        assert!(
            said(&output).contains(part) && said(&output).contains("fix:"),
            "{part}: {}",
            said(&output)
        );
        assert!(!folder.path().join("out").exists());
    };
    check(
        b"openapi: 3.1.0\npaths:\n  /caf\xe9: {}\n",
        "api.yaml:3:7: is not UTF-8",
    );
    check(b"openapi: 3.1.0\npaths: {}\n", "has no operations to plan");
    check(b"hello: world\n", "no member `openapi`");
    let missing = plan(&["/nowhere/api.yaml"]);
    assert_eq!(missing.status.code(), Some(64));
    assert_eq!(plan(&[]).status.code(), Some(2));
}

/// A service without deduplication: every POST creates a resource.
fn naive() -> Upstream {
    let made = AtomicUsize::new(0);
    Upstream::start(move |_, stream| {
        std::thread::sleep(Duration::from_millis(20));
        let id = made.fetch_add(1, SeqCst) + 1;
        let location = format!("/made/{id}");
        answer(
            stream,
            "201 Created",
            &[("location", &*location)],
            format!("{{\"id\":{id}}}").as_bytes(),
        )
    })
}

#[test]
fn the_policy_starts_the_proxy_and_the_tests_are_green_behind_it() {
    let (folder, _) = planned("bank.yaml");
    let upstream = naive();
    let config = folder.path().join("refrain.toml").display().to_string();
    let starting = Starting::new()
        .arg("--config", config)
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:");
    let proxy = starting.start();
    let config = folder.path().join("verify.toml");
    let url = format!("http://{}", proxy.address);
    let report = folder.path().join("report.json");
    let output = refrain(&[
        "verify",
        &url,
        "--config",
        &config.display().to_string(),
        "--json",
        &report.display().to_string(),
        "--late",
        "500ms",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
    let operations = report["operations"].as_array().unwrap();
    let active = text(folder.path(), "verify.toml");
    let active = active.lines().filter(|line| *line == "[[operation]]");
    assert_eq!(operations.len(), active.count());
    assert!(operations.len() > 8, "{}", operations.len());
    for operation in operations {
        let cases = operation["cases"].as_array().unwrap();
        let passed = cases
            .iter()
            .filter(|case| case["verdict"] == "pass")
            .count();
        assert!(passed >= 15, "{operation:#}");
    }
}

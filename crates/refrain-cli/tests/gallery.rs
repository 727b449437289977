//! A tester with false alarms gets turned off, and one that misses a bug is worse than none.
//! Each service in `examples/broken` has one bug or none, and `refrain verify` has to reach exactly the verdicts
//! that `gallery.toml` lists for it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use serde::Deserialize;
use serde_json::Value;

/// Services of one language that are tested at the same time; they sleep most of the time.
const AT_ONCE: usize = 4;
/// How often a service is verified before its verdicts count as wrong: a pause or a kill has to hit a window of
/// milliseconds, and a busy machine can miss it.
const TRIES: usize = 3;
/// Enough time for a restart and a lease of 3 s on a busy machine; `--late` is longer than the 4 s for which one of
/// the services remembers keys.
const PLAN: [&str; 6] = ["--patience", "15s", "--late", "4500ms", "--concurrent", "6"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gallery {
    service: Vec<Exhibit>,
}

/// A service and its expected findings; all other cases pass.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exhibit {
    file: String,
    #[serde(default)]
    fails: BTreeSet<String>,
    #[serde(default)]
    warns: BTreeSet<String>,
    #[serde(default)]
    skips: BTreeSet<String>,
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/broken");
    folder.canonicalize().unwrap()
}

fn exhibits() -> Vec<Exhibit> {
    let text = fs::read_to_string(folder().join("gallery.toml")).unwrap();
    toml::from_str::<Gallery>(&text).unwrap().service
}

#[test]
fn services_in_python_get_exactly_their_verdicts() {
    check("python/", |file, port, data| {
        format!("exec env PYTHONDONTWRITEBYTECODE=1 python3 {file} {port} {data}")
    });
}

#[test]
fn services_in_node_get_exactly_their_verdicts() {
    check("node/", |file, port, data| {
        format!("exec node {file} {port} {data}")
    });
}

#[test]
fn services_in_rust_get_exactly_their_verdicts() {
    let binary = built();
    check("rust/", |file, port, data| {
        let hole = Path::new(file).file_stem().unwrap().to_str().unwrap();
        // The correct service has no file of its own: the broken ones are changes to it.
        let hole = if hole == "holes" { "right" } else { hole };
        format!("exec {} {hole} {port} {data}", binary.display())
    });
}

fn check(language: &str, start: impl Fn(&str, u16, &str) -> String + Sync) {
    let mut services = exhibits();
    services.retain(|it| it.file.starts_with(language));
    assert!(
        services.len() > 5,
        "the gallery has lost its {language} services"
    );
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(service) = services.get(next.fetch_add(1, SeqCst)) {
                    let mut found = verified(service, &start);
                    for _ in 1..TRIES {
                        if found.is_empty() {
                            break;
                        }
                        println!("{}: verified again", found.join("\n"));
                        found = verified(service, &start);
                    }
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Differences between the verdicts and the gallery's list, in both directions.
fn verified(service: &Exhibit, start: impl Fn(&str, u16, &str) -> String) -> Vec<String> {
    let (data, port) = (
        tempfile::tempdir().unwrap(),
        refrain_testkit::servers::free_port().unwrap(),
    );
    let file = folder().join(&service.file).display().to_string();
    let url = format!("http://127.0.0.1:{port}");
    let output = Command::new(env!("CARGO_BIN_EXE_refrain"))
        .args(["verify", &url, "--json", "-", "--config"])
        .arg(folder().join("verify.toml"))
        .args(["--effects-url", &format!("{url}/ledger")])
        .arg("--restart-command")
        .arg(start(&file, port, data.path().to_str().unwrap()))
        .args(PLAN)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
        return vec![format!("{}: no report: {said}", service.file)];
    };
    let cases = report["operations"][0]["cases"].as_array().unwrap();
    let mut wrong: Vec<_> = cases
        .iter()
        .filter_map(|case| differs(service, case))
        .collect();
    let known: BTreeSet<_> = cases
        .iter()
        .filter_map(|case| case["id"].as_str())
        .collect();
    let listed = [&service.fails, &service.warns, &service.skips];
    for case in listed.into_iter().flatten() {
        if !known.contains(&**case) {
            wrong.push(format!("{}: there is no case {case}", service.file));
        }
    }
    let code = i32::from(!service.fails.is_empty());
    if wrong.is_empty() && output.status.code() != Some(code) {
        wrong.push(format!("{}: {:?}", service.file, output.status));
    }
    wrong
}

fn differs(service: &Exhibit, case: &Value) -> Option<String> {
    let id = case["id"].as_str().unwrap();
    let expected = match id {
        id if service.fails.contains(id) => "fail",
        id if service.warns.contains(id) => "warn",
        id if service.skips.contains(id) => "skipped",
        _ => "pass",
    };
    let (verdict, findings) = (case["verdict"].as_str().unwrap(), &case["findings"]);
    let file = &service.file;
    (verdict != expected).then(|| format!("{file}: {id}: {verdict}, not {expected}: {findings}"))
}

/// The services in Rust, built with the profile of this test.
fn built() -> PathBuf {
    let refrain = Path::new(env!("CARGO_BIN_EXE_refrain"));
    let folder = refrain.parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "broken-rust"]);
    build.arg("--target-dir").arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        build.arg("--release");
    }
    let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(status.unwrap().success());
    folder.join("broken-rust")
}

#[test]
fn each_file_is_listed_and_the_page_says_what_the_list_says() {
    let mut files = BTreeSet::new();
    for part in ["python", "node", "rust/src/holes"] {
        for entry in fs::read_dir(folder().join(part)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_file() && !name.starts_with("base.") {
                files.insert(format!("{part}/{name}"));
            }
        }
    }
    files.insert("rust/src/holes.rs".into());
    let listed: BTreeSet<_> = exhibits().into_iter().map(|it| it.file).collect();
    assert_eq!(files, listed);
    let page = fs::read_to_string(folder().join("README.md")).unwrap();
    for service in exhibits() {
        let row = format!("| [{0}]({0}) |", service.file);
        let row = page.lines().find(|line| line.starts_with(&row));
        let row = row.unwrap_or_else(|| panic!("README.md has no row for {}", service.file));
        let told = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let told: BTreeSet<_> = told
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect();
        assert_eq!(told, service.fails, "{}", service.file);
    }
}

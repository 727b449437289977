//! A deployment script runs `refrain check` and goes by its exit code; a person reads what it prints.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{fs, path::Path, process::Command};

use support::{Starting, Upstream, answer};
use tempfile::TempDir;

const GOOD: &str = "store = \"postgres://app:secret@db/app\"\n[[operation]]\nmatch = \"POST /v1/payments\"\nclass = \"monetary\"\n[[operation]]\nmatch = \"POST /search\"\nclass = \"read\"\n";
const BAD: &str = "[policy]\nretension = \"1h\"\n";

/// Runs the command in `folder` and answers exit code, stdout and stderr.
fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.current_dir(folder).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("good.toml"), GOOD).unwrap();
    fs::write(folder.path().join("bad.toml"), BAD).unwrap();
    fs::write(folder.path().join("binary.toml"), [0xFF, 0xFE]).unwrap();
    folder
}

#[test]
fn exit_codes_tell_good_bad_and_wrong_usage_apart() {
    let folder = folder();
    let cases: [(&[&str], i32); 10] = [
        (&["check", "good.toml"], 0),
        (&["check", "good.toml", "--json"], 0),
        (&["check", "--schema"], 0),
        (&["check", "--help"], 0),
        (&["check", "bad.toml"], 64),
        (&["check", "bad.toml", "--json"], 64),
        (&["check", "binary.toml"], 64),
        (&["check", "missing.toml"], 64),
        (&["check"], 2),
        (&["check", "good.toml", "--jason"], 2),
    ];
    for (args, expected) in cases {
        let (code, stdout, stderr) = run(folder.path(), args);
        assert_eq!(code, expected, "{args:?}\n{stdout}\n{stderr}");
        assert_eq!(stderr.is_empty(), expected == 0, "{args:?}: {stderr}");
    }
}

#[test]
fn a_good_file_is_shown_as_a_table() {
    let (_, stdout, _) = run(folder().path(), &["check", "good.toml"]);
    let rows: Vec<Vec<_>> = stdout
        .lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    let row = |name: &str| {
        rows.iter()
            .find(|row| row.first() == Some(&name))
            .unwrap()
            .clone()
    };
    assert_eq!(
        row("POST /v1/payments"),
        [
            "POST /v1/payments",
            "monetary",
            "at-most-once",
            "header:idempotency-key (required)",
            "credential",
            "30d",
            "365d",
            "audit"
        ]
    );
    assert_eq!(row("POST /search")[1..3], ["read", "unguarded"]);
    assert_eq!(row("PATCH *")[2], "at-most-once");
    let is_promised = |guarantee: &str| stdout.contains(&format!("\n{guarantee}: what "));
    assert!(is_promised("at-most-once"), "{stdout}");
    assert!(!is_promised("at-least-once"), "it is not in force");
    assert!(
        stdout.contains("postgres://app:***@db/app") && !stdout.contains("secret"),
        "{stdout}"
    );
}

/// A retry that comes after retention is not a duplicate any more, and nobody notices before it has run twice.
#[test]
fn a_retention_that_ends_before_the_sender_gives_up_is_warned_about() {
    let folder = folder();
    let hook = |settings: &str| format!("[[operation]]\nmatch = \"POST /hook\"\n{settings}\n");
    let cases = [
        (
            "webhook = \"stripe\"\nretention = \"1d\"",
            "retention (1d) ends before stripe stops delivering again (3d)",
            "retention = \"3d\"",
        ),
        (
            "webhook = \"stripe\"\nretention = \"1d\"\nremember = \"1h\"",
            "a late one runs again",
            "retention = \"3d\"",
        ),
        (
            "key = \"preset:github\"",
            "retention (1d) ends before github",
            "retention = \"3d\"",
        ),
        (
            "key = \"header:webhook-id\"\nretention = \"5m\"",
            "retention (5m) ends before standard-webhooks",
            "retention = \"3d4h\"",
        ),
        (
            "webhook = \"svix\"",
            "anybody can send what looks like svix's",
            "signature = { secret_env = \"NAME\" }",
        ),
        (
            "webhook = \"shopify\"\nsignature = { secret_env = \"PATH\" }",
            "",
            "",
        ),
        ("key = \"preset:github\"\nretention = \"3d\"", "", ""),
        ("class = \"event\"", "", ""),
    ];
    for (settings, message, fix) in cases {
        fs::write(folder.path().join("hook.toml"), hook(settings)).unwrap();
        let (code, stdout, stderr) = run(folder.path(), &["check", "hook.toml"]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{settings}");
        let (_, json, _) = run(folder.path(), &["check", "hook.toml", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let warnings = json["warnings"].as_array().unwrap();
        if message.is_empty() {
            assert!(!stdout.contains("warning:"), "{stdout}");
            assert!(warnings.is_empty(), "{json}");
            continue;
        }
        let told = stdout.split_once("\nwarning: POST /hook: ").unwrap().1;
        assert!(
            told.contains(message) && told.contains("\n  fix: "),
            "{told}"
        );
        assert!(told.contains(fix), "{told}");
        assert!(
            warnings[0]["message"].as_str().unwrap().contains(message) || warnings.len() > 1,
            "{json}"
        );
        assert_eq!(warnings[0]["name"], "POST /hook");
    }
}

#[test]
fn json_is_for_programs() {
    let folder = folder();
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run(folder.path(), args).1).unwrap()
    };
    let good = json(&["check", "good.toml", "--json"]);
    assert_eq!(good["operations"][0]["match"], "POST /v1/payments");
    assert_eq!(good["operations"][0]["retention"], "30d");
    let bad = json(&["check", "bad.toml", "--json"]);
    assert_eq!(bad["error"]["problems"][0]["line"], 2);
    assert_eq!(
        bad["error"]["problems"][0]["help"],
        "did you mean `retention`?"
    );
    assert_eq!(json(&["check", "--schema"])["title"], "refrain.toml");
}

#[test]
fn a_bad_file_is_explained_on_stderr() {
    let (_, stdout, stderr) = run(folder().path(), &["check", "bad.toml"]);
    assert!(stdout.is_empty());
    assert!(
        stderr.starts_with("bad.toml:2:1: `retension` is no setting in [policy]\n"),
        "{stderr}"
    );
    let (_, _, stderr) = run(folder().path(), &["check", "missing.toml"]);
    assert!(
        stderr.starts_with("missing.toml: cannot be read"),
        "{stderr}"
    );
}

/// Where everything is done: a policy in which nothing is left to say against.
const REVIEWED: &str = "upstream = \"http://127.0.0.1:3000\"\n[[operation]]\nmatch = \"POST /payments\"\nclass = \"monetary\"\nprobe = \"GET /payments?key={key}\"\n";

/// The review as JSON, with the exit code.
fn review(folder: &Path, args: &[&str]) -> (i32, serde_json::Value) {
    let args = [&["check", "refrain.toml", "--report=json"], args].concat();
    let (code, stdout, stderr) = run(folder, &args);
    let review = serde_json::from_str(&stdout);
    (
        code,
        review.unwrap_or_else(|_| panic!("{stdout}\n{stderr}")),
    )
}

/// The lines of a question, as `state required why`.
fn lines(review: &serde_json::Value, id: &str) -> Vec<String> {
    let items = review["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["id"] == id).unwrap();
    let lines = item["lines"].as_array().unwrap().iter().map(|line| {
        let word = |name: &str| line[name].as_str().unwrap().to_owned();
        assert_eq!(line["fix"].is_string(), word("state") == "open", "{line}");
        let required = if line["required"] == true {
            "required"
        } else {
            "-"
        };
        format!("{} {required} {}", word("state"), word("why"))
    });
    lines.collect()
}

/// A report of `refrain verify`, with this verdict for every core case.
fn report(target: &str, operation: &str, verdict: &str) -> String {
    let cases = ["sequential-duplicate", "concurrent-duplicates", "lost-answer"].map(|id| {
        serde_json::json!({
            "id": id, "title": id, "verdict": verdict, "findings": ["it took effect twice"], "explanation": "",
            "hole": "a hole", "fix": "claim first", "took_ms": 1, "exchanges": []
        })
    });
    let operation = serde_json::json!({ "operation": operation, "counting": "by a URL", "is_weak": false, "cases": cases });
    serde_json::json!({ "version": 1, "target": target, "seed": 7, "took_ms": 1, "operations": [operation] }).to_string()
}

#[test]
fn each_question_finds_what_it_asks_for() {
    let hook = "webhook = \"svix\"\n";
    let worker = "[[worker]]\nname = \"billing\"\nsource = \"nats://127.0.0.1:4222\"\nqueue = \"Q\"\ndeliver = \"http://127.0.0.1:3000/payments\"\n";
    let cases = [
        (
            "store = \"memory:\"\n",
            "storage",
            "open required memory: forgets",
        ),
        (
            "durability = \"relaxed\"\n",
            "storage",
            "open required durability",
        ),
        (
            "store = \"redis://db\"\n",
            "storage",
            "open - POST /payments is at-most-once on Redis",
        ),
        (
            "+accept_lossy_claims = true\n",
            "storage",
            "open required POST /payments accepts",
        ),
        (
            "+on_store_failure = \"pass\"\n",
            "storage",
            "open required POST /payments runs unguarded",
        ),
        (
            "+required = false\n",
            "keys",
            "open required POST /payments moves money",
        ),
        (
            "+key = \"derive\"\n",
            "keys",
            "open required POST /payments derives",
        ),
        (
            "+scope = \"none\"\nreplay_to = \"same-scope\"\n",
            "scope",
            "open required everybody shares",
        ),
        (
            "+scope = \"header:X-Tenant\"\nreplay_to = \"same-scope\"\n",
            "scope",
            "open - replays of POST /payments go",
        ),
        (
            "+mode = \"observe\"\n",
            "conflicts",
            "open required POST /payments is only observed",
        ),
        (
            "+fingerprint = [\"method\", \"path\"]\n",
            "conflicts",
            "open required the fingerprint of POST /payments covers nothing",
        ),
        (
            "+remember = \"0s\"\n",
            "retention",
            "open required POST /payments runs again",
        ),
        (
            "+retention = \"1d\"\n",
            "financial",
            "open required outcomes of POST /payments are kept for 1d only",
        ),
        (
            "+audit = false\n",
            "financial",
            "open required POST /payments is not to be audited",
        ),
        (
            "+[[operation]]\nmatch = \"POST /orders\"\n",
            "classified",
            "open required POST /orders has no class",
        ),
        (
            "+[[operation]]\nmatch = \"POST /refunds\"\nclass = \"create\"\n",
            "financial",
            "open - POST /refunds sounds of money",
        ),
        (
            &format!("+[[operation]]\nmatch = \"POST /hook\"\n{hook}"),
            "retention",
            "open required POST /hook: anybody can send",
        ),
        (
            &format!("+{worker}"),
            "consumers",
            "open required worker billing: it has no `dead_letter`",
        ),
        (
            &format!("+{worker}dead_letter = \"D\"\n"),
            "consumers",
            "open required worker billing is at-least-once",
        ),
        ("", "consumers", "not-applicable - the file has no workers"),
        ("", "covered", "open - no description"),
        ("", "tests", "open required there is no report"),
        ("", "classified", "done required POST /payments is monetary"),
    ];
    let folder = folder();
    for (settings, id, expected) in cases {
        let file = match settings.strip_prefix('+') {
            Some(behind) => format!("{REVIEWED}{behind}"),
            None => format!("{settings}{REVIEWED}"),
        };
        fs::write(folder.path().join("refrain.toml"), file).unwrap();
        let (code, review) = review(folder.path(), &[]);
        let lines = lines(&review, id);
        let found = lines.iter().any(|line| line.starts_with(expected));
        assert!(found, "{settings}{id}: {lines:#?}");
        assert_eq!(code, 1, "there is no report of verify");
    }
}

#[test]
fn a_report_of_verify_counts_only_if_it_is_about_this() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let here = "http://127.0.0.1:8377";
    fs::write(path("refrain.toml"), REVIEWED).unwrap();
    let cases = [
        (
            report(here, "POST /payments?a=1", "pass"),
            0,
            "done required 3 cases passed at http://127.0.0.1:8377",
        ),
        (
            report(here, "POST /payments", "fail"),
            1,
            "open required POST /payments: sequential-duplicate failed: it took effect twice",
        ),
        (
            report(here, "POST /payments", "skipped"),
            1,
            "open required POST /payments: lost-answer was not tried",
        ),
        (
            report(here, "POST /orders", "pass"),
            1,
            "open required POST /payments is not in the report",
        ),
        (
            report("http://127.0.0.1:3000", "POST /payments", "pass"),
            1,
            "open required the report is about http://127.0.0.1:3000, the service behind",
        ),
        (
            report("http://staging:80", "POST /payments", "pass"),
            0,
            "open - the report is about http://staging:80",
        ),
    ];
    for (report, expected, why) in cases {
        fs::write(path("verify.json"), &report).unwrap();
        let (code, review) = review(folder.path(), &[]);
        let lines = lines(&review, "tests");
        assert_eq!(code, expected, "{review:#}");
        assert!(
            lines.iter().any(|line| line.starts_with(why)),
            "{why}: {lines:#?}"
        );
    }
    let prefixed = REVIEWED.replace("POST /payments", "POST /v1/payments");
    let prefixed = prefixed.replace("GET /payments", "GET /v1/payments");
    fs::write(path("refrain.toml"), prefixed).unwrap();
    let under = report("http://127.0.0.1:8377/v1", "POST /payments", "pass");
    fs::write(path("verify.json"), under).unwrap();
    assert_eq!(review(folder.path(), &[]).0, 0);
    fs::write(path("refrain.toml"), REVIEWED).unwrap();
    let worker = "[[worker]]\nname = \"billing\"\nsource = \"nats://127.0.0.1:4222\"\nqueue = \"ORDERS\"\ndeliver = \"http://127.0.0.1:9/e\"\ndead_letter = \"D\"\n";
    fs::write(path("refrain.toml"), format!("{REVIEWED}{worker}")).unwrap();
    fs::write(path("verify.json"), report(here, "POST /payments", "pass")).unwrap();
    let (code, found) = review(folder.path(), &[]);
    let why = "open required no report is about the messages of worker billing";
    assert_eq!((code, lines(&found, "tests")), (1, vec![why.into()]));
    let messages = report("ORDERS at nats://127.0.0.1:4222", "message", "pass");
    let messages = messages.replace("sequential-duplicate", "duplicate-message");
    let messages = messages.replace("concurrent-duplicates", "duplicate-in-flight");
    fs::write(path("messages.json"), messages).unwrap();
    let both = [
        "--verify-report",
        "verify.json",
        "--verify-report",
        "messages.json",
    ];
    let (code, found) = review(folder.path(), &both);
    assert_eq!(code, 0, "{found:#}");
    fs::write(path("refrain.toml"), REVIEWED).unwrap();
    let left_out = r#"{"version":1,"target":"http://127.0.0.1:8377","seed":7,"took_ms":1,"operations":
        [{"operation":"POST /payments","counting":"not at all","is_weak":false,"cases":[],"left_out":"it needs a file"}]}"#;
    fs::write(path("verify.json"), left_out).unwrap();
    let (_, found) = review(folder.path(), &[]);
    let why = "open required POST /payments was left out of the test: it needs a file";
    assert_eq!(lines(&found, "tests"), [why]);
    let report = report(here, "POST /payments", "pass");
    fs::write(path("elsewhere.json"), report).unwrap();
    fs::remove_file(path("verify.json")).unwrap();
    let named = ["--verify-report", "elsewhere.json"];
    assert_eq!(review(folder.path(), &named).0, 0);
    let file = fs::File::options()
        .write(true)
        .open(path("elsewhere.json"))
        .unwrap();
    let policy = fs::metadata(path("refrain.toml"))
        .unwrap()
        .modified()
        .unwrap();
    file.set_modified(policy - std::time::Duration::from_secs(60))
        .unwrap();
    let (code, late) = review(folder.path(), &named);
    assert_eq!(
        (code, lines(&late, "tests")[0].as_str()),
        (1, "open required the report is older than the policy")
    );
    fs::write(path("elsewhere.json"), "{}").unwrap();
    let (code, stdout, stderr) = run(
        folder.path(),
        &[
            "check",
            "refrain.toml",
            "--report",
            "--verify-report",
            "elsewhere.json",
        ],
    );
    assert_eq!((code, stdout.as_str()), (64, ""));
    assert!(
        stderr.contains("elsewhere.json: is no report of refrain verify"),
        "{stderr}"
    );
}

#[test]
fn paths_that_the_file_does_not_name_are_found_in_the_apis_description() {
    let folder = folder();
    fs::write(folder.path().join("refrain.toml"), REVIEWED).unwrap();
    let document = "openapi: 3.1.0\nservers: [{url: https://api.example/}]\npaths:\n  /payments: {post: {}, get: {}}\n  /orders/{id}: {put: {}}\n";
    fs::write(folder.path().join("openapi.yaml"), document).unwrap();
    let (_, found) = review(folder.path(), &["--openapi", "openapi.yaml"]);
    let expected =
        "open required PUT /orders/{id} changes something, and no operation of the file is for it";
    assert_eq!(lines(&found, "covered"), [expected]);
    let more = "[[operation]]\nmatch = \"PUT /orders/{order}\"\nclass = \"read\"\n";
    fs::write(
        folder.path().join("refrain.toml"),
        format!("{REVIEWED}{more}"),
    )
    .unwrap();
    let (_, found) = review(folder.path(), &["--openapi", "openapi.yaml"]);
    assert_eq!(
        lines(&found, "covered"),
        ["done required all 2 mutating operations are named"]
    );
    for (bad, why) in [("paths: [", "openapi.json"), ("{}", "openapi.json")] {
        fs::write(folder.path().join("openapi.json"), bad).unwrap();
        let (code, _, stderr) = run(
            folder.path(),
            &[
                "check",
                "refrain.toml",
                "--report",
                "--openapi",
                "openapi.json",
            ],
        );
        assert_eq!(code, 64, "{bad}");
        assert!(stderr.contains(why), "{stderr}");
    }
}

#[test]
fn the_review_reads_the_same_in_every_form() {
    let folder = folder();
    let file = REVIEWED.replace("POST /payments", "POST /a<b>");
    let file = file.replace("GET /payments", "GET /p");
    fs::write(folder.path().join("refrain.toml"), file).unwrap();
    let written = |form: &str| run(folder.path(), &["check", "refrain.toml", form]);
    let (code, markdown, stderr) = written("--report");
    assert_eq!((code, stderr.as_str()), (1, ""));
    assert_eq!(written("--report=md").1, markdown);
    let (_, json) = review(folder.path(), &[]);
    assert_eq!(json["open"], true);
    let page = written("--report=html").1;
    assert!(
        page.starts_with("<!doctype html>") && page.contains("POST /a&lt;b&gt;"),
        "{page}"
    );
    assert!(
        !page.contains("POST /a<b>") && !page.contains("http-equiv=\"refresh\""),
        "{page}"
    );
    for item in json["items"].as_array().unwrap() {
        let title = item["title"].as_str().unwrap();
        assert!(markdown.contains(&format!("\n## {title}\n")), "{markdown}");
        assert!(page.contains(&title.replace('\'', "&#39;")), "{page}");
    }
    let (code, _, _) = run(folder.path(), &["check", "bad.toml", "--report"]);
    assert_eq!(code, 64);
    let (code, _, _) = run(
        folder.path(),
        &["check", "good.toml", "--verify-report", "x"],
    );
    assert_eq!(code, 2, "it needs --report");
}

/// From a running proxy to a review that passes, as a team would do it.
#[test]
fn what_was_verified_passes_the_review() {
    let paid = std::sync::atomic::AtomicUsize::new(0);
    let upstream = Upstream::start(move |seen, stream| {
        let count = || paid.load(std::sync::atomic::Ordering::SeqCst);
        match seen.start().starts_with("GET") {
            true => answer(stream, "200 OK", &[], count().to_string().as_bytes()),
            false => {
                let id = paid.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                answer(
                    stream,
                    "201 Created",
                    &[],
                    format!("{{\"id\":{id}}}").as_bytes(),
                )
            }
        }
    });
    let policy = REVIEWED.split_once('\n').unwrap().1;
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .file(policy)
        .start();
    let folder = folder();
    let listen = format!("listen = \"{}\"\n{policy}", proxy.address);
    fs::write(folder.path().join("refrain.toml"), listen).unwrap();
    let (target, count) = (
        format!("http://{}", proxy.address),
        format!("http://{}/count", upstream.address),
    );
    let mut verify = vec![
        "verify",
        &target,
        "--op",
        "POST /payments",
        "--body",
        "{\"amount\":20}",
        "--effects-url",
        &count,
        "--json",
        "verify.json",
    ];
    for case in [
        "sequential-duplicate",
        "concurrent-duplicates",
        "lost-answer",
    ] {
        verify.extend(["--case", case]);
    }
    let (code, stdout, stderr) = run(folder.path(), &verify);
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    let (code, review) = review(folder.path(), &[]);
    assert_eq!(code, 0, "{review:#}");
    assert_eq!(review["open"], false);
}

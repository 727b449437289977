//! A team relies on the review before going live: it must report every open point, and none that is done.

use std::{fs, path::Path};

use super::{
    folder, run,
    support::{Starting, Upstream, answer},
};

/// A policy without any open point.
const REVIEWED: &str = "upstream = \"http://127.0.0.1:3000\"\n[[operation]]\nmatch = \"POST /payments\"\nclass = \"monetary\"\nprobe = \"GET /payments?key={key}\"\n";

/// The review as JSON, and the exit code.
fn review(folder: &Path, args: &[&str]) -> (i32, serde_json::Value) {
    let args = [&["check", "refrain.toml", "--report=json"], args].concat();
    let (code, stdout, stderr) = run(folder, &args);
    let review = serde_json::from_str(&stdout);
    (
        code,
        review.unwrap_or_else(|_| panic!("{stdout}\n{stderr}")),
    )
}

/// The lines of one question, as `state required why`.
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
            "open required memory: loses",
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
            "open required POST /payments is not guarded",
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
            "open required all callers share",
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
            "open required the fingerprint of POST /payments does not cover the body",
        ),
        (
            "+remember = \"0s\"\n",
            "retention",
            "open required POST /payments executes again",
        ),
        (
            "+retention = \"1d\"\n",
            "financial",
            "open required outcomes of POST /payments are kept for only 1d",
        ),
        (
            "+audit = false\n",
            "financial",
            "open required POST /payments is not audited",
        ),
        (
            "+[[operation]]\nmatch = \"POST /orders\"\n",
            "classified",
            "open required POST /orders has no class",
        ),
        (
            "+[[operation]]\nmatch = \"POST /refunds\"\nclass = \"create\"\n",
            "financial",
            "open - POST /refunds seems to move money",
        ),
        (
            &format!("+[[operation]]\nmatch = \"POST /hook\"\n{hook}"),
            "retention",
            "open required POST /hook: svix webhooks are accepted",
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
        ("", "covered", "open - no API description"),
        ("", "tests", "open required no test report"),
        ("", "classified", "done required monetary: POST /payments"),
        (
            "",
            "financial",
            "done required audited in refrain-data/audit: POST /payments",
        ),
        (
            "",
            "financial",
            "done required kept for 30d or longer: POST /payments",
        ),
        ("", "documented", "open - no retrying-safely.md"),
        (
            &format!(
                "+{}dead_letter = \"D\"\n",
                worker.replace("127.0.0.1:3000", "localhost:3000")
            ),
            "consumers",
            "open required worker billing is at-least-once",
        ),
        (
            &format!("+# plan: monetary\n{worker}"),
            "financial",
            "open required outcomes of worker billing are kept for only 7d",
        ),
        (
            &format!("+# plan: monetary\n{worker}"),
            "financial",
            "open - worker billing moves money and is not audited",
        ),
        (
            &format!("+# plan: monetary\n{worker}audit = true\n"),
            "financial",
            "done required audited in refrain-data/audit: POST /payments, worker billing",
        ),
        (
            "audit_log = \"elsewhere\"\n",
            "financial",
            "done required audited in elsewhere: POST /payments",
        ),
        (
            "+# plan: create\n# unsure (0.60): create, or monetary? Reasons:\n[[operation]]\nmatch = \"POST /orders\"\nclass = \"create\"\n",
            "classified",
            "open required POST /orders is classified as create, but the plan is unsure",
        ),
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
        assert_eq!(code, 1, "the verify report is missing");
    }
}

/// A modified log does not count as an audit log.
#[test]
fn the_audit_log_is_verified_where_there_is_one() {
    use refrain::audit::{AuditLog, Entry, Event};
    let folder = folder();
    fs::write(folder.path().join("refrain.toml"), REVIEWED).unwrap();
    let log = folder.path().join("refrain-data/audit");
    fs::create_dir_all(&log).unwrap();
    let asked = || lines(&review(folder.path(), &[]).1, "financial");
    let fine = "done required audited in refrain-data/audit: POST /payments";
    assert!(asked().contains(&fine.to_owned()), "{:?}", asked());
    let written = AuditLog::open(&log).unwrap();
    written.note(Entry::new(Event::Granted));
    drop(written);
    assert!(
        asked().iter().all(|line| line.starts_with("done")),
        "{:?}",
        asked()
    );
    let file = log.join("audit-00000000000000000001.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(file, text.replace("granted", "erased")).unwrap();
    let damaged = "open required the audit log is damaged: entry 2 was changed";
    assert!(
        asked().iter().any(|line| line.starts_with(damaged)),
        "{:?}",
        asked()
    );
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
            "open required POST /payments: lost-answer was not tested",
        ),
        (
            report(here, "POST /orders", "pass"),
            1,
            "open required POST /payments is not in the report",
        ),
        (
            report("http://127.0.0.1:3000", "POST /payments", "pass"),
            1,
            "open required the report covers http://127.0.0.1:3000, the service behind",
        ),
        (
            report("http://staging:80", "POST /payments", "pass"),
            0,
            "open - the report covers http://staging:80",
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
    let why = "open required no report covers the messages of worker billing";
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
        stderr.contains("elsewhere.json: not a report of refrain verify"),
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
    let expected = "open required PUT /orders/{id} is replace (the method is PUT), but the file has no operation for it";
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
        ["done required the file has every mutating operation (2)"]
    );
    fs::remove_file(folder.path().join("openapi.yaml")).unwrap();
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

/// A shop API whose search is a POST, and whose payments move money.
const API: &str = "openapi: 3.1.0
info: {title: Shop, version: '1'}
paths:
  /payments:
    post:
      summary: Pay an order
      requestBody: {content: {application/json: {schema: {properties: {amount: {type: integer}, currency: {type: string}, iban: {type: string}}}}}}
      responses: {'201': {description: Paid}}
  /products/search:
    post:
      summary: Search products
      requestBody: {content: {application/json: {schema: {properties: {query: {type: string}, page: {type: integer}}}}}}
      responses: {'200': {description: Found, content: {application/json: {schema: {type: array, items: {type: object}}}}}}
  /products/{sku}:
    delete: {responses: {'204': {description: Gone}}}
";

#[test]
fn the_description_beside_the_file_says_what_each_path_is() {
    let folder = folder();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let found = |id: &str| lines(&review(folder.path(), &[]).1, id);
    let deletes = "[[operation]]\nmatch = \"DELETE /products/{sku}\"\nclass = \"delete\"\n";
    put("api.yaml", API);
    put("refrain.toml", REVIEWED);
    // A read-only POST needs no operation in the policy, so it is not reported as missing.
    let missing = "open required DELETE /products/{sku} is delete (the method is DELETE), but the file has no operation for it";
    assert_eq!(found("covered"), [missing]);
    put("refrain.toml", &format!("{REVIEWED}{deletes}"));
    let all = "done required the file has every mutating operation (2)";
    assert_eq!(found("covered"), [all]);
    // A class that a person chose against the API is only reported; a planned class has to follow the API.
    let other = REVIEWED.replace("monetary", "create");
    let told = |class: &str, lines: &[String]| {
        lines
            .iter()
            .any(|line| line.starts_with(class) && line.contains("monetary"))
    };
    put("refrain.toml", &format!("{other}{deletes}"));
    let lines = found("classified");
    assert!(
        told("open - POST /payments is create in the file", &lines),
        "{lines:#?}"
    );
    let planned = other.replace("[[operation]]", "# plan: create\n[[operation]]");
    put("refrain.toml", &format!("{planned}{deletes}"));
    let lines = found("classified");
    assert!(
        told("open required POST /payments was planned as create", &lines),
        "{lines:#?}"
    );
    // Of several descriptions, the one with the policy's paths is used; without a match, none is required.
    put(
        "other.yaml",
        "openapi: 3.1.0\npaths: {/ships: {post: {}}}\n",
    );
    put("refrain.toml", &format!("{REVIEWED}{deletes}"));
    assert_eq!(found("covered"), [all]);
    fs::remove_file(folder.path().join("api.yaml")).unwrap();
    assert_eq!(
        found("covered"),
        ["open - the file has none of its paths: it may describe another API"]
    );
    put("other.yaml", "openapi: 3.1.0\npaths: [\n");
    let lines = found("covered");
    assert!(lines[0].starts_with("open - other.yaml:"), "{lines:#?}");
    put(
        "messages.yaml",
        "asyncapi: 3.0.0\ninfo: {title: M, version: '1'}\nchannels: {orders: {address: orders.paid, messages: {Paid: {payload: {type: object, properties: {id: {type: string}}}}}}}\noperations: {onPaid: {action: receive, channel: {$ref: '#/channels/orders'}}}\n",
    );
    assert_eq!(
        found("consumers")[1],
        "open - orders.paid is consumed, but the file has no worker for it"
    );
}

#[test]
fn a_plan_is_reviewed_as_it_was_found_good() {
    let folder = folder();
    fs::write(folder.path().join("openapi.yaml"), API).unwrap();
    let (code, _, stderr) = run(folder.path(), &["plan", "openapi.yaml"]);
    assert_eq!(code, 0, "{stderr}");
    for form in ["md", "html", "json"] {
        let args = ["check", "refrain.toml", &format!("--report={form}")];
        let (code, now, stderr) = run(folder.path(), &args);
        assert_eq!((code, stderr.as_str()), (1, ""), "nothing was verified");
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check/golden");
        let path = home.join(format!("review.{form}.golden"));
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

/// From a running proxy to a review that passes, step by step as a team does it.
#[test]
fn verified_policy_passes_the_review() {
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

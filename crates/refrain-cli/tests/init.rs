//! `refrain init` on a real terminal: a user answers questions, stops half-way, resumes, and gets a valid policy.

mod support;

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use support::Terminal;

const REFRAIN: &str = env!("CARGO_BIN_EXE_refrain");
const ENTER: &[u8] = b"\r";
const DOWN: &[u8] = b"\x1b[B";
const CTRL_C: &[u8] = b"\x03";

const API: &str = "openapi: 3.0.3
info: {title: Shop, version: '1'}
paths:
  /v1/payments:
    post:
      summary: Pay an order
      requestBody:
        content:
          application/json:
            schema:
              type: object
              required: [order_id, amount, currency]
              properties:
                order_id: {type: string}
                amount: {type: integer}
                currency: {type: string}
      responses: {'201': {description: Paid}}
  /v1/orders/{id}:
    get:
      responses: {'200': {description: The order}}
";

/// Starts `refrain init` on a terminal.
fn start(folder: &Path, arguments: &[&str]) -> Terminal {
    let mut command = Command::new(REFRAIN);
    command.arg("init").args(arguments).current_dir(folder);
    Terminal::start(command)
}

/// Waits for a question and accepts its default.
fn accept(terminal: &mut Terminal, question: &str) {
    terminal.see(question);
    terminal.press(ENTER);
}

fn project() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("openapi.yaml"), API).unwrap();
    folder
}

fn refrain(folder: &Path, arguments: &[&str]) -> Output {
    let output = Command::new(REFRAIN)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    output.unwrap()
}

fn check_policy(folder: &Path) -> String {
    let checked = refrain(folder, &["check", "refrain.toml"]);
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    fs::read_to_string(folder.join("refrain.toml")).unwrap()
}

/// All questions for this project, in their order.
const QUESTIONS: [&str; 7] = [
    "In which header do clients send their key?",
    "Use it if a client sends no key?",
    "Where are keys and outcomes kept?",
    "How long after a request may a retry",
    "In which scope is a key unique?",
    "What is the address of the service",
    "What does a duplicate get while",
];

#[test]
fn the_six_stages_end_in_a_policy_that_works() {
    let folder = project();
    let mut terminal = start(folder.path(), &[]);
    terminal.see("1 of 6");
    terminal.see("2 operations: 1 read, 1 monetary");
    QUESTIONS
        .iter()
        .for_each(|question| accept(&mut terminal, question));
    terminal.see("6 of 6");
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    let policy = check_policy(folder.path());
    assert!(policy.contains("POST /v1/payments"), "{policy}");
    assert!(folder.path().join("verify.toml").exists());
    assert!(folder.path().join("retrying-safely.md").exists());
    assert!(!folder.path().join(".refrain-init.json").exists());
}

#[test]
fn defaults_without_a_terminal_are_the_defaults_on_one() {
    let (typed, taken) = (project(), project());
    let mut terminal = start(typed.path(), &[]);
    QUESTIONS
        .iter()
        .for_each(|question| accept(&mut terminal, question));
    assert_eq!(terminal.end().0, Some(0));
    let output = refrain(taken.path(), &["init", "--yes", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["choices"]["store"][0], "file:refrain-data");
    assert_eq!(report["written"][0]["state"], "written");
    assert_eq!(check_policy(typed.path()), check_policy(taken.path()));
}

#[test]
fn stopping_loses_nothing() {
    let folder = project();
    let mut terminal = start(folder.path(), &[]);
    accept(&mut terminal, QUESTIONS[0]);
    accept(&mut terminal, QUESTIONS[1]);
    terminal.see(QUESTIONS[2]);
    terminal.press(DOWN);
    terminal.press(ENTER);
    terminal.see("The address of postgres?");
    terminal.press(b"postgres://me:secret@db/app\r");
    terminal.see("leave the password out");
    terminal.press(CTRL_C);
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(130), "{seen}");
    assert!(seen.contains("Your answers are kept"), "{seen}");
    assert!(!folder.path().join("refrain.toml").exists());

    let mut terminal = start(folder.path(), &[]);
    terminal.see("Resuming with 3 answers from an earlier run");
    accept(&mut terminal, "The address of postgres?");
    QUESTIONS[3..]
        .iter()
        .for_each(|question| accept(&mut terminal, question));
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    assert!(!seen.contains(QUESTIONS[0]), "{seen}");
    let policy = fs::read_to_string(folder.path().join("refrain.toml")).unwrap();
    assert!(
        policy.contains("store = \"postgres://refrain@127.0.0.1/refrain\""),
        "{policy}"
    );
}

#[test]
fn manual_changes_are_kept() {
    let folder = project();
    let first = refrain(folder.path(), &["init", "--yes"]);
    assert!(first.status.success(), "{first:?}");
    let file = folder.path().join("refrain.toml");
    let policy = fs::read_to_string(&file).unwrap();
    let changed = policy.replace("retention = \"24h\"", "retention = \"48h\" # ours");
    assert_ne!(policy, changed);
    fs::write(&file, &changed).unwrap();
    let again = refrain(folder.path(), &["init", "--yes"]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), changed);
}

/// An operation that the plan cannot classify: the next plan must not forget the user's answer.
const UNSURE: &str = "openapi: 3.0.3
info: {title: Club, version: '1'}
paths:
  /carts/{id}/checkout:
    post:
      summary: Check out
      responses: {'201': {description: Made}}
";

#[test]
fn operator_decisions_survive_the_next_plan() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("openapi.yaml"), UNSURE).unwrap();
    let guessed = refrain(folder.path(), &["init", "--yes", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&guessed.stdout).unwrap();
    assert_eq!(report["choices"]["unsure"][0], "POST /carts/{id}/checkout");
    let before = check_policy(folder.path());
    assert!(before.contains("# unsure ("), "{before}");
    assert!(before.contains("class = \"monetary\""), "{before}");
    // The policy exists and lacks only the class that the plan is unsure of.
    let mut terminal = start(folder.path(), &[]);
    terminal.see("(1 of 1) What does POST /carts/{id}/checkout do?");
    terminal.press(b"\x1b[A");
    terminal.press(ENTER);
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    assert!(
        seen.contains("refrain.toml has store = file:refrain-data; it stays unchanged"),
        "{seen}"
    );
    let decided = check_policy(folder.path());
    assert!(
        decided.contains("# plan: monetary\n# decided: create\n"),
        "{decided}"
    );
    assert!(decided.contains("class = \"create\""), "{decided}");
    assert!(!decided.contains("# unsure ("), "{decided}");
    let again = refrain(folder.path(), &["plan", "openapi.yaml"]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(check_policy(folder.path()), decided);
    // No question is left.
    let (code, seen) = start(folder.path(), &[]).end();
    assert_eq!(code, Some(0), "{seen}");
    assert_eq!(check_policy(folder.path()), decided);
}

#[test]
fn a_policy_that_is_there_is_not_contradicted() {
    let folder = project();
    assert!(refrain(folder.path(), &["init", "--yes"]).status.success());
    let output = refrain(folder.path(), &["init", "--yes", "--store", "memory:"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("refrain.toml has store = file:refrain-data"),
        "{said}"
    );
    // Missing settings are asked for and added.
    let file = folder.path().join("refrain.toml");
    let policy = fs::read_to_string(&file).unwrap();
    let without = policy.replace("retention = \"24h\"\n", "");
    assert_ne!(policy, without);
    fs::write(&file, &without).unwrap();
    let mut terminal = start(folder.path(), &[]);
    terminal.see(QUESTIONS[3]);
    terminal.press(DOWN);
    terminal.press(ENTER);
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    assert!(!seen.contains(QUESTIONS[4]), "{seen}");
    let policy = check_policy(folder.path());
    assert!(policy.contains("retention = \"72h\""), "{policy}");
}

const MESSAGES: &str = "asyncapi: 3.0.0
info: {title: Orders, version: '1'}
servers: {main: {host: 'nats.example:4222', protocol: nats}}
channels:
  paid:
    address: orders.paid
    messages: {Paid: {payload: {type: object, properties: {id: {type: string}}}}}
operations:
  onPaid: {action: receive, channel: {$ref: '#/channels/paid'}}
";

#[test]
fn requests_and_messages_go_into_one_policy() {
    let folder = project();
    fs::write(folder.path().join("asyncapi.yaml"), MESSAGES).unwrap();
    let twice = "for attempt in range(5):\n    requests.post(url, json=body, headers={\"Idempotency-Key\": str(uuid4())})\n";
    fs::write(folder.path().join("pay.py"), twice).unwrap();
    let output = refrain(folder.path(), &["init", "--yes"]);
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    golden("told", &said);
    let policy = check_policy(folder.path());
    golden("refrain.toml", &policy);
    for copy in ["openapi.refrain.yaml", "asyncapi.refrain.yaml"] {
        assert!(folder.path().join(copy).exists(), "{copy}");
    }
    let output = refrain(folder.path(), &["init", "--yes", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    golden("report.json", &format!("{report:#}\n"));
    // Planning from OpenAPI does not report workers as removed, and AsyncAPI does not report operations as removed.
    let check = refrain(folder.path(), &["plan", "openapi.yaml", "--check"]);
    assert!(check.status.success(), "{check:?}");
    let check = refrain(folder.path(), &["plan", "asyncapi.yaml", "--check"]);
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(!said.contains("gone"), "{said}");
}

/// Compares with the accepted output.
fn golden(name: &str, now: &str) {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/init_golden");
    let path = home.join(format!("{name}.golden"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(&home).unwrap();
        fs::write(&path, now).unwrap();
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        now == before,
        "{} differs; check it, then accept it with UPDATE_GOLDEN=1\n{now}",
        path.display()
    );
}

#[test]
fn a_project_without_a_description_gets_a_policy_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let output = refrain(
        folder.path(),
        &["init", "--yes", "--upstream", "http://127.0.0.1:8080"],
    );
    assert!(output.status.success(), "{output:?}");
    let policy = check_policy(folder.path());
    assert!(policy.contains("http://127.0.0.1:8080"), "{policy}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        !said.contains("--config ./verify.toml"),
        "there is none: {said}"
    );
    let again = refrain(folder.path(), &["init", "--yes"]);
    let said = String::from_utf8(again.stdout).unwrap();
    assert!(said.contains("unchanged ./refrain.toml"), "{said}");

    fs::write(folder.path().join("openapi.yaml"), API).unwrap();
    let output = refrain(folder.path(), &["init", "--yes"]);
    assert!(output.status.success(), "{output:?}");
    let policy = check_policy(folder.path());
    assert!(policy.contains("http://127.0.0.1:8080"), "{policy}");
    assert!(policy.contains("POST /v1/payments"), "{policy}");
}

#[test]
fn invalid_usage_of_init_is_reported() {
    let folder = project();
    let output = refrain(folder.path(), &["init"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--yes"), "{said}");

    let output = refrain(folder.path(), &["init", "--yes", "nowhere"]);
    assert_eq!(output.status.code(), Some(64));

    let secret = "postgres://me:secret@db/app";
    let output = refrain(folder.path(), &["init", "--yes", "--store", secret]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("leave the password out"), "{said}");
    for (flag, wrong, why) in [
        ("--store", "mysql://db/app", "invalid store address"),
        ("--upstream", "ftp://h:1", "invalid URL in"),
    ] {
        let output = refrain(folder.path(), &["init", "--yes", flag, wrong]);
        assert_eq!(output.status.code(), Some(64));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(flag) && said.contains(why), "{said}");
        assert_eq!(
            output.stdout, b"",
            "the error comes before the first question"
        );
    }
    assert!(!folder.path().join("refrain.toml").exists());

    fs::write(folder.path().join(".refrain-init.json"), "no answers").unwrap();
    let output = refrain(folder.path(), &["init", "--yes"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--restart"), "{said}");

    fs::write(folder.path().join("refrain.toml"), "store = \"memory:\"\n").unwrap();
    let output = refrain(folder.path(), &["init", "--yes", "--restart"]);
    assert_eq!(output.status.code(), Some(64));
    let kept = fs::read_to_string(folder.path().join("refrain.toml")).unwrap();
    assert_eq!(kept, "store = \"memory:\"\n");
}

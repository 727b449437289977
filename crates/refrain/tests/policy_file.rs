//! An operator writes `refrain.toml` for the first time and makes mistakes. Every mistake is reported with its
//! position, the likely intention and a fix; none is ignored silently.
//!
//! Each `policy_errors/NAME.toml` is a bad file, and `NAME.txt` the expected report; `SNAPSHOTS=overwrite` rewrites
//! the reports.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::{Path, PathBuf};

use refrain::policy::{
    Address, File, OPERATIONS_MAX, Reply, Secrets, Settings,
    schemes::{broker_schemes, store_schemes},
};
use serde_json::Value;
use snapbox::{Assert, Data};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn sample() -> String {
    std::fs::read_to_string(folder().join("policy_sample.toml")).unwrap()
}

fn message(text: &str) -> String {
    File::parse(text, "refrain.toml").unwrap_err().to_string()
}

#[test]
fn bad_files_are_refused_with_place_and_fix() {
    let assert = Assert::new().action_env("SNAPSHOTS");
    let mut checked = 0;
    for file in std::fs::read_dir(folder().join("policy_errors")).unwrap() {
        let path = file.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let said = message(&std::fs::read_to_string(&path).unwrap());
            assert!(
                !said.contains(":secret@") && !said.contains("hush"),
                "{said}"
            );
            assert.eq(
                said + "\n",
                Data::read_from(&path.with_extension("txt"), None).raw(),
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 31);
}

#[test]
fn files_and_policies_that_are_too_large_are_refused() {
    let comment = "#".repeat((4 << 20) + 1);
    assert!(message(&comment).contains("more than the maximum of 4MiB"));
    let operations = |count: usize| -> String {
        (0..count)
            .map(|n| format!("[[operation]]\nmatch = \"POST /{n}\"\n"))
            .collect()
    };
    assert!(File::parse(&operations(OPERATIONS_MAX), "refrain.toml").is_ok());
    assert!(
        message(&operations(OPERATIONS_MAX + 1))
            .contains("10001 operations, more than the maximum of 10000")
    );
}

#[test]
fn reports_at_most_twenty_problems() {
    let same = "[[operation]]\nmatch = \"POST /same\"\n".repeat(31);
    let error = File::parse(&same, "refrain.toml").unwrap_err();
    assert_eq!(error.problems().len(), 20);
    assert!(error.to_string().ends_with("and 10 more"), "{error}");
}

#[test]
fn unreadable_file_is_reported() {
    let error = File::read(Path::new("no/such/refrain.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("no/such/refrain.toml: cannot be read"),
        "{error}"
    );
}

#[test]
fn the_sample_resolves_to_what_it_says() {
    let Settings {
        listen,
        upstream,
        store,
        problems,
        policy,
        ..
    } = File::parse(&sample(), "refrain.toml").unwrap();
    assert_eq!(listen.to_string(), "127.0.0.1:8377");
    assert_eq!(upstream.as_deref(), Some("http://127.0.0.1:3000"));
    assert_eq!(store, [Address::new("file:refrain-data")]);
    assert_eq!(problems, "https://example.com/problems/");
    let names: Vec<_> = policy
        .operations()
        .map(|operation| operation.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "POST /v1/payments",
            "POST|PUT /hooks/*",
            "POST /t/{tenant}/orders",
            "POST /search",
            "POST /hooks/stripe",
            "POST *",
            "PATCH *"
        ]
    );
    let payments = policy.find("POST", "/v1/payments").unwrap().operation;
    assert!(payments.required && payments.audit && payments.replays_header("x-cost"));
    assert_eq!(payments.terms.attempts_max, 5);
    assert_eq!(payments.terms.guarantee, refrain::Guarantee::ExactlyOnce);
    let orders = policy.find("POST", "/t/7/orders").unwrap().operation;
    assert_eq!(orders.reply, Reply::Stored);
    assert_eq!(orders.key[0].to_string(), "natural:{/customer}-{/cart}");
    assert!(policy.find("POST", "/search").is_none());
}

#[test]
fn an_empty_file_is_the_default_policy() {
    let settings = File::parse("", "refrain.toml").unwrap();
    let names: Vec<_> = settings
        .policy
        .operations()
        .map(|operation| operation.name.as_str())
        .collect();
    assert_eq!(names, ["POST *", "PATCH *"]);
    assert_eq!(settings.admin.to_string(), "127.0.0.1:8378");
    assert_eq!(settings.problems, "/.well-known/refrain/problems/");
}

#[test]
fn passwords_are_not_shown() {
    let file = "store = [\"redis://cache\", \"postgres://app:secret@db/app\"]\n\
        [policy]\nreceipts = \"postgres://shop:secret@db/app\"";
    let settings = File::parse(file, "refrain.toml").unwrap();
    let shown = format!("{settings:?}{}", serde_json::to_string(&settings).unwrap());
    assert!(
        !shown.contains("secret") && shown.contains("app:***@db") && shown.contains("shop:***@db"),
        "{shown}"
    );
    assert!(settings.store[1].as_str().contains("secret"));
}

/// Addresses contain passwords, and many people read the file: addresses can be in files of their own.
#[test]
fn addresses_and_credentials_are_read_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let held = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        path.display().to_string()
    };
    let text = format!(
        "store_file = \"{}\"\n[policy]\nreceipts_file = \"{}\"\n\
         [[worker]]\nname = \"a\"\nsource_file = \"{}\"\nqueue = \"q\"\ndeliver = \"http://h/?token=canary\"\n\
         authorization = {{ secret_file = \"{}\" }}\n\
         [[worker]]\nname = \"b\"\nsource = \"nats://h\"\nqueue = \"q\"\ndeliver = \"http://h/\"\n\
         authorization = {{ scheme = \"basic\", user = \"u\", secret_file = \"{}\" }}\n\
         [[relay]]\noutbox_file = \"{}\"\nto_file = \"{}\"\n",
        held("store", "redis://:canary@cache, postgres://u:canary@db/x"),
        held("receipts", "postgres://r:canary@db/x"),
        held("source", "nats://canary@h"),
        held("token", "canary"),
        held("password", "canary"),
        held("outbox", "postgres://o:canary@db/x"),
        held("to", "amqp://t:canary@h"),
    );
    let settings = File::parse(&text, "refrain.toml").unwrap();
    let stores: Vec<_> = settings.store.iter().map(Address::as_str).collect();
    assert_eq!(
        stores,
        ["redis://:canary@cache", "postgres://u:canary@db/x"]
    );
    let [bearer, basic] = &settings.workers[..] else {
        panic!("{settings:?}");
    };
    assert_eq!(bearer.source.as_str(), "nats://canary@h");
    let header = |it: &refrain::policy::WorkerSettings| {
        it.authorization.as_ref().unwrap().header().to_owned()
    };
    assert_eq!(header(bearer), "Bearer canary");
    assert_eq!(header(basic), "Basic dTpjYW5hcnk=");
    assert_eq!(settings.relays[0].to.as_str(), "amqp://t:canary@h");
    let shown = format!("{settings:?}{}", serde_json::to_string(&settings).unwrap());
    assert!(!shown.contains("canary"), "{shown}");
    assert!(shown.contains("postgres://r:***@db/x"), "{shown}");
}

/// A process reads only the secrets of the parts that it uses.
#[test]
fn secrets_of_other_parts_and_overridden_settings_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.toml");
    let relay = |name: &str| {
        format!("[[relay]]\nname = \"{name}\"\noutbox_env = \"NOT_SET\"\nto_file = \"not-there\"\n")
    };
    let text = format!("store_env = \"NOT_SET\"\n{}{}", relay("a"), relay("b"));
    std::fs::write(&path, text).unwrap();
    let problems = |secrets, overrides: &[(&str, &str)]| {
        let read = File::read_with(&path, secrets, overrides);
        read.err().map_or(0, |error| error.problems().len())
    };
    assert_eq!(problems(Secrets::All, &[]), 5);
    assert_eq!(problems(Secrets::Store, &[]), 1);
    assert_eq!(problems(Secrets::Store, &[("store", "memory:")]), 0);
    assert_eq!(problems(Secrets::Relays(&[]), &[]), 4);
    let a = ["a".to_owned()];
    assert_eq!(problems(Secrets::Relays(&a), &[]), 2);
    let overrides = [("outbox", "postgres://h/x"), ("to", "nats://h")];
    let read = File::read_with(&path, Secrets::Relays(&a), &overrides).unwrap();
    assert_eq!(read.relays[0].to.as_str(), "nats://h");
    // An address that was not read names an invalid server, so that nothing is sent to a wrong one.
    for unread in [&read.relays[1].to, &read.relays[1].outbox, &read.store[0]] {
        assert!(unread.as_str().contains("not-read.invalid"), "{unread}");
    }
}

#[test]
fn an_unusable_token_is_named_by_its_origin() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("probe-token");
    std::fs::write(&token, "caf\u{e9}").unwrap();
    let path = folder.path().join("refrain.toml");
    let text = format!(
        "[[operation]]\nmatch = \"POST /a\"\nprobe = \"GET /a?of={{record}}\"\n\
         probe_authorization = {{ secret_file = \"{}\" }}\n",
        token.display()
    );
    std::fs::write(&path, text).unwrap();
    let error = File::read(&path).unwrap_err().to_string();
    let token = token.display().to_string();
    assert!(error.contains(&format!("{token}: the token")), "{error}");
    assert!(!error.contains("caf"), "{error}");
}

#[test]
fn the_schema_takes_the_sample_and_refuses_what_the_parser_refuses() {
    let schema = File::schema();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    let sample: toml::Table = sample().parse().unwrap();
    assert_eq!(
        fault(&schema, &schema, &serde_json::to_value(&sample).unwrap()),
        None
    );
    let bad = [
        "stroe = \"memory:\"",
        "[policy]\nretension = \"1h\"",
        "[policy]\nmatch = \"POST /a\"",
        "[policy]\nrequired = \"yes\"",
        "[policy]\nguarantee = \"once\"",
        "[policy]\nattempts_max = 0",
        "[policy]\nkeep = [true]",
        "[[operation]]\nclass = \"create\"",
        "[[operation]]\nmatch = \"POST /a\"\nclass = \"monetery\"",
        "[[operation]]\nmatch = \"POST /a\"\nreceipts = 7",
        "[[operation]]\nmatch = \"POST /a\"\nwebhook = \"strype\"",
        "[[operation]]\nmatch = \"POST /a\"\nsignature = \"stripe\"",
        "[[operation]]\nmatch = \"POST /a\"\nwebhook = \"stripe\"\nsignature = { secret = \"hush\" }",
        "[policy]\nwebhook = \"stripe\"",
        "[policy]\nfingerprint = { hosts = false }",
        "[policy]\nfingerprint.host = \"no\"",
        "[policy]\naudit = \"always\"",
        "[policy]\npaths = \"lower\"",
    ];
    for text in bad {
        let file: toml::Table = text.parse().unwrap();
        let file = serde_json::to_value(&file).unwrap();
        assert!(
            fault(&schema, &schema, &file).is_some(),
            "the schema takes {text}"
        );
        assert!(
            File::parse(text, "refrain.toml").is_err(),
            "the parser takes {text}"
        );
    }
}

#[test]
fn the_schema_takes_every_form_that_the_parser_takes() {
    let schema = File::schema();
    for text in [
        "[policy]\nfingerprint = \"body\"",
        "[policy]\nfingerprint = [\"path\", \"host\"]",
        "[policy]\nfingerprint.host = false",
        "[policy]\nfingerprint = { parts = [\"body\"], host = true }",
        "[policy]\naudit = true",
        "[policy]\naudit = \"required\"",
        "[policy]\npaths = \"case-sensitive\"",
    ] {
        let file: toml::Table = text.parse().unwrap();
        let file = serde_json::to_value(&file).unwrap();
        assert_eq!(fault(&schema, &schema, &file), None, "{text}");
        assert!(File::parse(text, "refrain.toml").is_ok(), "{text}");
    }
}

#[test]
fn the_host_is_part_of_a_fingerprint_unless_it_is_left_out() {
    let parts = |text: &str| {
        let settings = File::parse(text, "refrain.toml").unwrap();
        let operation = settings.policy.find("POST", "/a").unwrap().operation;
        let parts = operation.fingerprint.iter();
        parts.map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let operation = "[[operation]]\nmatch = \"POST /a\"\n";
    let hostless = "[policy]\nfingerprint.host = false\n";
    for (text, expected) in [
        ("", "method path query body host"),
        (hostless, "method path query body"),
        (&format!("{operation}fingerprint = \"body\""), "body host"),
        (
            &format!("{hostless}{operation}fingerprint = \"body\""),
            "body",
        ),
        (
            &format!("{hostless}{operation}fingerprint = [\"body\", \"host\"]"),
            "body host",
        ),
        (
            &format!("{operation}webhook = \"github\"\nfingerprint.host = false"),
            "method path query body",
        ),
    ] {
        assert_eq!(parts(text), expected, "{text}");
    }
}

#[test]
fn a_required_audit_holds_for_every_operation() {
    let policy = |text: &str| File::parse(text, "refrain.toml").unwrap().policy;
    let money = "[[operation]]\nmatch = \"POST /a\"\nclass = \"monetary\"\n";
    let all = policy(&format!("[policy]\naudit = \"required\"\n{money}"));
    assert!(all.operations().all(|it| it.audit && it.audit_required));
    let one = policy(&format!("{money}audit = \"required\""));
    let required = one.operations().filter(|it| it.audit_required);
    assert_eq!(required.count(), 1);
    let unaudited = policy(&format!("{money}audit = false"));
    let warned: Vec<_> = unaudited.warnings().map(|it| it.name).collect();
    assert_eq!(warned, ["POST /a"]);
    assert_eq!(policy(money).warnings().count(), 0);
}

/// The schema and the parser accept the same schemes: those of the table.
#[test]
fn schema_and_parser_accept_every_scheme() {
    let schema = File::schema();
    let store = &schema["properties"]["store"]["anyOf"];
    let stores: Vec<_> = store_schemes().collect();
    for pattern in [&store[0]["pattern"], &store[1]["items"]["pattern"]] {
        assert_eq!(schemes_of(pattern), stores);
    }
    for scheme in stores {
        let rest = if scheme == "memory" { "" } else { "//h" };
        let text = format!("store = \"{scheme}:{rest}\"\n");
        assert!(File::parse(&text, "refrain.toml").is_ok(), "{text}");
    }
    let brokers: Vec<_> = broker_schemes().collect();
    for (place, around) in [
        (
            "/$defs/Worker/properties/source",
            "[[worker]]\nname = 'a'\nqueue = 'q'\ndeliver = 'http://h/'\nsource",
        ),
        (
            "/$defs/Relay/properties/to",
            "[[relay]]\noutbox = 'postgres://h/x'\nto",
        ),
    ] {
        let pattern = &schema.pointer(place).unwrap()["pattern"];
        assert_eq!(schemes_of(pattern), brokers);
        for scheme in &brokers {
            let text = format!("{around} = '{scheme}://h'\n");
            assert!(File::parse(&text, "refrain.toml").is_ok(), "{text}");
        }
        let text = format!("{around} = 'mqtt://h'\n");
        assert!(File::parse(&text, "refrain.toml").is_err(), "{text}");
    }
}

/// The schemes in a pattern of addresses.
fn schemes_of(pattern: &Value) -> Vec<String> {
    let pattern = pattern.as_str().unwrap().replace('\\', "");
    let forms = pattern.strip_prefix("^(").unwrap();
    let forms = forms.strip_suffix(")$").unwrap().split('|');
    forms
        .map(|form| form.split(':').next().unwrap().to_owned())
        .collect()
}

#[test]
fn every_setting_in_the_schema_has_a_description() {
    let schema = File::schema();
    for place in [
        "/properties",
        "/$defs/Section/properties",
        "/$defs/Operation/properties",
    ] {
        for (name, setting) in schema.pointer(place).unwrap().as_object().unwrap() {
            assert!(
                setting["description"].is_string(),
                "{place}/{name}: {setting}"
            );
        }
    }
}

/// The first violation of `schema` by `value`, for the keywords that our schema uses; patterns are not checked here.
fn fault(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    let mut faults =
        schema
            .as_object()?
            .iter()
            .filter_map(|(keyword, rule)| match keyword.as_str() {
                "$ref" => {
                    let pointer = rule.as_str().unwrap().trim_start_matches('#');
                    fault(root, root.pointer(pointer).unwrap(), value)
                }
                "type" => {
                    (kind(value) != rule.as_str().unwrap()).then(|| format!("{value} is no {rule}"))
                }
                "const" => (value != rule).then(|| format!("{value} is not {rule}")),
                "minimum" => (value.as_i64()? < rule.as_i64().unwrap())
                    .then(|| format!("{value} is below {rule}")),
                "maximum" => (value.as_i64()? > rule.as_i64().unwrap())
                    .then(|| format!("{value} is above {rule}")),
                "maxItems" => (value.as_array()?.len() > rule.as_u64().unwrap() as usize)
                    .then(|| "too long".into()),
                "items" => value
                    .as_array()?
                    .iter()
                    .find_map(|member| fault(root, rule, member)),
                "anyOf" | "oneOf" => {
                    let fits = |choice: &Value| fault(root, choice, value).is_none();
                    (!rule.as_array().unwrap().iter().any(fits))
                        .then(|| format!("{value} fits no choice"))
                }
                "required" => {
                    let missing = |name: &&Value| value.get(name.as_str().unwrap()).is_none();
                    rule.as_array()
                        .unwrap()
                        .iter()
                        .find(missing)
                        .map(|name| format!("{name} is missing"))
                }
                "properties" => value
                    .as_object()?
                    .iter()
                    .find_map(|(name, value)| fault(root, rule.get(name)?, value)),
                "additionalProperties" => {
                    assert_eq!(rule, false);
                    let unknown =
                        |name: &&String| schema["properties"].get(name.as_str()).is_none();
                    value
                        .as_object()?
                        .keys()
                        .find(unknown)
                        .map(|name| format!("{name} is unknown"))
                }
                "description" | "title" | "pattern" | "$defs" | "$schema" => None,
                other => panic!("this test does not support the keyword {other}"),
            });
    faults.next()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[test]
fn a_worker_says_what_its_messages_are_promised() {
    let text = r#"
        [[worker]]
        name = "billing"
        source = "nats://app:secret@127.0.0.1:4222"
        queue = "ORDERS"
        deliver = "http://127.0.0.1:3000/events?from=orders"
        key = ["header:x-event", "preset:stripe", "position"]
        attempts = 3
        aggregate = "body:/order"
        sequence = "body:/version"
        on_gap = "pass"
    "#;
    let settings = File::parse(text, "refrain.toml").unwrap();
    let [worker] = &settings.workers[..] else {
        panic!("one worker");
    };
    assert_eq!(worker.terms.guarantee, refrain::Guarantee::AtLeastOnce);
    assert_eq!(worker.terms.attempts_max, 3);
    assert!(worker.compare && worker.sequence.is_some());
    assert_eq!(worker.source().queue, "ORDERS");
    let shown = serde_json::to_value(&settings).unwrap();
    assert!(!shown.to_string().contains("secret"), "{shown}");
    let keys = &shown["workers"][0]["key"];
    assert_eq!(
        *keys,
        serde_json::json!(["header:x-event", "preset:stripe", "position"])
    );
}

#[test]
fn a_relay_says_from_where_to_where_and_what_a_refusal_does() {
    let text = r#"
        [[relay]]
        outbox = "postgres://app:secret@db/app"
        to = "nats://127.0.0.1:4222"
        on_refusal = "park"
        attempts = 3
        lease = "10s"
    "#;
    let settings = File::parse(text, "refrain.toml").unwrap();
    let [relay] = &settings.relays[..] else {
        panic!("one relay");
    };
    let options = relay.options();
    assert_eq!(options.on_refusal, refrain::consume::OnRefusal::Park);
    assert_eq!((options.attempts, options.lease.as_secs()), (3, 10));
    assert_eq!((&*relay.name, options.in_flight_max), ("relay", 256));
    let shown = serde_json::to_string(&settings).unwrap();
    assert!(
        shown.contains("\"on_refusal\":\"park\"") && !shown.contains("secret"),
        "{shown}"
    );
}

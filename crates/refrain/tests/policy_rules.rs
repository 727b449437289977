//! "Store failures too" and "keep only 2xx" are both right, under different guarantees; classes choose between them.
//! A wrong entry loses a response or executes twice, so the tables of the contract are tested entry by entry.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;

use refrain::{
    Guarantee,
    key::Sender,
    policy::{
        Address, Authorization, Class, Duplicates, Ending, File, OnStoreFailure, Operation, Policy,
        Probe, Reply, Signature, Statuses, Terms, units,
    },
};

fn statuses(texts: &[&str]) -> Vec<Statuses> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn every_status_ends_as_the_table_of_the_contract_says() {
    const REFUSED: [u16; 7] = [401, 403, 407, 408, 421, 425, 429];
    for guarantee in [
        Guarantee::AtMostOnce,
        Guarantee::AtLeastOnce,
        Guarantee::ExactlyOnce,
    ] {
        let terms = Terms {
            guarantee,
            ..Terms::default()
        };
        let operation = Operation::default().with_terms(terms);
        for status in 200..=599 {
            let released =
                REFUSED.contains(&status) || (status >= 400 && guarantee == Guarantee::AtLeastOnce);
            let expected = match status {
                _ if released => Ending::Release,
                500.. if guarantee == Guarantee::ExactlyOnce => Ending::Doubt,
                _ => Ending::Keep,
            };
            assert_eq!(
                operation.keeps(status),
                expected,
                "{status} under {guarantee:?}"
            );
        }
    }
}

#[test]
fn keep_and_release_overrule_the_table() {
    let mut operation = Operation {
        keep: statuses(&["429", "401-403"]),
        release: statuses(&["5xx", "404", "302"]),
        ..Operation::default()
    };
    let cases = [
        (429, Ending::Keep),
        (402, Ending::Keep),
        (403, Ending::Keep),
        (407, Ending::Release),
        (404, Ending::Release),
        (405, Ending::Keep),
        (500, Ending::Release),
        (599, Ending::Release),
        (302, Ending::Release),
        (201, Ending::Keep),
    ];
    for (status, expected) in cases {
        assert_eq!(operation.keeps(status), expected, "{status}");
    }
    assert!(Policy::new(vec![operation.clone()]).is_ok());
    operation.keep.extend(statuses(&["503"]));
    let error = Policy::new(vec![operation]).unwrap_err().to_string();
    assert!(
        error.contains("status 503 is in `keep` and in `release`"),
        "{error}"
    );
}

#[test]
fn statuses_are_written_in_three_ways() {
    for text in ["404", "5xx", "400-417"] {
        assert_eq!(text.parse::<Statuses>().unwrap().to_string(), text);
    }
    for text in [
        "", "99", "600", "1xx", "101", "xx", "6xx", "417-400", "400-", "4x", "+40", "500-600",
    ] {
        assert!(text.parse::<Statuses>().is_err(), "{text}");
    }
}

#[test]
fn a_class_sets_what_it_says_and_nothing_else() {
    use Guarantee::{AtLeastOnce, AtMostOnce};
    let day = Duration::from_secs(86_400);
    let cases = [
        (Class::Read, false, AtMostOnce, 1, 7, false),
        (Class::Create, true, AtMostOnce, 1, 7, false),
        (Class::Monetary, true, AtMostOnce, 30, 365, true),
        (Class::Transition, true, AtMostOnce, 1, 7, false),
        (Class::Replace, true, AtLeastOnce, 1, 7, false),
        (Class::Delete, true, AtLeastOnce, 1, 7, false),
        (Class::Event, true, AtLeastOnce, 7, 30, false),
    ];
    for (class, guarded, guarantee, retention, remember, strict) in cases {
        let mut expected = Operation::new("POST /x").unwrap();
        expected.class = Some(class);
        expected.guarded = guarded;
        expected.required = strict;
        expected.audit = strict;
        expected.terms.guarantee = guarantee;
        expected.terms.retention = day * retention;
        expected.terms.remember = day * remember;
        if class == Class::Event {
            expected.duplicates = Duplicates::Acknowledge;
        }
        let operation = Operation::new("POST /x").unwrap().with_class(class);
        assert_eq!(operation, expected);
        let policy = Policy::new(vec![operation]).unwrap();
        assert_eq!(policy.find("POST", "/x").is_some(), guarded, "{class:?}");
    }
}

#[test]
fn own_settings_go_before_the_class_and_the_class_before_policy() {
    let file = r#"
        [policy]
        retention = "2d"
        remember = "3d"
        guarantee = "at-least-once"
        keep = [404]
        release = [503]
        timeout = "2m"

        [[operation]]
        match = "POST /pay"
        class = "monetary"
        remember = "400d"
        release = [500]
        lease = "1m"

        [[operation]]
        match = "POST /hook"
        keep = [429]
    "#;
    let policy = File::parse(file, "refrain.toml").unwrap().policy;
    let day = Duration::from_secs(86_400);
    let terms = |path| policy.find("POST", path).unwrap().operation.terms;
    let expected = Terms {
        retention: day * 30,
        remember: day * 400,
        timeout: Duration::from_secs(120),
        lease: Duration::from_secs(60),
        settle_after: Duration::from_secs(180),
        ..Terms::default()
    };
    assert_eq!(terms("/pay"), expected);
    assert_eq!(terms("/else").retention, day * 2);
    assert_eq!(terms("/else").settle_after, Duration::from_secs(150));
    assert_eq!(terms("/else").guarantee, Guarantee::AtLeastOnce);
    // The two lists of [policy] are replaced together.
    for (path, expected) in [("/pay", (0, 1)), ("/hook", (1, 0)), ("/else", (1, 1))] {
        let found = policy.find("POST", path).unwrap().operation;
        assert_eq!((found.keep.len(), found.release.len()), expected, "{path}");
    }
}

#[test]
fn the_default_policy_guards_post_and_patch() {
    let policy = Policy::default();
    let cases = [
        ("POST", Some("POST *")),
        ("PATCH", Some("PATCH *")),
        ("GET", None),
        ("PUT", None),
        ("DELETE", None),
    ];
    for (method, expected) in cases {
        let found = policy
            .find(method, "/any/path")
            .map(|found| found.operation.name.clone());
        assert_eq!(found.as_deref(), expected, "{method}");
    }
    assert_eq!(
        policy.find("POST", "/").unwrap().operation.terms,
        Terms::default()
    );
    assert_eq!(Terms::default().settle_after, Duration::from_secs(90));
}

#[test]
fn an_operation_for_every_path_takes_the_place_of_the_default() {
    let off = "[[operation]]\nmatch = \"POST *\"\nclass = \"read\"";
    for file in [
        off.to_owned(),
        off.replace("POST *", "POST|PUT *"),
        off.replace("POST *", "* *"),
    ] {
        let policy = File::parse(&file, "refrain.toml").unwrap().policy;
        assert!(policy.find("POST", "/x").is_none(), "{file}");
        assert_eq!(
            policy.find("PATCH", "/x").is_some(),
            !file.contains("* *"),
            "{file}"
        );
    }
    let replaced = Policy::default()
        .with(Operation::new("POST *").unwrap().with_class(Class::Event))
        .unwrap();
    assert_eq!(replaced.operations().len(), 2);
    assert_eq!(
        replaced.find("POST", "/x").unwrap().operation.class,
        Some(Class::Event)
    );
}

type Edit = fn(&mut Operation);

#[test]
fn a_policy_refuses_what_breaks_its_rules() {
    let change = |change: Edit| {
        let mut operation = Operation::new("POST /x/{id}").unwrap();
        change(&mut operation);
        Policy::new(vec![operation])
    };
    let cases: [(Edit, &str); 15] = [
        (|o| o.terms.lease = Duration::ZERO, "`lease` is 0s"),
        (|o| o.terms.attempts_max = 0, "`attempts_max` is 0"),
        (|o| o.terms.waiting_max = 0, "`waiting_max` is 0"),
        (
            |o| o.terms.settle_after = Duration::from_secs(59),
            "`settle_after` (59s) is shorter than `timeout` (1m)",
        ),
        (
            |o| o.terms.guarantee = Guarantee::ExactlyOnce,
            "exactly-once needs `receipts`",
        ),
        (
            |o| {
                o.terms.guarantee = Guarantee::ExactlyOnce;
                o.receipts = Some(Address::new("postgres://db/app"));
                o.reply = Reply::Streamed;
            },
            "is sent before its receipt can be read",
        ),
        (
            |o| {
                o.terms.guarantee = Guarantee::ExactlyOnce;
                o.receipts = Some(Address::new("postgres://db/app"));
                o.on_store_failure = OnStoreFailure::Pass;
            },
            "a request that runs without the store has no receipt",
        ),
        (
            |o| o.outcome_bytes_max = (64 << 20) + 1,
            "`outcome_bytes_max` is 67108865B",
        ),
        (|o| o.key.clear(), "`key` is empty"),
        (
            |o| o.scope = vec!["path:nope".parse().unwrap()],
            "`path:nope` names a segment",
        ),
        (
            |o| o.replay_headers = vec!["Set-Cookie".into()],
            "not in lower case",
        ),
        (
            |o| o.replay_headers = vec!["x-ratelimit-left".into()],
            "never replayed",
        ),
        (
            |o| o.probe = Some("GET /y/{other}".parse().unwrap()),
            "{other}",
        ),
        (
            |o| o.probe_authorization = Some(Authorization::bearer("a").unwrap()),
            "`probe_authorization` has no effect without a `probe`",
        ),
        (
            |o| {
                o.reply = Reply::Streamed;
                o.terms.lease = Duration::from_secs(91);
            },
            "`settle_after` (1m30s) is shorter than `lease` (1m31s)",
        ),
    ];
    for (edit, expected) in cases {
        let error = change(edit).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert!(change(|o| o.scope = vec!["path:id".parse().unwrap()]).is_ok());
    assert!(change(|o| o.reply = Reply::Streamed).is_ok());
    assert!(change(|o| o.probe = Some("GET /y?of={record}".parse().unwrap())).is_ok());
    let receipted = change(|o| {
        o.terms.guarantee = Guarantee::ExactlyOnce;
        o.receipts = Some(Address::new("postgres://db/app"));
    });
    assert!(receipted.is_ok());
    let pair = ["POST /a/{x}", "POST|PUT /a/{y}"].map(|pattern| Operation::new(pattern).unwrap());
    let error = Policy::new(pair.to_vec()).unwrap_err().to_string();
    assert!(error.contains("match the same requests"), "{error}");
}

#[test]
fn replayable_headers_are_an_allow_list() {
    let operation = Operation {
        replay_headers: vec!["x-request-cost".into()],
        ..Operation::default()
    };
    for name in ["content-type", "location", "etag", "link", "x-request-cost"] {
        assert!(operation.replays_header(name), "{name}");
    }
    for name in [
        "set-cookie",
        "date",
        "connection",
        "www-authenticate",
        "x-other",
    ] {
        assert!(!operation.replays_header(name), "{name}");
    }
}

#[test]
fn durations_are_read_and_written_alike() {
    let cases = [
        ("500ms", 500),
        ("10s", 10_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("0s", 0),
    ];
    for (text, millis) in cases {
        let span = units::duration(text).unwrap();
        assert_eq!(span, Duration::from_millis(millis), "{text}");
        assert_eq!(units::Span(span).to_string(), text);
    }
    for text in [
        "",
        "10",
        "s",
        "10 s",
        "1.5h",
        "-1s",
        "10S",
        "30m1h",
        "1s1s",
        "1w",
        "99999999999999999999s",
        "999999999999999999d",
    ] {
        assert!(units::duration(text).is_err(), "{text}");
    }
}

#[test]
fn sizes_are_read_and_written_alike() {
    let cases = [
        ("8MiB", 8 << 20),
        ("64KiB", 64 << 10),
        ("1GiB", 1 << 30),
        ("100B", 100),
        ("0B", 0),
    ];
    for (text, bytes) in cases {
        assert_eq!(units::size(text).unwrap(), bytes, "{text}");
        assert_eq!(units::Size(bytes).to_string(), text);
    }
    assert_eq!(units::size("65536").unwrap(), 65536);
    for text in ["", "8MB", "8 MiB", "-1", "1.5MiB", "MiB", "99999999999GiB"] {
        assert!(units::size(text).is_err(), "{text}");
    }
}

#[test]
fn a_probe_is_filled_so_that_nobody_can_ask_for_another_path() {
    let probe: Probe = "GET /v1/{id}/x?key={key}".parse().unwrap();
    assert_eq!(probe.to_string(), "GET /v1/{id}/x?key={key}");
    let fill = |id: &'static str| {
        probe.target(|name| match name {
            "id" => Some(id.as_bytes()),
            "key" => Some(b"a&b=c/ d"),
            _ => None,
        })
    };
    assert_eq!(
        fill("7?").as_deref(),
        Some("/v1/7%3F/x?key=a%26b%3Dc%2F%20d")
    );
    assert_eq!(fill(".."), None);
    let mut operation = Operation::new("POST /x").unwrap();
    operation.probe = Some("GET /x".parse().unwrap());
    let error = Policy::new(vec![operation]).unwrap_err().to_string();
    assert!(error.contains("the same for every record"), "{error}");
    for text in [
        "POST /x/{key}",
        "GET x/{key}",
        "/x/{key}",
        "GET /x/{key",
        "GET /x/key}",
        "GET /x/{}",
        "GET /x#{key}",
    ] {
        assert!(text.parse::<Probe>().is_err(), "{text}");
    }
}

#[test]
fn webhook_stands_between_policy_and_class() {
    let text = "[policy]\nwait = \"9s\"\nlease = \"7s\"\nrequired = false\n\
        [[operation]]\nmatch = \"POST /plain\"\nwebhook = \"stripe\"\n\
        [[operation]]\nmatch = \"POST /own\"\nwebhook = \"shopify\"\nclass = \"monetary\"\n\
        key = \"header:X-Id\"\nwait = \"0s\"\n";
    let policy = File::parse(text, "refrain.toml").unwrap().policy;
    let plain = policy.find("POST", "/plain").unwrap().operation;
    assert_eq!(plain.webhook, Some(Sender::Stripe));
    assert_eq!(plain.class, Some(Class::Event));
    assert_eq!(plain.key, [Sender::Stripe.source()]);
    assert_eq!(plain.scope[0].to_string(), "route");
    assert!(plain.required && plain.duplicates == Duplicates::Acknowledge);
    assert_eq!(plain.terms.wait, Duration::from_secs(3));
    assert_eq!(plain.terms.lease, Duration::from_secs(7));
    assert!(plain.keeps_successes_alone());
    let own = policy.find("POST", "/own").unwrap().operation;
    assert_eq!(own.class, Some(Class::Monetary));
    assert_eq!(own.key[0].to_string(), "header:x-id");
    assert_eq!(own.terms.guarantee, Guarantee::AtMostOnce);
    assert_eq!(own.terms.wait, Duration::ZERO);
    assert_eq!(own.scope.len(), 3);
    assert!(!own.keeps_successes_alone());
}

#[test]
fn a_signature_needs_a_secret_a_guard_and_a_sensible_tolerance() {
    let good = Signature::new(Sender::Stripe).with_secret("x").unwrap();
    let many = (0..8).try_fold(good.clone(), |it, n: usize| it.with_secret(&n.to_string()));
    let cases = [
        (good.clone(), Class::Event, None),
        (
            Signature::new(Sender::Stripe),
            Class::Event,
            Some("has 0 secrets"),
        ),
        (many.unwrap(), Class::Event, Some("has 9 secrets")),
        (good.clone(), Class::Read, Some("would not be verified")),
        (
            good.clone().with_tolerance(Duration::ZERO),
            Class::Event,
            Some("`tolerance` is 0s, out of range"),
        ),
        (
            good.with_tolerance(Duration::from_secs(2 * 86_400)),
            Class::Event,
            Some("`tolerance` is 2d, out of range"),
        ),
    ];
    for (signature, class, expected) in cases {
        let mut operation = Operation::new("POST /x").unwrap().with_class(class);
        operation.signature = Some(signature);
        let error = Policy::new(vec![operation]).err().map(|it| it.to_string());
        match (error, expected) {
            (None, None) => {}
            (Some(error), Some(piece)) => assert!(error.contains(piece), "{error}"),
            (error, expected) => panic!("{error:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn a_masked_path_shows_no_value_of_a_selected_name() {
    let check = |pattern: &str, path: &str, expected: &str| {
        let operation = Operation::new(pattern).unwrap();
        let masked = operation.pattern.masked(path, |name| name == "key");
        assert_eq!(masked, expected, "{pattern} {path}");
    };
    for (pattern, path, expected) in [
        ("PUT /orders/{key}", "/orders/4711", "/orders/{key}"),
        ("PUT /{shop}/{key}/pay", "/acme/4711/pay", "/acme/{key}/pay"),
        (
            "PUT /orders/{key}/*",
            "/orders/4711/a/b",
            "/orders/{key}/a/b",
        ),
        ("PUT /orders/{id}", "/orders/4711", "/orders/4711"),
        ("PUT *", "/orders/4711", "/orders/4711"),
        // Segments that a server may count in another way.
        ("PUT /orders/{key}", "//orders/4711", "/orders/{key}"),
        ("PUT /orders/{key}", "/x/../orders/4711", "/orders/{key}"),
        ("PUT /orders/{key}", "/orders%2F4711", "/orders/{key}"),
    ] {
        check(pattern, path, expected);
    }
}

//! A payment API guards `POST /v1/payments` and leaves a search by POST unguarded. A client must not bypass the guard
//! with `//`, `..` or `%2F`, and the order of the patterns must not matter.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use refrain::policy::{Class, Mode, Operation, Paths, Policy};

fn operation(pattern: &str) -> Operation {
    Operation::new(pattern).unwrap()
}

/// Checks which pattern each request matches, for every order of the patterns.
fn check(patterns: &[&str], requests: &[(&str, Option<&str>)]) {
    let mut operations: Vec<_> = patterns.iter().map(|pattern| operation(pattern)).collect();
    for _ in 0..2 {
        let policy = Policy::new(operations.clone()).unwrap();
        for (request, expected) in requests {
            let (method, path) = request.split_once(' ').unwrap();
            let found = policy
                .find(method, path)
                .map(|found| found.operation.name.clone());
            assert_eq!(found.as_deref(), *expected, "{request} among {patterns:?}");
        }
        operations.reverse();
    }
}

#[test]
fn the_most_specific_pattern_wins_whatever_the_order() {
    check(
        &[
            "POST *",
            "POST /*",
            "POST /v1/*",
            "POST /v1/{id}",
            "POST /v1/pay",
            "POST /v1/{id}/x",
            "POST /{a}/pay/x",
        ],
        &[
            ("POST /v1/pay", Some("POST /v1/pay")),
            ("POST /v1/other", Some("POST /v1/{id}")),
            ("POST /v1/a/b", Some("POST /v1/*")),
            ("POST /v1", Some("POST /v1/*")),
            ("POST /", Some("POST /*")),
            ("POST /v2", Some("POST /*")),
            // Literal segments count from the left: `v1` takes precedence over later segments.
            ("POST /v1/pay/x", Some("POST /v1/{id}/x")),
            ("POST /v2/pay/x", Some("POST /{a}/pay/x")),
            ("POST /v1/pay/y", Some("POST /v1/*")),
            ("GET /v1/pay", None),
        ],
    );
}

#[test]
fn a_search_that_leads_nowhere_comes_back_to_less_specific_patterns() {
    check(
        &["POST /a/b/c", "POST /a/{x}/d", "POST /{y}/b/e", "POST /a/*"],
        &[
            ("POST /a/b/c", Some("POST /a/b/c")),
            ("POST /a/b/d", Some("POST /a/{x}/d")),
            ("POST /a/b/e", Some("POST /a/*")),
            ("POST /z/b/e", Some("POST /{y}/b/e")),
            ("POST /z/b/f", None),
        ],
    );
}

#[test]
fn methods_are_alternatives_and_a_named_one_goes_before_any() {
    check(
        &["POST|PUT /a", "* /a", "* /b/{id}", "DELETE /b/*", "* *"],
        &[
            ("POST /a", Some("POST|PUT /a")),
            ("PUT /a", Some("POST|PUT /a")),
            ("post /a", Some("POST|PUT /a")),
            ("PATCH /a", Some("* /a")),
            ("DELETE /b/1", Some("* /b/{id}")),
            ("DELETE /b/1/2", Some("DELETE /b/*")),
            ("OPTIONS *", Some("* *")),
            ("GET /elsewhere", Some("* *")),
        ],
    );
}

#[test]
fn spelling_does_not_matter() {
    let found = Some("POST /v1/pay%20ments/größe");
    check(
        &["POST /v1/pay%20ments/größe"],
        &[
            ("POST /v1/pay%20ments/gr%C3%B6%C3%9Fe", found),
            ("POST /v1/pay%20ments/gr%c3%b6%c3%9fe/", found),
            ("POST /%76%31/pay%20ments/größe?q=/other", found),
            ("POST /v1/pay%2520ments/größe", None),
            ("POST /V1/pay%20ments/GR%C3%96SSE", found),
            ("POST /v1/payments/größe", None),
        ],
    );
}

#[test]
fn no_spelling_leads_around_a_guard() {
    let guarded = Some("POST /v1/payments/{id}");
    check(
        &["POST /v1/payments/{id}"],
        &[
            ("POST /v1/payments/7", guarded),
            ("POST /v1/payments/7/", guarded),
            ("POST //v1/payments/7", guarded),
            ("POST /v1//payments///7//", guarded),
            ("POST /v1/./payments/7", guarded),
            ("POST /v1/other/../payments/7", guarded),
            ("POST /../../v1/payments/7", guarded),
            ("POST /v1/%2e%2E/v1/payments/7", guarded),
            ("POST /v1%2Fpayments%2F7", guarded),
            ("POST /v1%2f..%2fv1/payments/7", guarded),
            ("POST /v1\\payments%5C7", guarded),
            ("POST /v1;a=b/payments;c/7", guarded),
            // A server may treat an encoded slash as part of the id, and normalize the rest.
            ("POST /v1//payments/a%2Fb", guarded),
            ("POST /v1/payments/..", guarded),
            ("POST /v1/payments", None),
            ("POST /v1/payments/7/8", None),
            ("POST /v1/payments/7/..", None),
        ],
    );
}

/// `POST /V1/pay` bypassed the key that `POST /v1/pay` requires, at a service that ignores case.
#[test]
fn case_leads_around_no_guard() {
    check(
        &["POST /v1/pay/{id}", "POST /V2/Pay", "POST /v1/*"],
        &[
            ("POST /V1/PAY/Ab", Some("POST /v1/pay/{id}")),
            ("POST /v1/%50ay/7", Some("POST /v1/pay/{id}")),
            ("POST //V1/x/../Pay;a=b/7", Some("POST /v1/pay/{id}")),
            ("POST /v2/pay", Some("POST /V2/Pay")),
            ("POST /V1/other", Some("POST /v1/*")),
            ("POST /v3", None),
        ],
    );
    let policy = Policy::new(vec![operation("POST /v1/pay/{id}")]).unwrap();
    let found = policy.find("POST", "/V1/Pay/Ab").unwrap();
    assert_eq!(found.value("id"), Some(&b"Ab"[..]), "values stay as sent");
}

/// Ignoring case guards more, never less: a rule that guards less matches its exact spelling only.
#[test]
fn a_laxer_rule_counts_for_its_own_spelling() {
    let mut observed = operation("POST /v1/Watch");
    observed.mode = Mode::Observe;
    let policy = Policy::default()
        .with(operation("POST /v1/Search").with_class(Class::Read))
        .and_then(|policy| policy.with(observed))
        .unwrap();
    for (path, expected) in [
        ("/v1/Search", None),
        ("/v1/search", Some("POST *")),
        ("/V1/Search", Some("POST *")),
        ("/v1/Watch", Some("POST /v1/Watch")),
        ("/v1/watch", Some("POST *")),
    ] {
        let found = policy.find("POST", path);
        let name = found.map(|found| found.operation.name.clone());
        assert_eq!(name.as_deref(), expected, "{path}");
    }
}

#[test]
fn case_counts_where_an_operation_says_so() {
    let sensitive = |pattern: &str| {
        let mut operation = operation(pattern);
        operation.paths = Paths::CaseSensitive;
        operation
    };
    let operations = vec![
        sensitive("POST /v1/pay"),
        sensitive("POST /v1/Pay"),
        operation("POST /v1/order"),
        sensitive("POST /v1/Order"),
    ];
    let policy = Policy::new(operations).unwrap();
    for (path, expected) in [
        ("/v1/pay", Some("POST /v1/pay")),
        ("/v1/Pay", Some("POST /v1/Pay")),
        ("/v1/PAY", None),
        ("/V1/pay", None),
        ("/v1/order", Some("POST /v1/order")),
        ("/V1/ORDER", Some("POST /v1/order")),
        ("/v1/Order", Some("POST /v1/Order")),
    ] {
        let found = policy.find("POST", path);
        let name = found.map(|found| found.operation.name.clone());
        assert_eq!(name.as_deref(), expected, "{path}");
    }
    let clash = Policy::new(vec![operation("POST /v1/pay"), operation("POST /V1/Pay")]);
    let clash = clash.unwrap_err().to_string();
    assert!(clash.contains("paths = \"case-sensitive\""), "{clash}");
    let replaced = Policy::default()
        .with(operation("POST /v1/pay"))
        .and_then(|policy| policy.with(operation("POST /V1/Pay")));
    assert_eq!(replaced.unwrap().operations().count(), 3);
}

/// For a service that treats `/v1/pay.json` like `/v1/pay`, these are two paths; a trailing slash does not make
/// another path.
#[test]
fn a_suffix_is_another_path_and_a_slash_at_the_end_is_not() {
    let mut pay = operation("POST /v1/pay");
    pay.required = true;
    let plain = Policy::default().with(pay.clone()).unwrap();
    let name =
        |policy: &Policy, path: &str| policy.find("POST", path).unwrap().operation.name.clone();
    assert_eq!(name(&plain, "/v1/pay/"), "POST /v1/pay");
    for suffixed in [
        "/v1/pay.json",
        "/v1/pay.json/",
        "/v1/pay.",
        "/v1/pay%2Ejson",
    ] {
        assert_eq!(name(&plain, suffixed), "POST *");
    }
    let mut json = operation("POST /v1/pay.json");
    json.required = true;
    let both = plain.with(json).unwrap();
    for suffixed in ["/v1/pay.json", "/v1/PAY.JSON/", "/v1/pay%2Ejson"] {
        assert_eq!(name(&both, suffixed), "POST /v1/pay.json");
    }
    let mut all = operation("POST /v1/{pay}");
    all.required = true;
    let all = Policy::default().with(all).unwrap();
    assert_eq!(name(&all, "/v1/pay.xml"), "POST /v1/{pay}");
}

#[test]
fn of_two_readings_the_strictest_operation_counts() {
    let read = operation("POST /search/*").with_class(Class::Read);
    let payments = operation("POST /v1/payments").with_class(Class::Monetary);
    let refunds = operation("POST /v1/refunds/*").with_class(Class::Monetary);
    let mut watched = operation("POST /watched/*");
    watched.mode = Mode::Observe;
    let policy = Policy::default()
        .with(read)
        .and_then(|policy| policy.with(payments))
        .and_then(|policy| policy.with(refunds))
        .and_then(|policy| policy.with(watched))
        .unwrap();
    let cases = [
        ("/search/books", None),
        ("/search/../v1/payments", Some("POST /v1/payments")),
        ("/search/..%2Fv1/payments", Some("POST /v1/payments")),
        ("/v1/payments/../../search/books", Some("POST *")),
        ("/watched/../v1/payments", Some("POST /v1/payments")),
        ("/v1/refunds/../other", Some("POST /v1/refunds/*")),
        ("/watched/a", Some("POST /watched/*")),
        ("/watched%2Fa", Some("POST *")),
    ];
    for (path, expected) in cases {
        let found = policy
            .find("POST", path)
            .map(|found| found.operation.name.clone());
        assert_eq!(found.as_deref(), expected, "{path}");
    }
}

#[test]
fn named_segments_have_their_decoded_values() {
    let policy = Policy::new(vec![operation("POST /t/{tenant}/o/{id}/*")]).unwrap();
    let found = policy.find("POST", "/t/a%20b/o/%FF/rest/of/it").unwrap();
    assert_eq!(found.value("tenant"), Some(&b"a b"[..]));
    assert_eq!(found.value("id"), Some(&b"\xFF"[..]));
    assert_eq!(found.value("rest"), None);
}

#[test]
fn long_and_deep_paths_are_read_in_one_go() {
    let deep = format!("POST /{}", ["a"; 64].join("/"));
    let policy = Policy::new(vec![operation(&deep), operation("POST /a/*")]).unwrap();
    let path = deep.strip_prefix("POST ").unwrap();
    assert_eq!(policy.find("POST", path).unwrap().operation.name, deep);
    let deeper = format!("{path}/a");
    assert_eq!(
        policy.find("POST", &deeper).unwrap().operation.name,
        "POST /a/*"
    );
    let odd = "/./..;x//%2f".repeat(20_000) + path;
    assert_eq!(policy.find("POST", &odd).unwrap().operation.name, deep);
}

/// Every policy of two patterns over a small alphabet matches like a direct implementation of the rules.
#[test]
fn finds_what_comparing_all_patterns_finds() {
    let patterns = words(&["a", "b", "{x}"], 3)
        .into_iter()
        .flat_map(|path| {
            [
                format!("POST {path}"),
                format!("POST {}/*", path.trim_end_matches('/')),
            ]
        })
        .collect::<Vec<_>>();
    let paths = words(&["a", "b", "c"], 4);
    let mut checked = 0;
    for (at, left) in patterns.iter().enumerate() {
        for right in &patterns[at + 1..] {
            let policy = Policy::new(vec![operation(left), operation(right)]).unwrap();
            for path in &paths {
                let expected = [left, right]
                    .into_iter()
                    .filter(|pattern| matches(pattern, path))
                    .max_by_key(|pattern| rank(pattern));
                let found = policy.find("POST", path);
                assert_eq!(
                    found.map(|found| found.operation.name.clone()).as_ref(),
                    expected,
                    "{left}, {right}: {path}"
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 100_000);
}

fn words(alphabet: &[&str], depth: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..depth {
        last = last
            .iter()
            .flat_map(|front| alphabet.iter().map(move |word| format!("{front}/{word}")))
            .collect();
        // A name may occur in a pattern only once.
        last.retain(|path| path.matches("{x}").count() < 2);
        all.extend(last.clone());
    }
    all.into_iter()
        .map(|path| if path.is_empty() { "/".into() } else { path })
        .collect()
}

fn segments(text: &str) -> Vec<&str> {
    text.trim_start_matches("POST ")
        .split('/')
        .filter(|segment| !segment.is_empty())
        .collect()
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut pattern, path) = (segments(pattern), segments(path));
    let open = pattern.pop_if(|last| *last == "*").is_some();
    let fits = |(expected, segment): (&&str, &&str)| *expected == "{x}" || expected == segment;
    let long_enough = if open {
        path.len() >= pattern.len()
    } else {
        path.len() == pattern.len()
    };
    long_enough && pattern.iter().zip(&path).all(fits)
}

/// A larger rank is more specific: literal 3, name 2, end 1, rest 0.
fn rank(pattern: &str) -> Vec<u8> {
    let mut rank: Vec<_> = segments(pattern)
        .iter()
        .map(|segment| match *segment {
            "{x}" => 2,
            "*" => 0,
            _ => 3,
        })
        .collect();
    if !pattern.ends_with('*') {
        rank.push(1);
    }
    rank
}

//! One user's key must never return another user's record, and no spelling may make one caller look like another. A
//! request without a key must be recognized by its head, or its upload is buffered in memory for nothing.
#![cfg(feature = "http")]

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, request::Parts};
use proptest::prelude::*;
use refrain::{
    ErrorKind, Key, Operation, RecordId, Secret,
    http::{
        ClientCertificate,
        extract::{self, HeadKey, ScopeInput},
    },
    key::{CredentialPart, ScopePart, Source, Syntax},
};

type Headers<'a> = &'a [(&'a str, &'a str)];
/// Sources, headers, body, and the key or a part of the error message.
type KeyCase<'a> = (
    &'a [&'a str],
    Headers<'a>,
    &'a str,
    Result<Option<&'a str>, &'a str>,
);

#[test]
fn the_first_source_that_is_present_decides() {
    let header = &["header:Idempotency-Key"][..];
    let aliases = &["header:Idempotency-Key", "header:X-Idempotency-Key"][..];
    let body = &["body:/event/id"][..];
    let natural = &["natural:{/a}-{/b}"][..];
    let mixed = &["header:Idempotency-Key", "body:/id", "natural:{/a}-{/b}"][..];
    let cases: &[KeyCase<'_>] = &[
        (header, &[("Idempotency-Key", "\"k\"")], "", Ok(Some("k"))),
        (header, &[("idempotency-key", "k")], "", Ok(Some("k"))),
        (header, &[], "", Ok(None)),
        (header, &[("X-Other", "k")], "", Ok(None)),
        (
            header,
            &[("Idempotency-Key", "")],
            "",
            Err("header idempotency-key: the key is empty"),
        ),
        (
            header,
            &[("Idempotency-Key", "k"), ("Idempotency-Key", "l")],
            "",
            Err("is sent twice"),
        ),
        (
            header,
            &[("Idempotency-Key", "k"), ("Idempotency-Key", "k")],
            "",
            Err("is sent twice"),
        ),
        (
            header,
            &[("Idempotency-Key", "\"k\", \"l\"")],
            "",
            Err("text follows"),
        ),
        (aliases, &[("X-Idempotency-Key", "x")], "", Ok(Some("x"))),
        (
            aliases,
            &[("X-Idempotency-Key", "x"), ("Idempotency-Key", "k")],
            "",
            Ok(Some("k")),
        ),
        (
            aliases,
            &[("X-Idempotency-Key", "x"), ("Idempotency-Key", " ")],
            "",
            Err("empty"),
        ),
        (&[], &[("Idempotency-Key", "k")], "", Ok(None)),
        (body, &[], r#"{"event":{"id":"e1"}}"#, Ok(Some("e1"))),
        (
            body,
            &[("Content-Type", "text/plain")],
            r#"{"event":{"id":"e1"}}"#,
            Ok(Some("e1")),
        ),
        (
            body,
            &[],
            r#"{"event":{"id":9007199254740993}}"#,
            Ok(Some("9007199254740993")),
        ),
        (body, &[], r#"{"event":{"id":null}}"#, Ok(None)),
        (body, &[], r#"{"event":{"id":["e1"]}}"#, Ok(None)),
        (body, &[], r#"{"event":{}}"#, Ok(None)),
        (body, &[], "id=7", Ok(None)),
        (body, &[], "", Ok(None)),
        (
            body,
            &[],
            r#"{"event":{"id":"two words"}}"#,
            Err("/event/id in the body: byte 3"),
        ),
        (body, &[], r#"{"event":{"id":""}}"#, Err("empty")),
        (
            body,
            &[],
            r#"{"event":{"id":"e1","id":"e2"}}"#,
            Err("a member name occurs twice"),
        ),
        (natural, &[], r#"{"b":2,"a":1}"#, Ok(Some("1-2"))),
        (natural, &[], r#"{"b":2}"#, Ok(None)),
        (
            natural,
            &[],
            r#"{"b":2,"a":1,"b":2}"#,
            Err("a member name occurs twice"),
        ),
        (
            mixed,
            &[("Idempotency-Key", "k")],
            r#"{"id":"i"}"#,
            Ok(Some("k")),
        ),
        (mixed, &[], r#"{"id":"i","a":1,"b":2}"#, Ok(Some("i"))),
        (mixed, &[], r#"{"a":1,"b":2}"#, Ok(Some("1-2"))),
        (mixed, &[], "{}", Ok(None)),
    ];
    for (sources, headers, body, expected) in cases {
        let found = find(sources, &head("POST", "/", headers), body);
        let found = found.as_ref().map(|key| key.as_ref().map(Key::as_str));
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(found, *expected, "{sources:?} {headers:?} {body}");
            }
            (Err(error), Err(piece)) => {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                assert!(error.to_string().contains(piece), "{error}");
            }
            (found, _) => panic!("{sources:?} {headers:?} {body}: {found:?}"),
        }
    }
}

#[test]
fn the_head_tells_whether_the_body_is_needed() {
    let found = HeadKey::Found(Key::new("k").unwrap());
    let with = &[("Idempotency-Key", "k")][..];
    let cases: &[(&[&str], Headers<'_>, HeadKey)] = &[
        (&["header:Idempotency-Key"], with, found.clone()),
        (&["header:Idempotency-Key"], &[], HeadKey::Absent),
        (&[], with, HeadKey::Absent),
        (
            &["header:X-Id", "header:Idempotency-Key"],
            with,
            found.clone(),
        ),
        (&["header:Idempotency-Key", "derive"], with, found),
        (
            &["header:Idempotency-Key", "derive"],
            &[],
            HeadKey::NeedsBody,
        ),
        (
            &["body:/id", "header:Idempotency-Key"],
            with,
            HeadKey::NeedsBody,
        ),
        (&["natural:{/id}"], &[], HeadKey::NeedsBody),
    ];
    for (sources, headers, expected) in cases {
        let headers = header_map(headers);
        let got = extract::head_key(&parsed(sources), Syntax::Both, &headers);
        assert_eq!(got.unwrap(), *expected, "{sources:?} {headers:?}");
    }
    let twice = header_map(&[("Idempotency-Key", "k"), ("Idempotency-Key", "k")]);
    let sources = parsed(&["header:Idempotency-Key"]);
    assert!(extract::head_key(&sources, Syntax::Both, &twice).is_err());
    let bare = header_map(with);
    assert!(extract::head_key(&sources, Syntax::Strict, &bare).is_err());
    assert_eq!(extract::IDEMPOTENCY_KEY.as_str(), "idempotency-key");
}

#[test]
fn a_derived_key_follows_what_is_asked() {
    let json = &[("Content-Type", "application/json")][..];
    let key = |method, path, headers, body| {
        find(&["derive"], &head(method, path, headers), body)
            .unwrap()
            .unwrap()
    };
    let first = key("POST", "/pay?x=1", json, r#"{"a":1,"b":2}"#);
    assert_eq!(first, key("POST", "/pay?x=1", json, r#"{ "b":2, "a":1 }"#));
    let params = br#"{"body":{"a":1,"b":2},"query":"x=1"}"#;
    assert_eq!(first, Key::derive("/pay", "POST", params));
    let digest = blake3::hash(b"a=1");
    let params = format!(r#"{{"body_bytes":"{digest}","query":"q=%22"}}"#);
    assert_eq!(
        key("POST", "/?q=%22", &[], "a=1"),
        Key::derive("/", "POST", params.as_bytes())
    );
    let others = [
        first,
        key("PUT", "/pay?x=1", json, r#"{"a":1,"b":2}"#),
        key("POST", "/pay/?x=1", json, r#"{"a":1,"b":2}"#),
        key("POST", "/pay?x=2", json, r#"{"a":1,"b":2}"#),
        key("POST", "/pay?", json, r#"{"a":1,"b":2}"#),
        key("POST", "/pay", json, r#"{"a":1,"b":2}"#),
        key("POST", "/pay?x=1", json, r#"{"a":1,"b":2.0}"#),
        key("POST", "/pay?x=1", json, r#"{"a":1,"b":2,"b":2}"#),
        key("POST", "/pay?x=1", &[], r#"{"a":1,"b":2}"#),
        key("POST", "/pay?x=1", json, ""),
        key("POST", "/pay", json, ""),
        key("POST", "/pay?x=1", json, "null"),
    ];
    all_differ(&others);
    assert_eq!(others[10], Key::derive("/pay", "POST", b"{}"));
}

#[test]
fn callers_are_kept_apart() {
    let jwt = |claims: &str| format!("Bearer h.{}.s", URL_SAFE_NO_PAD.encode(claims));
    let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
    let values = [
        basic("ann:secret"),
        basic("bob:secret"),
        basic("anonymous:"),
        basic(":key-1"),
        basic(":key-2"),
        basic("no colon"),
        "Basic %%%".into(),
        "Basic".into(),
        jwt(r#"{"iss":"x","sub":"ann"}"#),
        jwt(r#"{"iss":"x","sub":"bob"}"#),
        jwt(r#"{"iss":"y","sub":"ann"}"#),
        jwt(r#"{"iss":"xa","sub":"nn"}"#),
        jwt(r#"{"sub":"ann"}"#),
        jwt(r#"{"iss":"x"}"#),
        jwt(r#"{"iss":"x","sub":7}"#),
        jwt(r#"{"iss":"x","sub":"ann","sub":"bob"}"#),
        jwt("not json"),
        format!("{}.extra", jwt(r#"{"iss":"x","sub":"ann"}"#)),
        "Bearer opaque-1".into(),
        "Bearer opaque-2".into(),
        "Bearer ann".into(),
        "ApiKey ann".into(),
        "ann".into(),
        String::new(),
    ];
    let mut scopes: Vec<_> = values
        .iter()
        .map(|value| scope(&["credential"], &[("Authorization", value)]))
        .collect();
    scopes.push(scope(&["credential"], &[]));
    scopes.push(scope(
        &["credential"],
        &[("Authorization", &values[0]), ("Authorization", &values[1])],
    ));
    scopes.push(scope(
        &["credential"],
        &[("Authorization", &values[1]), ("Authorization", &values[0])],
    ));
    scopes.push(scope(&["none"], &[]));
    all_differ(&scopes);
}

#[test]
fn a_user_named_like_a_digest_is_not_who_it_was_taken_of() {
    let digest: [u8; 16] = Secret::from([7; 32]).digest("scope", &[b"Bearer opaque"]);
    assert!(!digest.contains(&b':'));
    let user = [&digest[..], b":"].concat();
    let basic = format!("Basic {}", STANDARD.encode(user));
    let scopes =
        ["Bearer opaque", &basic].map(|value| scope(&["credential"], &[("Authorization", value)]));
    assert_ne!(scopes[0], scopes[1]);
}

#[test]
fn one_caller_keeps_one_scope() {
    let basic = |scheme: &str, pair: &str| format!("{scheme} {}", STANDARD.encode(pair));
    let jwt =
        |scheme: &str, claims: &str| format!("{scheme} h.{}.s", URL_SAFE_NO_PAD.encode(claims));
    let cases = [
        (basic("Basic", "ann:old:er"), basic("bAsIc", "ann:new")),
        (
            basic("Basic", "ann:1"),
            format!("Basic  {}", STANDARD_NO_PAD.encode("ann:1")),
        ),
        (
            jwt("Bearer", r#"{"iss":"x","sub":"ann","exp":1}"#),
            jwt("BEARER", r#"{"exp":2,"sub":"\u0061nn","iss":"x"}"#),
        ),
        ("Bearer opaque".into(), "Bearer opaque".into()),
    ];
    for (first, later) in cases {
        let scopes =
            [first, later].map(|value| scope(&["credential"], &[("Authorization", &value)]));
        assert_eq!(scopes[0], scopes[1]);
    }
}

#[test]
fn scopes_are_made_of_what_the_policy_names() {
    let tenant = ["header:X-Tenant"];
    all_differ(&[
        scope(&tenant, &[]),
        scope(&tenant, &[("X-Tenant", "")]),
        scope(&tenant, &[("X-Tenant", "a")]),
        scope(&tenant, &[("X-Tenant", "a"), ("X-Tenant", "b")]),
        scope(&tenant, &[("X-Tenant", "ab")]),
        scope(&["header:X-Other"], &[("X-Other", "a")]),
        scope(&["route"], &[]),
        scope(&["path:shop"], &[]),
        scope(&["path:till"], &[]),
        scope(&["route", "path:shop"], &[]),
        scope(&["none"], &[]),
    ]);
    assert_eq!(scope(&["none", "route"], &[]), scope(&["route"], &[]));
    assert_eq!(
        scope(&["route"], &[("X-Tenant", "a")]),
        scope(&["route"], &[])
    );
    let refused = [
        ("jwt:sub", ErrorKind::Unsupported),
        ("path:nowhere", ErrorKind::Invalid),
    ];
    for (part, kind) in refused {
        let error = try_scope(&[part], &[]).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

/// The scope `credential` of a request, with these sources.
fn caller(credential: &[&str], headers: Headers<'_>) -> RecordId {
    let secret = Secret::from([7; 32]);
    let credential = parsed::<CredentialPart>(credential);
    let headers = header_map(headers);
    let input = input(&secret, &headers, &credential);
    let scope = extract::scope(&[ScopePart::Credential], &input, "pay", |_| None).unwrap();
    RecordId::derive(&secret, &scope, &Key::new("k").unwrap())
}

#[test]
fn every_source_of_the_credential_separates_keys() {
    let default = ["header:Authorization", "header:X-Api-Key", "header:Cookie"];
    let session = ["header:Authorization", "cookie:session"];
    let cookies = ["header:Cookie"];
    all_differ(&[
        caller(&default, &[]),
        caller(&default, &[("Authorization", "a")]),
        caller(&default, &[("X-Api-Key", "a")]),
        caller(&default, &[("X-Api-Key", "b")]),
        caller(&default, &[("X-Api-Key", "")]),
        caller(&default, &[("X-Api-Key", "a"), ("X-Api-Key", "b")]),
        caller(&default, &[("Authorization", "a"), ("X-Api-Key", "a")]),
        caller(&session, &[("Cookie", "session=a")]),
        caller(&session, &[("Cookie", "session=b")]),
        caller(&session, &[("Cookie", "session=a"), ("Authorization", "a")]),
        caller(&cookies, &[("Cookie", "session=a")]),
        caller(&cookies, &[("Cookie", "session=a; b=c")]),
    ]);
    // Cookies that nobody named change between two attempts.
    let nobody = caller(&default, &[]);
    for headers in [&[("Cookie", "session=a")][..], &[("Cookie", "b=c")]] {
        assert_eq!(caller(&default, headers), nobody);
    }
    assert_eq!(caller(&session, &[("Cookie", "other=1")]), nobody);
    assert_eq!(caller(&session, &[("X-Api-Key", "a")]), nobody);
    let same = caller(&session, &[("Cookie", "x=1; session=a")]);
    assert_eq!(caller(&session, &[("Cookie", "session=a; x=2")]), same);
    // With Authorization alone, the list makes no difference.
    for value in ["Basic YTpi", "token", "Bearer x"] {
        let sent = [("Authorization", value)];
        assert_eq!(
            caller(&default, &sent),
            caller(&["header:Authorization"], &sent)
        );
        assert_eq!(caller(&default, &sent), caller(&session, &sent));
    }
}

#[test]
fn a_credential_tells_callers_apart() {
    let all = ["header:Authorization", "header:X-Api-Key", "header:Cookie"];
    let session = ["cookie:session"];
    all_differ(&[
        credential(&all, &[]),
        credential(&all, &[("Authorization", "")]),
        credential(&all, &[("Authorization", "a")]),
        credential(&all, &[("X-Api-Key", "a")]),
        credential(&all, &[("Cookie", "a")]),
        credential(&all, &[("Authorization", "a"), ("X-Api-Key", "a")]),
        credential(&all, &[("Authorization", "a"), ("Authorization", "b")]),
        credential(&all, &[("Authorization", "b"), ("Authorization", "a")]),
        credential(&all, &[("Authorization", "ab")]),
        credential(&session, &[("Cookie", "session=")]),
        credential(&session, &[("Cookie", "session=1")]),
        credential(&session, &[("Cookie", "session=1; session=2")]),
        credential(&session, &[("Cookie", "session=2; session=1")]),
        credential(&session, &[("Cookie", "session=1=2")]),
        credential(&["header:session"], &[("session", "1")]),
    ]);
    // Requests without a credential share the anonymous one, for every setting.
    let nobody = credential(&all, &[]);
    assert_eq!(credential(&[], &[("Authorization", "a")]), nobody);
    assert_eq!(credential(&session, &[("Authorization", "a")]), nobody);
    let same = credential(&session, &[("Cookie", "session=1")]);
    for headers in [
        &[("Cookie", "a=b; session=1;theme=dark")][..],
        &[("Cookie", "xsession=2; Session=3; session=1")],
        &[
            ("Cookie", "theme=x"),
            ("Cookie", " session=1 "),
            ("Authorization", "new"),
        ],
    ] {
        assert_eq!(credential(&session, headers), same, "{headers:?}");
    }
    for headers in [&[("Cookie", "session")][..], &[("Cookie", "x=session=1")]] {
        assert_eq!(
            credential(&session, headers),
            credential(&session, &[]),
            "{headers:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_header_panics(value: Vec<u8>, text in "(Basic|bearer|X) ?[a-zA-Z0-9.=;: ]{0,40}", body: Vec<u8>) {
        let mut headers = HeaderMap::new();
        for bytes in [&value[..], text.as_bytes()] {
            if let Ok(value) = HeaderValue::from_bytes(bytes) {
                for name in ["authorization", "cookie", "idempotency-key", "content-type"] {
                    headers.insert(name, value.clone());
                }
            }
        }
        let secret = Secret::from([7; 32]);
        let none = |_: &str| None;
        let default = Operation::default().credential;
        prop_assert!(extract::scope(&[ScopePart::Credential], &input(&secret, &headers, &default), "pay", none).is_ok());
        let _ = extract::credential(&[CredentialPart::Cookie("a".into())], &secret, &headers, None);
        let mut head = head("POST", "/", &[]);
        head.headers = headers;
        let body = Bytes::from(body);
        let content = extract::content(&head, &body);
        for source in ["header:idempotency-key", "body:/a", "natural:{/a}-{/b}", "derive"] {
            let _ = extract::find_key(&parsed(&[source]), Syntax::Both, &head, &head.uri, &content);
        }
    }
}

fn find(sources: &[&str], head: &Parts, body: &str) -> refrain::Result<Option<Key>> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let content = extract::content(head, &body);
    let sources = parsed::<Source>(sources);
    extract::find_key(&sources, Syntax::Both, head, &head.uri, &content)
}

fn scope(parts: &[&str], headers: Headers<'_>) -> RecordId {
    try_scope(parts, headers).expect("a sound case")
}

#[test]
fn the_certificate_of_a_client_is_a_scope_and_a_credential() {
    let secret = Secret::from([7; 32]);
    let headers = HeaderMap::new();
    let parts = &[CredentialPart::TlsSubject];
    let try_scope = |part: &[ScopePart], certificate| -> refrain::Result<RecordId> {
        let none = |_: &str| None;
        let input = ScopeInput {
            certificate,
            ..input(&secret, &headers, parts)
        };
        let scope = extract::scope(part, &input, "pay", none)?;
        Ok(RecordId::derive(&secret, &scope, &Key::new("k")?))
    };
    let credential = |certificate| extract::credential(parts, &secret, &headers, certificate);
    let [anna, bert] = ["CN=anna", "CN=bert"].map(ClientCertificate::new);
    for part in [ScopePart::TlsSubject, ScopePart::Credential] {
        let scope =
            |certificate| try_scope(std::slice::from_ref(&part), Some(certificate)).unwrap();
        assert_eq!(scope(&anna), scope(&anna), "{part}");
        assert_ne!(scope(&anna), scope(&bert), "{part}");
    }
    let missing = try_scope(&[ScopePart::TlsSubject], None).unwrap_err();
    assert_eq!(missing.kind(), refrain::ErrorKind::Invalid);
    assert_eq!(credential(Some(&anna)), credential(Some(&anna)));
    assert_ne!(credential(Some(&anna)), credential(Some(&bert)));
    assert_ne!(credential(Some(&anna)), credential(None));
}

/// A scope is visible only in the ids of its records.
fn try_scope(parts: &[&str], headers: Headers<'_>) -> refrain::Result<RecordId> {
    let secret = Secret::from([7; 32]);
    let value = |name: &str| ["shop", "till"].contains(&name).then_some(&b"7"[..]);
    let credential = Operation::default().credential;
    let headers = header_map(headers);
    let input = input(&secret, &headers, &credential);
    let scope = extract::scope(&parsed::<ScopePart>(parts), &input, "pay", value)?;
    Ok(RecordId::derive(&secret, &scope, &Key::new("k")?))
}

fn input<'a>(
    secret: &'a Secret,
    headers: &'a HeaderMap,
    credential: &'a [CredentialPart],
) -> ScopeInput<'a> {
    ScopeInput {
        certificate: None,
        secret,
        headers,
        host: None,
        credential,
        claims: None,
    }
}

fn credential(parts: &[&str], headers: Headers<'_>) -> refrain::Credential {
    let secret = Secret::from([7; 32]);
    extract::credential(
        &parsed::<CredentialPart>(parts),
        &secret,
        &header_map(headers),
        None,
    )
}

fn parsed<T: std::str::FromStr<Err = refrain::Error>>(texts: &[&str]) -> Vec<T> {
    texts
        .iter()
        .map(|text| text.parse().expect("a sound case"))
        .collect()
}

fn head(method: &str, path: &str, headers: Headers<'_>) -> Parts {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(())
        .expect("a sound case");
    let (mut head, ()) = request.into_parts();
    head.headers = header_map(headers);
    head
}

fn header_map(headers: Headers<'_>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a sound case");
        map.append(name, HeaderValue::from_str(value).expect("a sound case"));
    }
    map
}

fn all_differ<T: PartialEq + std::fmt::Debug>(items: &[T]) {
    for (nth, item) in items.iter().enumerate() {
        assert!(
            !items[..nth].contains(item),
            "item {nth} equals one before it"
        );
    }
}

//! One key that is parsed in two ways is two keys, and charges twice. Two intentions under one key charge once too
//! few. So every spelling of a key parses as that key, and no two different intentions share one.

use std::collections::HashMap;

use proptest::prelude::*;
use refrain::{
    Key,
    fingerprint::Json,
    key::{Pointer, Sender, Source, Syntax, Template},
};

#[test]
fn a_key_header_reads_as_its_syntax_says() {
    use Syntax::{Both, Raw, Strict};
    let longest = "k".repeat(255);
    let too_long = "k".repeat(256);
    let quoted_longest = format!("\"{longest}\"");
    let quoted_too_long = format!("\"{too_long}\"");
    let escaped_longest = format!("\"{}\\\\\"", "k".repeat(254));
    let escaped_longest_key = format!("{}\\", "k".repeat(254));
    let cases: &[(Syntax, &str, Result<&str, &str>)] = &[
        (Both, "abc", Ok("abc")),
        (Both, "\"abc\"", Ok("abc")),
        (Both, " \t\"abc\"\t ", Ok("abc")),
        (Both, "  abc ", Ok("abc")),
        (Both, r#""a\"b""#, Ok(r#"a"b"#)),
        (Both, r#""a\\b""#, Ok(r"a\b")),
        (Both, r#""\"\\""#, Ok(r#""\"#)),
        (Both, r#"a"b"#, Ok(r#"a"b"#)),
        (Both, r"a\b", Ok(r"a\b")),
        (Both, "a,b;c=1", Ok("a,b;c=1")),
        (Both, &longest, Ok(&longest)),
        (Both, &quoted_longest, Ok(&longest)),
        (Both, &escaped_longest, Ok(&escaped_longest_key)),
        (Both, &too_long, Err("256 bytes")),
        (Both, &quoted_too_long, Err("256 bytes")),
        (Both, "", Err("empty")),
        (Both, "  ", Err("empty")),
        (Both, "\"\"", Err("empty")),
        (Both, "\"", Err("closing quote")),
        (Both, "\"abc", Err("closing quote")),
        (Both, r#""abc\""#, Err("closing quote")),
        (Both, r#""abc\"#, Err("may follow")),
        (Both, r#""a\nb""#, Err("may follow")),
        (Both, r#""\u0041""#, Err("may follow")),
        (Both, "\"a\", \"b\"", Err("text follows")),
        (Both, "\"a\",\"b\"", Err("text follows")),
        (Both, r#""a\\", "b""#, Err("text follows")),
        (Both, "\"a\";v=1", Err("text follows")),
        (Both, "\"a\"b", Err("text follows")),
        (Both, "a b", Err("visible ASCII")),
        (Both, "\"a b\"", Err("visible ASCII")),
        (Both, "a\tb", Err("visible ASCII")),
        (Both, "caf\u{e9}", Err("visible ASCII")),
        (Both, "\"caf\u{e9}\"", Err("visible ASCII")),
        (Both, "a\x7f", Err("visible ASCII")),
        (Strict, "\"abc\"", Ok("abc")),
        (Strict, r#""a\"b""#, Ok(r#"a"b"#)),
        (Strict, "abc", Err("not quoted")),
        (Strict, "abc\"", Err("not quoted")),
        (Strict, "", Err("not quoted")),
        (Raw, "abc", Ok("abc")),
        (Raw, "\"abc\"", Ok("\"abc\"")),
        (Raw, " \"abc ", Ok("\"abc")),
        (Raw, "a b", Err("visible ASCII")),
        (Raw, "", Err("empty")),
    ];
    for (syntax, value, expected) in cases {
        let read = syntax.read(value.as_bytes());
        let read = read.as_ref().map(Key::as_str).map_err(ToString::to_string);
        check(&format!("{syntax:?} {value}"), read, *expected);
    }
    let not_text = Both.read(b"a\xff").unwrap_err().to_string();
    check("not UTF-8", Err(not_text), Err("visible ASCII"));
}

#[test]
fn a_pointer_is_checked_when_the_policy_is_read() {
    let deepest = "/a".repeat(128);
    let too_deep = "/a".repeat(129);
    let cases: &[(&str, Result<&str, &str>)] = &[
        ("/a", Ok("/a")),
        ("/", Ok("/")),
        ("/a~0b/~1", Ok("/a~0b/~1")),
        (&deepest, Ok(&deepest)),
        (&too_deep, Err("128 levels")),
        ("", Err("must start with /")),
        ("a", Err("must start with /")),
        ("/a~", Err("~ is written ~0")),
        ("/a~2", Err("~ is written ~0")),
        ("/a~/0", Err("~ is written ~0")),
    ];
    for (text, expected) in cases {
        let parsed = text.parse::<Pointer>().map(|pointer| pointer.to_string());
        check(
            text,
            parsed.as_deref().map_err(ToString::to_string),
            *expected,
        );
    }
}

#[test]
fn a_pointer_finds_what_rfc_6901_says() {
    let json = br#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"i\\j":5,"k\"l":6," ":7,"m~n":8,
        "line\nfeed":9,"0":"zero","deep":[[],{},[{"x":[1,[2,{"y":-1.50E+2}]]}],null],"~1":10,"s":"a]}\",{","e":{}}"#;
    let json = Json::parse(json).unwrap();
    let cases: &[(&str, Option<&str>)] = &[
        ("/foo", Some(r#"["bar","baz"]"#)),
        ("/foo/0", Some("\"bar\"")),
        ("/foo/1", Some("\"baz\"")),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/00", None),
        ("/foo/01", None),
        ("/foo/+1", None),
        ("/foo/", None),
        ("/foo/99999999999999999999999", None),
        ("/foo/0/0", None),
        ("/", Some("0")),
        ("/a~1b", Some("1")),
        ("/c%d", Some("2")),
        ("/e^f", Some("3")),
        ("/i\\j", Some("5")),
        ("/k\"l", Some("6")),
        ("/ ", Some("7")),
        ("/m~0n", Some("8")),
        ("/line\nfeed", Some("9")),
        ("/~01", Some("10")),
        ("/0", Some("\"zero\"")),
        ("/s", Some(r#""a]}\",{""#)),
        ("/e", Some("{}")),
        ("/e/x", None),
        ("/deep/0", Some("[]")),
        ("/deep/0/0", None),
        ("/deep/1", Some("{}")),
        ("/deep/2/0/x/1/1/y", Some("-1.50E+2")),
        ("/deep/3", Some("null")),
        ("/deep/4", None),
        ("/missing", None),
        ("/fo", None),
    ];
    for (pointer, expected) in cases {
        assert_eq!(json.find(&pointer.parse().unwrap()), *expected, "{pointer}");
    }
    assert_eq!(
        Json::parse(b"7").unwrap().find(&"/a".parse().unwrap()),
        None
    );
}

#[test]
fn a_template_is_checked_when_the_policy_is_read() {
    let long = format!("{}{{/a}}", "x".repeat(255));
    let many = "{/a}-".repeat(17);
    let cases: &[(&str, Result<&str, &str>)] = &[
        ("{/customer}-{/cart}", Ok("{/customer}-{/cart}")),
        ("{/a}", Ok("{/a}")),
        (
            "pay:{/order/uuid}/{/lines/0/sku}!",
            Ok("pay:{/order/uuid}/{/lines/0/sku}!"),
        ),
        ("{/timestamps}", Ok("{/timestamps}")),
        ("", Err("names no member")),
        ("fixed", Err("names no member")),
        ("{/a}{/b}", Err("adjacent")),
        ("x{/a}-{/b}{/c}", Err("adjacent")),
        ("{/a", Err("unbalanced")),
        ("/a}", Err("unbalanced")),
        ("{/a}}", Err("unbalanced")),
        ("{{/a}}", Err("unbalanced")),
        ("{/a}-{", Err("unbalanced")),
        ("{a}", Err("must start with /")),
        ("{}", Err("must start with /")),
        ("{/a~}", Err("~ is written ~0")),
        ("{/a} {/b}", Err("visible ASCII")),
        ("{/a}%2D{/b}", Err("without %")),
        ("{/a}\u{2013}{/b}", Err("visible ASCII")),
        ("{/timestamp}", Err("a clock value")),
        ("{/order}-{/meta/Created_At}", Err("a clock value")),
        ("{/sentAt}", Err("a clock value")),
        ("{/order/nonce}", Err("a random value")),
        ("{/request-id}", Err("a random value")),
        ("{/uuid}", Err("a random value")),
        (&long, Err("255 bytes")),
        (&many, Err("more than 16")),
    ];
    for (text, expected) in cases {
        let parsed = text
            .parse::<Template>()
            .map(|template| template.to_string());
        check(
            text,
            parsed.as_deref().map_err(ToString::to_string),
            *expected,
        );
    }
}

#[test]
fn a_natural_key_is_made_of_values_as_written() {
    let fits = format!(r#"{{"a":"{}","b":""}}"#, "x".repeat(254));
    let fits_key = format!("{}-", "x".repeat(254));
    let over = format!(r#"{{"a":"{}","b":"1"}}"#, "x".repeat(254));
    let over_encoded = format!(r#"{{"a":"{}","b":"1"}}"#, "-".repeat(100));
    let cases: &[(&str, &str, Result<&str, &str>)] = &[
        ("{/a}-{/b}", r#"{"a":"x","b":"y"}"#, Ok("x-y")),
        ("{/a}-{/b}", r#"{"a":"x-y","b":"z%"}"#, Ok("x%2Dy-z%25")),
        (
            "{/a}-{/b}",
            r#"{"a":"\u00e9 {","b":"\n"}"#,
            Ok("%C3%A9%20{-%0A"),
        ),
        (
            "{/a}-{/b}",
            r#"{"a":9007199254740993,"b":1.0}"#,
            Ok("9007199254740993-1.0"),
        ),
        ("{/a}-{/b}", r#"{"a":-5,"b":true}"#, Ok("%2D5-true")),
        ("{/a}-{/b}", r#"{"a":"","b":""}"#, Ok("-")),
        ("{/a}", r#"{"a":""}"#, Err("is empty")),
        ("{/a}-{/b}", r#"{"a":"x"}"#, Ok("no key")),
        ("{/a}-{/b}", r#"{"a":"x","b":null}"#, Ok("no key")),
        ("{/a}-{/b}", r#"{"a":"x","b":[1]}"#, Ok("no key")),
        ("{/a}-{/b}", r#"{"a":"x","b":{"c":1}}"#, Ok("no key")),
        ("{/a}-{/b}", "[]", Ok("no key")),
        ("{/a}-{/b}", &fits, Ok(&fits_key)),
        ("{/a}-{/b}", &over, Err("`derive`")),
        ("{/a}-{/b}", &over_encoded, Err("302 bytes")),
    ];
    for (template, body, expected) in cases {
        let rendered = render(template, body).map(|key| key.unwrap_or("no key".into()));
        let rendered = rendered.as_deref().map_err(ToString::to_string);
        check(&format!("{template} {body}"), rendered, *expected);
    }
}

#[test]
fn different_values_give_different_natural_keys() {
    let mut values = vec![String::new()];
    for len in 0..3 {
        let longest = values
            .clone()
            .into_iter()
            .filter(|value| value.len() == len);
        values
            .extend(longest.flat_map(|value| ["-", "%", "2", "D"].map(|end| value.clone() + end)));
    }
    for template in ["{/a}-{/b}", "{/a}2{/b}", "{/a}2D{/b}", "-{/a}D{/b}2"] {
        let mut keys = HashMap::new();
        for (a, b) in values
            .iter()
            .flat_map(|a| values.iter().map(move |b| (a, b)))
        {
            let body = format!(r#"{{"a":"{a}","b":"{b}"}}"#);
            let key = render(template, &body).unwrap();
            let before = keys.insert(key, (a, b));
            assert_eq!(before, None, "{template}: the same key as {a} and {b}");
        }
    }
}

#[test]
fn a_derived_key_is_the_same_for_ever() {
    let key = Key::derive("invoice:7\u{e9}", "pay", br#"{ "b": 1.0, "a": "x" }"#);
    let mut input = Vec::new();
    for part in [
        "refrain-key-1",
        "invoice:7\u{e9}",
        "pay",
        "json",
        r#"{"a":"x","b":1.0}"#,
    ] {
        input.extend((part.len() as u64).to_le_bytes());
        input.extend(part.as_bytes());
    }
    let digest = blake3::hash(&input);
    assert_eq!(key.as_str(), format!("invoice_7__:pay:{digest}"));
    assert!(key.as_str().ends_with(PINNED), "{}", key.as_str());
    let long = "\u{10000}".repeat(100);
    let key = Key::derive(&long, &long, b"");
    assert_eq!(key, Key::new(key.as_str()).unwrap());
}

/// The digest above, recorded when keys were first derived.
const PINNED: &str = "7117c146902831625a9469deeb573a96fb9778ddcc54cb021ae4bd59e3917b8d";

#[test]
fn sources_read_back_as_they_are_written() {
    for text in [
        "header:idempotency-key",
        "body:/event_id",
        "derive",
        "natural:{/a}-{/b}",
    ] {
        assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "derive:",
        "header:",
        "header:a b",
        "body:x",
        "natural:x",
        "cookie:x",
    ] {
        assert!(text.parse::<Source>().is_err(), "{text}");
    }
}

/// Policies contain these names, so their meaning must not change.
#[test]
fn presets_know_where_each_senders_key_lies() {
    let cases = [
        ("stripe", Ok("body:/id")),
        ("github", Ok("header:x-github-delivery")),
        ("shopify", Ok("header:x-shopify-event-id")),
        ("svix", Ok("header:svix-id")),
        ("standard-webhooks", Ok("header:webhook-id")),
        (
            "Stripe",
            Err("unknown preset `Stripe`; write one of stripe, github"),
        ),
        ("", Err("unknown preset")),
    ];
    for (name, expected) in cases {
        let source = format!("preset:{name}").parse::<Source>();
        let got = source.map(|source| source.to_string());
        let got = got.map_err(|error| error.to_string());
        check(name, got.as_deref().map_err(Clone::clone), expected);
    }
    let known = cases.iter().filter(|(_, source)| source.is_ok()).count();
    assert_eq!(Sender::ALL.len(), known);
    // A plain member name and the pointer to it are the same source.
    assert_eq!(Sender::Stripe.source(), "body:/id".parse().unwrap());
}

proptest! {
    #[test]
    fn different_intentions_give_different_derived_keys(
        one in pair("[a:_]{0,3}"), two in pair("[a:_]{0,3}"),
        params in prop::sample::select(PARAMS), others in prop::sample::select(PARAMS),
    ) {
        let keys = [(&one, params), (&two, others)]
            .map(|((entity, action), params)| Key::derive(entity, action, params.as_bytes()));
        let canonical = |text: &str| refrain::fingerprint::canonical(text.as_bytes()).ok_or(text.to_string());
        let is_same = one == two && canonical(params) == canonical(others);
        prop_assert_eq!(keys[0] == keys[1], is_same);
        prop_assert!(Key::new(keys[0].as_str()).is_ok());
    }

    #[test]
    fn quoting_a_key_does_not_change_it(key in "[!-~]{1,255}") {
        let quoted = format!("\"{}\"", key.replace('\\', r"\\").replace('"', "\\\""));
        for syntax in [Syntax::Both, Syntax::Strict] {
            let read = syntax.read(quoted.as_bytes()).unwrap();
            prop_assert_eq!(read.as_str(), &key);
        }
        let raw = Syntax::Raw.read(key.as_bytes()).unwrap();
        prop_assert_eq!(raw.as_str(), &key);
        if !key.starts_with('"') {
            let bare = Syntax::Both.read(key.as_bytes()).unwrap();
            prop_assert_eq!(bare.as_str(), &key);
        }
    }

    #[test]
    fn nothing_that_is_sent_panics(bytes: Vec<u8>, text in "[\"\\\\a{}/~0%é ]{0,12}") {
        for syntax in [Syntax::Both, Syntax::Strict, Syntax::Raw] {
            for value in [&bytes[..], text.as_bytes()] {
                if let Ok(key) = syntax.read(value) {
                    prop_assert!(Key::new(key.as_str()).is_ok());
                }
            }
        }
        let json = Json::parse(br#"{"a":[{"":1},"~"],"0":{"\"":{}}}"#).unwrap();
        if let Ok(pointer) = text.parse::<Pointer>() {
            let _ = json.find(&pointer);
        }
        if let Ok(template) = text.parse::<Template>() {
            let _ = template.render(&json);
        }
        let _ = text.parse::<Source>();
    }
}

const PARAMS: &[&str] = &[
    "",
    "{}",
    " {}",
    "[]",
    "1",
    "1.0",
    "\"1\"",
    "{\"a\":1,\"b\":2}",
    "{\"b\":2,\"a\":1}",
    "{\"a\":1,\"a\":1}",
    "a",
    "a ",
    "{",
];

fn pair(pattern: &'static str) -> impl Strategy<Value = (String, String)> {
    (pattern, pattern)
}

fn render(template: &str, body: &str) -> refrain::Result<Option<String>> {
    let template: Template = template.parse()?;
    let key = template.render(&Json::parse(body.as_bytes()).expect(body))?;
    Ok(key.map(|key| key.as_str().to_owned()))
}

/// An error must say why: `Err` holds a part of its message.
fn check(case: &str, got: Result<&str, String>, expected: Result<&str, &str>) {
    match (got, expected) {
        (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{case}"),
        (Err(got), Err(piece)) => assert!(got.contains(piece), "{case}: {got}"),
        (got, expected) => panic!("{case}: got {got:?}, expected {expected:?}"),
    }
}

//! One JSON document can be written in many ways: members in any order, white space anywhere, `\u0041` for `A`. All
//! of them must give one fingerprint, or a retry is rejected as another request. A number that a float would round,
//! or a duplicate member name, must not be normalized away, or two requests count as one.

use std::collections::BTreeMap;

use proptest::prelude::*;
use refrain::fingerprint::{Json, NotJson, canonical};

#[test]
fn a_document_has_one_canonical_form() {
    use NotJson::{DuplicateName, Malformed, TooDeep};
    let deepest = format!("{}{}", "[".repeat(128), "]".repeat(128));
    let too_deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let deep_members = format!("{}1{}", "{\"a\":".repeat(129), "}".repeat(129));
    let never_closed = "[".repeat(1_000_000);
    let cases: &[(&str, Result<&str, NotJson>)] = &[
        (
            " { \"b\" : 1 ,\n\t\"a\" : [ ] , \"c\" : { } }\r\n",
            Ok(r#"{"a":[],"b":1,"c":{}}"#),
        ),
        (
            r#"{"b":{"d":1,"c":2},"a":{"f":3,"e":4}}"#,
            Ok(r#"{"a":{"e":4,"f":3},"b":{"c":2,"d":1}}"#),
        ),
        (
            r#"[{"b":1,"a":[{"d":1,"c":2}]},{"b":1,"a":2}]"#,
            Ok(r#"[{"a":[{"c":2,"d":1}],"b":1},{"a":2,"b":1}]"#),
        ),
        // Sorted by code point: by escaped bytes or by UTF-16 units, the order would differ.
        (
            r#"{"\ud800\udc00":1,"\uffff":2}"#,
            Ok("{\"\u{ffff}\":2,\"\u{10000}\":1}"),
        ),
        (
            r#"{"a":1,"\n":2,"\"":3,"!":4,"\\":5,"[":6,"]":7}"#,
            Ok(r#"{"\n":2,"!":4,"\"":3,"[":6,"\\":5,"]":7,"a":1}"#),
        ),
        (r#"{"aa":1,"a":2,"":3}"#, Ok(r#"{"":3,"a":2,"aa":1}"#)),
        (
            r#""\u0041\/\u00e9\u0022\u005C\u000a\u000B\u001F\u007f\b\f\n\r\t""#,
            Ok("\"A/\u{e9}\\\"\\\\\\n\\u000b\\u001f\u{7f}\\b\\f\\n\\r\\t\""),
        ),
        (r#""\uD83D\uDE00""#, Ok("\"\u{1f600}\"")),
        (
            "[1,1.0,1e0,1E0,1e+0,-0,0,0.10,9007199254740993,1e999]",
            Ok("[1,1.0,1e0,1E0,1e+0,-0,0,0.10,9007199254740993,1e999]"),
        ),
        ("[true,false,null]", Ok("[true,false,null]")),
        ("\"\"", Ok("\"\"")),
        (&deepest, Ok(&deepest)),
        (&too_deep, Err(TooDeep)),
        (&deep_members, Err(TooDeep)),
        (&never_closed, Err(TooDeep)),
        (r#"{"a":1,"a":1}"#, Err(DuplicateName)),
        (r#"{"a":1,"b":2,"\u0061":3}"#, Err(DuplicateName)),
        (r#"{"\n":1,"\u000a":3}"#, Err(DuplicateName)),
        (r#"[{"x":{"a":1,"b":{},"a":2}}]"#, Err(DuplicateName)),
        (
            r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#,
            Ok(r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#),
        ),
        ("", Err(Malformed)),
        ("  ", Err(Malformed)),
        ("\u{feff}{}", Err(Malformed)),
        ("{} {}", Err(Malformed)),
        ("1 2", Err(Malformed)),
        ("nul", Err(Malformed)),
        ("nulll", Err(Malformed)),
        ("01", Err(Malformed)),
        ("-", Err(Malformed)),
        ("+1", Err(Malformed)),
        ("1.", Err(Malformed)),
        (".5", Err(Malformed)),
        ("1e", Err(Malformed)),
        ("1e+", Err(Malformed)),
        ("NaN", Err(Malformed)),
        ("[1,]", Err(Malformed)),
        ("[,1]", Err(Malformed)),
        ("[1 2]", Err(Malformed)),
        ("[1}", Err(Malformed)),
        ("{\"a\":1,}", Err(Malformed)),
        ("{\"a\"}", Err(Malformed)),
        ("{\"a\" 1}", Err(Malformed)),
        ("{a:1}", Err(Malformed)),
        ("{1:1}", Err(Malformed)),
        ("[", Err(Malformed)),
        ("{", Err(Malformed)),
        ("{\"a\":", Err(Malformed)),
        ("\"a", Err(Malformed)),
        ("\"\\", Err(Malformed)),
        ("\"a\nb\"", Err(Malformed)),
        ("\"a\u{0}b\"", Err(Malformed)),
        (r#""\x41""#, Err(Malformed)),
        (r#""\u""#, Err(Malformed)),
        (r#""\u12""#, Err(Malformed)),
        (r#""\u+123""#, Err(Malformed)),
        ("\"\\u12\u{e9}\"", Err(Malformed)),
        (r#""\ud800""#, Err(Malformed)),
        (r#""\ud800x""#, Err(Malformed)),
        (r#""\ud800\n""#, Err(Malformed)),
        (r#""\ud800\u0041""#, Err(Malformed)),
        (r#""\ud800\ud800""#, Err(Malformed)),
        (r#""\udc00""#, Err(Malformed)),
        ("/* */1", Err(Malformed)),
    ];
    for (text, expected) in cases {
        let json = Json::parse(text.as_bytes());
        let got = json.as_ref().map(Json::as_str).map_err(|why| *why);
        let shown: String = text.chars().take(80).collect();
        assert_eq!(got, *expected, "{shown}");
    }
    assert_eq!(Json::parse(b"\"\xff\""), Err(Malformed));
    assert_eq!(canonical(b"[ 1 ]").as_deref(), Some("[1]"));
    assert_eq!(canonical(b"[ 1 "), None);
}

/// A document, independent of its formatting.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Plain(String),
    Text(String),
    List(Vec<Tree>),
    Map(BTreeMap<String, Tree>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let text = "[a-c\"\\\\/\n\u{1}\u{7f}é\u{ffff}\u{1f600}]{0,4}";
    let number = "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?";
    let plain = prop_oneof![
        Just("null".into()),
        Just("true".into()),
        Just("false".into()),
        number
    ];
    let leaf = prop_oneof![plain.prop_map(Tree::Plain), text.prop_map(Tree::Text)];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Tree::List),
            prop::collection::btree_map(text, inner, 0..6).prop_map(Tree::Map),
        ]
    })
}

/// Prints a document with the white space, escapes and member order that `noise` chooses.
struct Printer {
    noise: u64,
    out: String,
}

impl Printer {
    fn print(tree: &Tree, noise: u64) -> String {
        let mut printer = Self {
            noise,
            out: String::new(),
        };
        printer.tree(tree);
        printer.out
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.noise = self
            .noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.noise >> 33) % sides
    }

    fn put(&mut self, text: &str) {
        self.blank();
        self.out.push_str(text);
        self.blank();
    }

    fn blank(&mut self) {
        let blank = ["", "", " ", "\n\t", "\r\n"][self.roll(5) as usize];
        self.out.push_str(blank);
    }

    fn tree(&mut self, tree: &Tree) {
        match tree {
            Tree::Plain(text) => self.put(text),
            Tree::Text(text) => self.text(text),
            Tree::List(items) => {
                self.put("[");
                for (nth, item) in items.iter().enumerate() {
                    self.comma(nth);
                    self.tree(item);
                }
                self.put("]");
            }
            Tree::Map(members) => self.map(members),
        }
    }

    fn map(&mut self, members: &BTreeMap<String, Tree>) {
        let mut members: Vec<_> = members.iter().collect();
        for last in (1..members.len()).rev() {
            let other = self.roll(last as u64 + 1) as usize;
            members.swap(last, other);
        }
        self.put("{");
        for (nth, (name, value)) in members.into_iter().enumerate() {
            self.comma(nth);
            self.text(name);
            self.put(":");
            self.tree(value);
        }
        self.put("}");
    }

    fn comma(&mut self, nth: usize) {
        if nth > 0 {
            self.put(",");
        }
    }

    fn text(&mut self, text: &str) {
        self.blank();
        self.out.push('"');
        for char in text.chars() {
            let must = matches!(char, '"' | '\\' | '\0'..='\x1f');
            if !must && self.roll(2) == 0 {
                self.out.push(char);
            } else {
                self.escape(char);
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, char: char) {
        let short = match char {
            '"' | '\\' | '/' => Some(char),
            '\n' => Some('n'),
            _ => None,
        };
        if let Some(short) = short
            && self.roll(2) == 0
        {
            self.out.extend(['\\', short]);
            return;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            let digits = match self.roll(2) {
                0 => format!("\\u{unit:04x}"),
                _ => format!("\\u{unit:04X}"),
            };
            self.out.push_str(&digits);
        }
    }
}

/// Number of leaves; an empty array or object counts as one.
fn leaves(tree: &Tree) -> usize {
    let inner: usize = match tree {
        Tree::List(items) => items.iter().map(leaves).sum(),
        Tree::Map(members) => members.values().map(leaves).sum(),
        Tree::Plain(_) | Tree::Text(_) => 1,
    };
    inner.max(1)
}

/// Changes leaf number `nth`; returns whether it is inside `tree`.
fn change(tree: &mut Tree, nth: &mut usize) -> bool {
    let inner: Vec<&mut Tree> = match tree {
        Tree::List(items) => items.iter_mut().collect(),
        Tree::Map(members) => members.values_mut().collect(),
        Tree::Plain(_) | Tree::Text(_) => Vec::new(),
    };
    if !inner.is_empty() {
        return inner.into_iter().any(|inner| change(inner, nth));
    }
    if *nth > 0 {
        *nth -= 1;
        return false;
    }
    *tree = match tree {
        Tree::Plain(text) if text.contains(char::is_numeric) => {
            Tree::Plain(format!("-{text}").replace("--", ""))
        }
        Tree::Plain(text) => Tree::Text(text.clone()),
        Tree::Text(text) => Tree::Text(format!("{text}a")),
        Tree::List(_) => Tree::Map(BTreeMap::new()),
        Tree::Map(_) => Tree::List(Vec::new()),
    };
    true
}

/// The scanner reads several bytes of a string at once: the terminator must be found at every offset, and no other
/// byte may be mistaken for it.
#[test]
fn finds_the_end_of_a_string_at_every_offset() {
    // Neighbours of the significant bytes: one below, one above, and the same with the highest bit set.
    let harmless = [
        "a",
        " ",
        "!",
        "#",
        "[",
        "]",
        "\u{7f}",
        "\u{80}",
        "\u{e9}",
        "\u{10a0a}",
    ];
    let cases = |before: &str, after: &str| {
        [
            (
                format!("\"{before}{after}\""),
                Ok(format!("\"{before}{after}\"")),
            ),
            (
                format!("\"{before}\\u0021{after}\""),
                Ok(format!("\"{before}!{after}\"")),
            ),
            (
                format!("\"{before}\\n{after}\""),
                Ok(format!("\"{before}\\n{after}\"")),
            ),
            (format!("\"{before}\"{after}\""), Err(NotJson::Malformed)),
            (format!("\"{before}\0{after}\""), Err(NotJson::Malformed)),
            (format!("\"{before}\x1f{after}\""), Err(NotJson::Malformed)),
            (format!("\"{before}{after}"), Err(NotJson::Malformed)),
        ]
    };
    for filling in harmless {
        for (before, after) in (0..20).flat_map(|before| (1..20).map(move |after| (before, after)))
        {
            for (text, expected) in cases(&filling.repeat(before), &filling.repeat(after)) {
                let parsed = Json::parse(text.as_bytes()).map(String::from);
                assert_eq!(parsed, expected, "{text:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn however_it_is_printed_the_canonical_form_is_one(tree in tree(), one: u64, two: u64) {
        let (one, two) = (Printer::print(&tree, one), Printer::print(&tree, two));
        let form = canonical(one.as_bytes());
        prop_assert!(form.is_some(), "{}", one);
        prop_assert_eq!(&form, &canonical(two.as_bytes()));
        prop_assert_eq!(&form, &form.as_ref().and_then(|form| canonical(form.as_bytes())));
    }

    #[test]
    fn any_changed_leaf_changes_the_canonical_form(tree in tree(), noise: u64, nth: prop::sample::Index) {
        let mut other = tree.clone();
        let mut nth = nth.index(leaves(&tree));
        prop_assert!(change(&mut other, &mut nth));
        let forms = [&tree, &other].map(|tree| canonical(Printer::print(tree, noise).as_bytes()));
        prop_assert!(forms[0].is_some() && forms[1].is_some());
        prop_assert_ne!(&forms[0], &forms[1]);
    }

    /// Another JSON parser agrees on which texts are valid and on their values.
    #[test]
    fn another_reader_agrees(text in prop_oneof![
        "[\\[\\]{}\",:01.eE+\\-a\\\\u ntrflsd8c\u{e9}\n]{0,12}",
        "[\\[{]{0,3}(\"[ab]\":)?(\"(\\\\u(d83d|de00|00e9|000a)|\\\\[nbx/]|é){0,3}\"|-?[01]{0,2}(\\.5)?(e[+-]?1)?|true|nul{1,2})[,\\]}]{0,4}",
    ]) {
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        match Json::parse(text.as_bytes()) {
            Ok(json) => {
                let again: serde_json::Value = serde_json::from_str(json.as_str()).unwrap();
                prop_assert_eq!(theirs.unwrap(), again);
            }
            Err(NotJson::Malformed) => prop_assert!(theirs.is_err(), "{}", text),
            Err(_) => {}
        }
    }

    #[test]
    fn nothing_that_is_sent_panics(bytes: Vec<u8>, text in "\\PC{0,40}") {
        for body in [&bytes[..], text.as_bytes()] {
            let _ = canonical(body);
        }
    }
}

//! Proptest strategies for keys, bodies and requests, valid and invalid by the contract.
//!
//! ```
//! use proptest::{prop_assert, prop_assert_eq, proptest};
//! use refrain::{Key, fingerprint::Json};
//! use refrain_testkit::strategies::{invalid_keys, keys, other_bodies, respelled_bodies};
//!
//! proptest!(|(key in keys(), bad in invalid_keys(), (a, b) in respelled_bodies(), (c, d) in other_bodies())| {
//!     prop_assert!(Key::new(key).is_ok());
//!     prop_assert!(Key::new(bad).is_err());
//!     prop_assert_eq!(Json::parse(a.as_bytes()), Json::parse(b.as_bytes()));
//!     prop_assert!(Json::parse(c.as_bytes()) != Json::parse(d.as_bytes()));
//! });
//! ```

use bytes::Bytes;
use http::Request;
use proptest::{collection::vec, prelude::*, sample::Index};
use refrain::key::{KEY_BYTES_MAX, KEY_HEADER};

mod json;

use json::Spelling;

/// Valid keys: 1 to 255 bytes of visible ASCII, without quotes and backslashes: the same key bare and quoted.
pub fn keys() -> impl Strategy<Value = String> {
    let bytes = prop_oneof![
        8 => vec(visible(), 1..=40),
        1 => vec(visible(), KEY_BYTES_MAX..=KEY_BYTES_MAX),
        1 => vec(visible(), 1..=1),
    ];
    bytes.prop_map(|bytes| bytes.into_iter().map(char::from).collect())
}

/// Invalid keys: empty, too long, or with a character that is not visible ASCII.
pub fn invalid_keys() -> impl Strategy<Value = String> {
    let odd = prop_oneof![
        Just(' '),
        Just('\t'),
        Just('\u{7f}'),
        Just('\u{0}'),
        Just('é'),
        Just('\u{1f511}'),
    ];
    let with_odd = (keys(), odd, any::<Index>()).prop_map(|(mut key, odd, at)| {
        // Keys are ASCII, so every byte offset is a character boundary.
        key.insert(at.index(key.len() + 1), odd);
        key
    });
    prop_oneof![
        1 => Just(String::new()),
        2 => vec(visible(), KEY_BYTES_MAX + 1..KEY_BYTES_MAX * 2)
            .prop_map(|bytes| bytes.into_iter().map(char::from).collect()),
        5 => with_odd,
    ]
}

/// Visible ASCII except quote and backslash, which must be escaped in a quoted key.
fn visible() -> impl Strategy<Value = u8> {
    prop::sample::select(
        (b'!'..=b'~')
            .filter(|byte| !matches!(byte, b'"' | b'\\'))
            .collect::<Vec<_>>(),
    )
}

/// JSON objects as text, without duplicate member names.
pub fn bodies() -> impl Strategy<Value = String> {
    (json::objects(), any::<Spelling>()).prop_map(|(json, spelling)| json.spelled(&spelling))
}

/// Two texts of the same JSON body: member order, white space and escapes differ; numbers are written alike.
pub fn respelled_bodies() -> impl Strategy<Value = (String, String)> {
    let spellings = any::<(Spelling, Spelling)>();
    (json::objects(), spellings)
        .prop_map(|(json, (one, other))| (json.spelled(&one), json.spelled(&other)))
}

/// A JSON body and a similar one: one value differs, possibly only in how a number is written.
pub fn other_bodies() -> impl Strategy<Value = (String, String)> {
    let spellings = any::<(Spelling, Spelling)>();
    (json::objects(), any::<Index>(), spellings).prop_map(|(json, at, (one, other))| {
        let changed = json.changed(at);
        (json.spelled(&one), changed.spelled(&other))
    })
}

/// Requests to this path with a key and a JSON body.
pub fn requests(path: &'static str) -> impl Strategy<Value = Request<Bytes>> {
    (keys(), bodies()).prop_map(move |(key, body)| request(path, &key, body))
}

/// A request, a duplicate whose JSON is formatted differently, and another request under the same key.
pub fn duplicates(path: &'static str) -> impl Strategy<Value = [Request<Bytes>; 3]> {
    let spellings = any::<(Spelling, Spelling)>();
    (keys(), json::objects(), any::<Index>(), spellings).prop_map(
        move |(key, json, at, (one, other))| {
            let bodies = [
                json.spelled(&one),
                json.spelled(&other),
                json.changed(at).spelled(&one),
            ];
            bodies.map(|body| request(path, &key, body))
        },
    )
}

fn request(path: &str, key: &str, body: String) -> Request<Bytes> {
    let request = Request::post(path)
        .header(KEY_HEADER, key)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body.into());
    request.unwrap_or_else(|error| panic!("invalid request path {path:?}: {error}"))
}

//! Checks the strategies against the library: keys are valid or invalid, and bodies equal or different, as promised.

use proptest::{prop_assert, prop_assert_eq, prop_assert_ne, proptest};
use refrain::{Key, fingerprint::Json, key::Syntax};
use refrain_testkit::strategies::{
    bodies, duplicates, invalid_keys, keys, other_bodies, requests, respelled_bodies,
};

proptest! {
    #[test]
    fn keys_are_accepted_bare_and_quoted(key in keys()) {
        prop_assert!(Key::new(&key).is_ok());
        let quoted = format!("\"{key}\"");
        prop_assert_eq!(Syntax::Both.read(key.as_bytes()).ok(), Syntax::Both.read(quoted.as_bytes()).ok());
    }

    #[test]
    fn invalid_keys_are_refused(key in invalid_keys()) {
        prop_assert!(Key::new(&key).is_err());
    }

    #[test]
    fn bodies_are_json(body in bodies()) {
        prop_assert!(Json::parse(body.as_bytes()).is_ok(), "{body}");
        prop_assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok(), "{body}");
    }

    #[test]
    fn a_respelled_body_is_the_same_one((one, other) in respelled_bodies()) {
        prop_assert_eq!(Json::parse(one.as_bytes()), Json::parse(other.as_bytes()));
    }

    #[test]
    fn another_body_is_another_one((one, other) in other_bodies()) {
        prop_assert_ne!(Json::parse(one.as_bytes()), Json::parse(other.as_bytes()));
    }

    #[test]
    fn requests_carry_a_key(request in requests("/v1/payments")) {
        let key = request.headers().get("idempotency-key");
        prop_assert!(key.is_some_and(|key| Syntax::Both.read(key.as_bytes()).is_ok()));
    }

    #[test]
    fn duplicates_share_their_key_and_the_third_says_something_else([one, same, other] in duplicates("/")) {
        let canonical = |body: &[u8]| Json::parse(body);
        prop_assert_eq!(canonical(one.body()), canonical(same.body()));
        prop_assert_ne!(canonical(one.body()), canonical(other.body()));
        prop_assert_eq!(one.headers(), other.headers());
    }
}

//! An attacker without the secret sends a webhook, or replays a captured one, changed or late. Only deliveries with a
//! valid signature within the tolerance are accepted.
//!
//! The vectors are those that GitHub and Standard Webhooks publish; Stripe and Shopify publish none, so theirs were
//! made with another HMAC implementation, Python's.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;

use refrain::{
    clock::Timestamp,
    key::Sender,
    policy::{Signature, SigningSecret, Unverified},
};
use refrain_testkit::webhook::signed;

/// The time at which the published vectors were signed.
const TIME: u64 = 1_614_265_330;
const EVENT: &[u8] = br#"{"id":"evt_1","type":"charge.succeeded","created":1614265330}"#;
const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const STANDARD_VALUE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
const STANDARD_BODY: &[u8] = br#"{"test": 2432232314}"#;
const STANDARD_ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";

type Headers = Vec<(&'static str, String)>;

fn verify(signature: &Signature, headers: &Headers, body: &[u8]) -> Result<(), Unverified> {
    verify_at(signature, headers, body, TIME)
}

fn verify_at(
    signature: &Signature,
    headers: &Headers,
    body: &[u8],
    now: u64,
) -> Result<(), Unverified> {
    let mut map = http::HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    signature.verify(&map, body, Timestamp(now * 1_000))
}

fn secret_of(sender: Sender) -> &'static str {
    match sender {
        Sender::Stripe => "whsec_stripe_test",
        Sender::Github => "It's a Secret to Everybody",
        Sender::Shopify => "shpss_test",
        Sender::Svix | Sender::StandardWebhooks => STANDARD_SECRET,
    }
}

fn signature(sender: Sender) -> Signature {
    Signature::new(sender)
        .with_secret(secret_of(sender))
        .unwrap()
}

/// A valid delivery.
fn delivery(sender: Sender) -> Headers {
    signed(sender, secret_of(sender), "msg_1", TIME, EVENT)
}

fn standard(prefix: &str) -> Headers {
    let leak = |name: &str| &*Box::leak(format!("{prefix}-{name}").into_boxed_str());
    vec![
        (leak("id"), STANDARD_ID.into()),
        (leak("timestamp"), TIME.to_string()),
        (leak("signature"), STANDARD_VALUE.into()),
    ]
}

#[test]
fn published_vectors_are_believed_and_any_other_body_is_not() {
    let stripe = "t=1614265330,v1=535bd277428a20ed7c6338401d09699654fdec445d274e3ed649a06c03cd3285";
    let github = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let shopify = "F9t4XlTaEy/Sa1nDtae9GXa2hUzJmCWd0NAcA/R07f8=";
    let cases: [(Sender, Headers, &[u8]); 5] = [
        (
            Sender::Stripe,
            vec![("stripe-signature", stripe.into())],
            EVENT,
        ),
        (
            Sender::Github,
            vec![("x-hub-signature-256", github.into())],
            b"Hello, World!",
        ),
        (
            Sender::Shopify,
            vec![("x-shopify-hmac-sha256", shopify.into())],
            EVENT,
        ),
        (Sender::Svix, standard("svix"), STANDARD_BODY),
        (Sender::StandardWebhooks, standard("webhook"), STANDARD_BODY),
    ];
    for (sender, headers, body) in cases {
        let signature = signature(sender);
        assert_eq!(verify(&signature, &headers, body), Ok(()), "{sender}");
        for at in [0, body.len() / 2, body.len() - 1] {
            let mut other = body.to_vec();
            other[at] ^= 1;
            let told = verify(&signature, &headers, &other);
            assert_eq!(told, Err(Unverified::NoMatch), "{sender} at {at}");
        }
        let longer = [body, b"\n"].concat();
        let told = verify(&signature, &headers, &longer);
        assert_eq!(told, Err(Unverified::NoMatch), "{sender}");
    }
}

#[test]
fn every_header_that_is_signed_has_to_be_there_once_and_unchanged() {
    let unsigned = ["x-github-delivery", "x-shopify-event-id"];
    for sender in Sender::ALL {
        let signature = signature(sender);
        let good = delivery(sender);
        assert_eq!(verify(&signature, &good, EVENT), Ok(()), "{sender}");
        for at in 0..good.len() {
            let name = good[at].0;
            if unsigned.contains(&name) {
                continue;
            }
            let mut without = good.clone();
            without.remove(at);
            let told = verify(&signature, &without, EVENT);
            assert_eq!(told, Err(Unverified::Missing(name)), "{sender}");

            let mut twice = good.clone();
            twice.push(good[at].clone());
            let told = verify(&signature, &twice, EVENT);
            assert_eq!(told, Err(Unverified::Repeated(name)), "{sender}");

            let mut huge = good.clone();
            huge[at].1.push_str(&" ".repeat(5_000));
            let told = verify(&signature, &huge, EVENT);
            assert_eq!(told, Err(Unverified::Malformed(name)), "{sender}");

            for place in 0..good[at].1.len() {
                let mut changed = good.clone();
                let mut value = changed[at].1.clone().into_bytes();
                value[place] = if value[place] == b'3' { b'4' } else { b'3' };
                changed[at].1 = String::from_utf8(value).unwrap();
                let told = verify(&signature, &changed, EVENT);
                assert!(told.is_err(), "{sender}: {changed:?}");
            }
        }
    }
}

#[test]
fn a_signature_is_good_for_the_tolerance_and_not_longer_both_ways() {
    for sender in [Sender::Stripe, Sender::Svix, Sender::StandardWebhooks] {
        let signature = signature(sender).with_tolerance(Duration::from_secs(60));
        let headers = delivery(sender);
        let cases = [
            (TIME, Ok(())),
            (TIME + 60, Ok(())),
            (TIME - 60, Ok(())),
            (TIME + 61, Err(Unverified::TooOld)),
            (TIME - 61, Err(Unverified::TooNew)),
            (0, Err(Unverified::TooNew)),
            (TIME * 2, Err(Unverified::TooOld)),
        ];
        for (now, expected) in cases {
            let told = verify_at(&signature, &headers, EVENT, now);
            assert_eq!(told, expected, "{sender} at {now}");
        }
        // A sender without the secret learns nothing about the clock.
        let told = verify_at(&signature, &headers, b"other", TIME * 2);
        assert_eq!(told, Err(Unverified::NoMatch), "{sender}");
    }
    for sender in [Sender::Github, Sender::Shopify] {
        let told = verify_at(&signature(sender), &delivery(sender), EVENT, TIME * 2);
        assert_eq!(told, Ok(()), "{sender} does not sign a timestamp");
    }
}

#[test]
fn while_secrets_are_rotated_either_is_good_and_a_third_is_not() {
    for sender in Sender::ALL {
        let [old, new, third] = match sender {
            Sender::Svix | Sender::StandardWebhooks => {
                ["whsec_b2xkb2xk", "bmV3bmV3bmV3", "whsec_dGhpcmQ="]
            }
            _ => ["old", "new", "third"],
        };
        let signature = Signature::new(sender).with_secret(old).unwrap();
        let signature = signature.with_secret(new).unwrap();
        for (secret, is_good) in [(old, true), (new, true), (third, false)] {
            let headers = signed(sender, secret, "msg_1", TIME, EVENT);
            let told = verify(&signature, &headers, EVENT);
            assert_eq!(told.is_ok(), is_good, "{sender} {secret}");
        }
        let nobody = Signature::new(sender);
        let headers = signed(sender, old, "msg_1", TIME, EVENT);
        assert_eq!(verify(&nobody, &headers, EVENT), Err(Unverified::NoMatch));
    }
}

/// Deliveries with several signatures, of several versions, well-formed and malformed.
#[test]
fn one_good_signature_among_others_is_enough_and_too_many_are_refused() {
    let stripe = |value: String| (Sender::Stripe, "stripe-signature", value);
    let svix = |value: String| (Sender::Svix, "svix-signature", value);
    let github = |value: String| (Sender::Github, "x-hub-signature-256", value);
    let shopify = |value: String| (Sender::Shopify, "x-shopify-hmac-sha256", value);
    let good = |sender: Sender| delivery(sender).pop().unwrap().1;
    let hex = good(Sender::Stripe).split_once("v1=").unwrap().1.to_owned();
    let tag = good(Sender::Svix);
    let sha256 = good(Sender::Github);
    let base64 = good(Sender::Shopify);
    let zeros = "0".repeat(64);
    let cases = [
        (stripe(format!("t={TIME},v1={zeros},v1={hex}")), true),
        (stripe(format!("t={TIME}, v1={hex}, v0={zeros}")), true),
        (stripe(format!("v1={hex},t={TIME}")), true),
        (
            stripe(format!("t={TIME},v1={}", hex.to_ascii_uppercase())),
            true,
        ),
        (stripe(format!("t={TIME},v1=zz,v1={hex}")), true),
        (stripe(format!("t={TIME},v0={hex}")), false),
        (stripe(format!("t={TIME},t={TIME},v1={hex}")), false),
        (stripe(format!("t={},t={TIME},v1={hex}", TIME + 1)), false),
        (stripe(format!("t=+{TIME},v1={hex}")), false),
        (stripe(format!("t=0{TIME},v1={hex}")), false),
        (stripe(format!("t=,v1={hex}")), false),
        (stripe(format!("v1={hex}")), false),
        (stripe(format!("t={TIME}")), false),
        (stripe(hex.clone()), false),
        (stripe(String::new()), false),
        (
            stripe(format!("t={TIME}{}", format!(",v1={hex}").repeat(16))),
            true,
        ),
        (
            stripe(format!("t={TIME}{}", format!(",v1={hex}").repeat(17))),
            false,
        ),
        (svix(format!("v1,AAAA {tag}")), true),
        (svix(format!("v1a,unknown {tag} v2,other")), true),
        (svix(tag.replace("v1,", "v2,")), false),
        (svix(tag.replace("v1,", "")), false),
        (svix(tag.trim_end_matches('=').into()), false),
        (svix(vec![tag.clone(); 17].join(" ")), false),
        (svix(String::new()), false),
        (github(sha256.to_ascii_uppercase()), false),
        (github(sha256.replace("sha256=", "sha1=")), false),
        (github(sha256.replace("sha256=", "")), false),
        (github(sha256[..70].into()), false),
        (github(format!("{sha256}00")), false),
        (shopify(base64.replace('=', "")), false),
        (shopify(hex.clone()), false),
        (shopify(format!("{base64} ")), false),
    ];
    for ((sender, name, value), is_good) in cases {
        let mut headers = delivery(sender);
        headers.retain(|(other, _)| *other != name);
        headers.push((name, value));
        let told = verify(&signature(sender), &headers, EVENT);
        assert_eq!(told.is_ok(), is_good, "{sender} {headers:?}: {told:?}");
    }
}

#[test]
fn an_id_cannot_reach_into_the_time_and_the_time_cannot_reach_into_the_body() {
    let body = format!("{}.{{}}", TIME + 1).into_bytes();
    let signature = signature(Sender::Svix);
    let good = signed(Sender::Svix, STANDARD_SECRET, "msg_1", TIME, &body);
    assert_eq!(verify(&signature, &good, &body), Ok(()));
    let mut shifted = good;
    shifted[0].1 = format!("msg_1.{TIME}");
    shifted[1].1 = (TIME + 1).to_string();
    let told = verify(&signature, &shifted, b"{}");
    assert_eq!(told, Err(Unverified::Malformed("svix-id")));
}

#[test]
fn a_secret_that_cannot_be_one_is_refused_and_none_is_ever_shown() {
    let bad = [
        (Sender::Stripe, ""),
        (Sender::Github, " \n"),
        (Sender::Svix, "whsec_"),
        (Sender::Svix, "whsec_not base64"),
        (Sender::StandardWebhooks, "whpk_AAAA"),
        (Sender::StandardWebhooks, "whsk_AAAA"),
    ];
    for (sender, text) in bad {
        let error = SigningSecret::new(sender, text).unwrap_err().to_string();
        assert!(!error.contains("AAAA") && !error.contains("not base64"));
    }
    assert!(SigningSecret::new(Sender::Github, &"x".repeat(4_097)).is_err());
    let signature = Signature::new(Sender::Github).with_secret("hush").unwrap();
    let shown = format!(
        "{signature:?} {}",
        serde_json::to_string(&signature).unwrap()
    );
    assert!(
        !shown.contains("hush") && shown.contains("given"),
        "{shown}"
    );
}

#[test]
fn secrets_are_read_from_files_and_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "  hush\n").unwrap();
    let path = path.display().to_string();
    let read = SigningSecret::from_file(Sender::Github, &path).unwrap();
    assert_eq!(read.to_string(), format!("file:{path}"));
    let told = |result: refrain::Result<SigningSecret>| result.unwrap_err().to_string();
    let missing = told(SigningSecret::from_file(Sender::Github, "no/such/file"));
    assert!(
        missing.starts_with("cannot read file:no/such/file"),
        "{missing}"
    );
    // Cargo sets this variable for tests.
    assert!(SigningSecret::from_env(Sender::Github, "CARGO_PKG_NAME").is_ok());
    let unset = told(SigningSecret::from_env(Sender::Github, "NO_SUCH_THING"));
    assert!(unset.contains("NO_SUCH_THING_FILE"), "{unset}");
    for pasted in ["hunter2", "whsec_abc", "", "A B"] {
        let error = told(SigningSecret::from_env(Sender::Stripe, pasted));
        assert!(pasted.is_empty() || !error.contains(pasted), "{error}");
    }
    let error = told(SigningSecret::from_file(Sender::Stripe, "whsec_abc"));
    assert!(!error.contains("whsec_abc"), "{error}");
}

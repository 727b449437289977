//! Signs webhook deliveries as their senders do, to test the service that receives them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use refrain::key::Sender;
use sha2::Sha256;

/// Returns the headers with which `sender` delivers this body: the signature, and id and time if they are headers.
///
/// `time` is the time of sending, in seconds since 1970; GitHub and Shopify do not sign it.
///
/// ```
/// use refrain::{clock::Timestamp, key::Sender, policy::Signature};
/// use refrain_testkit::webhook::signed;
///
/// let headers = signed(Sender::Stripe, "whsec_test", "", 7, b"{}");
/// let (name, value) = &headers[0];
/// let verifier = Signature::new(Sender::Stripe).with_secret("whsec_test")?;
/// assert!(verifier.verify(&[(*name, value.as_bytes())], b"{}", Timestamp(7_000)).is_ok());
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// # Panics
/// When a Svix or Standard Webhooks secret is not base64 after the optional prefix `whsec_`.
#[must_use]
pub fn signed(
    sender: Sender,
    secret: &str,
    id: &str,
    time: u64,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let raw = secret.as_bytes();
    match sender {
        Sender::Stripe => {
            let signature = hex(&tag(raw, &format!("{time}."), body));
            vec![("stripe-signature", format!("t={time},v1={signature}"))]
        }
        Sender::Github => {
            let signature = format!("sha256={}", hex(&tag(raw, "", body)));
            let id = ("x-github-delivery", id.into());
            vec![id, ("x-hub-signature-256", signature)]
        }
        Sender::Shopify => {
            let signature = STANDARD.encode(tag(raw, "", body));
            let id = ("x-shopify-event-id", id.into());
            vec![id, ("x-shopify-hmac-sha256", signature)]
        }
        Sender::Svix => {
            let names = ["svix-id", "svix-timestamp", "svix-signature"];
            standard(names, secret, id, time, body)
        }
        Sender::StandardWebhooks => {
            let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
            standard(names, secret, id, time, body)
        }
    }
}

fn standard(
    names: [&'static str; 3],
    secret: &str,
    id: &str,
    time: u64,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let digits = secret.strip_prefix("whsec_").unwrap_or(secret);
    let key = STANDARD.decode(digits).unwrap_or_else(|error| {
        panic!("invalid Standard Webhooks secret, expected base64 after whsec_: {error}")
    });
    let signature = STANDARD.encode(tag(&key, &format!("{id}.{time}."), body));
    let values = [id.into(), time.to_string(), format!("v1,{signature}")];
    names.into_iter().zip(values).collect()
}

fn tag(key: &[u8], front: &str, body: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(key);
    let mut mac = mac.unwrap_or_else(|error| panic!("HMAC accepts keys of any length: {error}"));
    mac.update(front.as_bytes());
    mac.update(body);
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

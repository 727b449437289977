//! Parses the SQS address: region, credentials and endpoint.

use percent_encoding::percent_decode_str;
use refrain::{Error, ErrorKind, Result, policy};

/// Parsed SQS address.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) region: String,
    /// Access key and secret key, if the address contains them.
    pub(super) credentials: Option<(String, String)>,
    pub(super) endpoint: Option<String>,
}

impl Address {
    pub(super) fn parse(address: &str) -> Result<Self> {
        policy::Address::new(address).check()?;
        parse(address).map_err(|what| {
            let shown = policy::redacted(address);
            let message = format!(
                "invalid SQS address `{shown}`: {what}; write sqs://REGION, or sqs://KEY:SECRET@REGION?endpoint=http://HOST:PORT"
            );
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

fn parse(address: &str) -> Result<Address, String> {
    let rest = address
        .strip_prefix("sqs://")
        .ok_or("`sqs://` is missing")?;
    let (front, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, region) = match front.rsplit_once('@') {
        Some((login, region)) => (Some(login), region),
        None => (None, front),
    };
    let region = region.trim_end_matches('/');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if region.is_empty() || !region.bytes().all(is_plain) {
        return Err("it has no region, such as eu-central-1".into());
    }
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let credentials = match login.map(|login| login.split_once(':')) {
        Some(Some((key, secret))) => Some((decoded(key), decoded(secret))),
        Some(None) => return Err("the secret after the access key is missing".into()),
        None => None,
    };
    let mut endpoint = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("endpoint", url)) => endpoint = Some(decoded(url)),
            _ => return Err("unknown setting; the only setting is endpoint=URL".into()),
        }
    }
    Ok(Address {
        region: region.into(),
        credentials,
        endpoint,
    })
}

#[cfg(test)]
mod tests {
    //! An invalid address is reported before anything is sent, and without the secret.

    use super::*;

    #[test]
    fn parses_host_and_login_from_addresses() {
        let plain = Address::parse("sqs://eu-central-1").unwrap();
        assert_eq!((&*plain.region, plain.credentials), ("eu-central-1", None));
        let full = Address::parse("sqs://k:s%2Fx@eu-1/?endpoint=http://127.0.0.1:5000").unwrap();
        assert_eq!(full.credentials, Some(("k".into(), "s/x".into())));
        assert_eq!(full.endpoint.as_deref(), Some("http://127.0.0.1:5000"));
    }

    #[test]
    fn rejects_invalid_address_without_showing_its_secret() {
        for (address, words) in [
            ("sqs://", "it has no region"),
            ("sqs://k:canary@", "it has no region"),
            ("sqs://key@eu-1", "the secret after the access key"),
            ("sqs://k:canary@eu-1?tls=1", "unknown setting"),
            ("sqs://k:aa?canary@eu-1", "? as %3F"),
        ] {
            let error = Address::parse(address).err().map(|it| it.to_string());
            let text = error.unwrap();
            assert!(text.contains(words), "{text}");
            assert!(!text.contains("canary"), "{text}");
        }
    }
}

//! The test plan: what is tested, and how.

use std::time::Duration;

use refrain::policy::Address;
use tokio_rustls::TlsConnector;

use super::stage::{KEY, UNIQUE};
use crate::place::Endpoint;
pub use crate::place::Trust;

/// Maximum number of concurrent requests in a case.
pub const CONCURRENT_MAX: usize = 256;

/// A test plan. Built in code or read from a file with [`super::File`].
#[derive(Debug, Clone)]
pub struct Plan {
    /// Address of the service.
    pub target: Target,
    /// Which TLS certificates to trust.
    pub trust: Trust,
    /// Random seed of keys and unique words.
    pub seed: u64,
    /// How effects are counted.
    pub counting: Counting,
    /// The service's process, if it may be killed and paused.
    pub process: Process,
    /// Timeout of one response.
    pub timeout: Duration,
    /// How long a key may stay in flight once no request runs.
    pub patience: Duration,
    /// Delay of the late duplicate.
    pub late: Duration,
    /// How long the count of effects must stay unchanged.
    pub settle: Duration,
    /// Number of concurrent duplicates.
    pub concurrent: usize,
    /// Ids of the cases to run; empty for all.
    pub only: Vec<String>,
    /// The operations under test.
    pub operations: Vec<Operation>,
    /// Whether an operation that cannot be tested is skipped with the reason, instead of ending the run.
    pub leaves_out: bool,
}

impl Plan {
    /// Returns a plan with default times and no operations.
    #[must_use]
    pub fn new(target: Target, seed: u64) -> Self {
        Self {
            target,
            trust: Trust::Machine,
            seed,
            counting: Counting::Answers,
            process: Process::default(),
            timeout: Duration::from_secs(10),
            patience: Duration::from_secs(5),
            late: Duration::from_secs(2),
            settle: Duration::from_millis(150),
            concurrent: 10,
            only: Vec::new(),
            operations: Vec::new(),
            leaves_out: false,
        }
    }
}

/// How effects are counted, most reliable first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counting {
    /// A PostgreSQL statement that returns one number.
    Sql {
        /// Address of the database.
        database: Address,
        /// The statement; `{key}` and `{unique}` are replaced.
        statement: String,
    },
    /// A URL that returns a number, or a list whose items are counted.
    Url {
        /// The URL; `{key}` and `{unique}` are replaced.
        url: Address,
        /// JSON pointer to the number or list.
        pointer: Option<String>,
    },
    /// Distinct ids in the responses: misses an effect without a response.
    Answers,
}

/// The process of the service. No other process is ever signalled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Shell command that starts the service.
    pub command: Option<String>,
    /// Pid of the running process; without a command, others must restart it.
    pub pid: Option<u32>,
}

/// One operation under test.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Name in the report, if it is not method and path.
    pub title: Option<String>,
    /// HTTP method, such as `POST`.
    pub method: String,
    /// Path and query, appended to the target's prefix; `{{unique}}` and `{{key}}` are replaced.
    pub path: String,
    /// Headers of each request, including the credential.
    pub headers: Vec<(String, String)>,
    /// A body that the service accepts; `{{unique}}` and `{{key}}` are replaced.
    pub body: Vec<u8>,
    /// The header that carries the key, unless `{{key}}` stands elsewhere in the request.
    pub key_header: String,
    /// Credential of another caller.
    pub other_credential: Option<(String, String)>,
    /// A newer credential of the same caller.
    pub rotated_credential: Option<(String, String)>,
    /// A different body, to send under the same key.
    pub other_body: Option<Vec<u8>>,
    /// Another path that accepts the same body.
    pub other_path: Option<String>,
    /// A body that the service refuses with 4xx.
    pub bad_body: Option<Vec<u8>>,
    /// A body that fails with 5xx.
    pub failing_body: Option<Vec<u8>>,
    /// A body that takes the service longer to process.
    pub slow_body: Option<Vec<u8>>,
    /// Declared retention period of responses.
    pub retention: Option<Duration>,
    /// Declared lease of a claim.
    pub lease: Option<Duration>,
}

impl Operation {
    /// Parses an operation such as `POST /v1/payments`.
    ///
    /// # Errors
    /// [`BadPlan`] when it is not a method and a path.
    pub fn new(text: &str) -> Result<Self, BadPlan> {
        let parts: Vec<_> = text.split_whitespace().collect();
        let [method, path] = parts[..] else {
            return Err(bad_operation(text));
        };
        let is_method = method.bytes().all(|byte| byte.is_ascii_uppercase());
        let is_path = path.starts_with('/') && path.is_ascii() && !path.contains('#');
        if !is_method || !is_path {
            return Err(bad_operation(text));
        }
        Ok(Self {
            title: None,
            method: method.into(),
            path: path.into(),
            headers: Vec::new(),
            body: Vec::new(),
            key_header: "Idempotency-Key".into(),
            other_credential: None,
            rotated_credential: None,
            other_body: None,
            other_path: None,
            bad_body: None,
            failing_body: None,
            slow_body: None,
            retention: None,
            lease: None,
        })
    }

    /// Returns the name in the report.
    #[must_use]
    pub fn name(&self) -> String {
        let plain = || format!("{} {}", self.method, self.path);
        self.title.clone().unwrap_or_else(plain)
    }

    /// Whether `{{unique}}` makes the content of each request different.
    pub(super) fn is_unique(&self) -> bool {
        has(&self.body, UNIQUE) || has(self.path.as_bytes(), UNIQUE)
    }

    /// Whether the key stands in the body, the path or a header as `{{key}}`.
    pub(super) fn holds_key(&self) -> bool {
        let mut headers = self.headers.iter();
        self.has_key_in_body()
            || has(self.path.as_bytes(), KEY)
            || headers.any(|(_, value)| has(value.as_bytes(), KEY))
    }

    /// Whether the key stands in the body.
    pub(super) fn has_key_in_body(&self) -> bool {
        has(&self.body, KEY)
    }

    /// Checks that every alternative body contains the key if the main body does.
    pub(super) fn check(&self) -> Result<(), String> {
        let bodies = [
            ("other-body", &self.other_body),
            ("bad-body", &self.bad_body),
            ("failing-body", &self.failing_body),
            ("slow-body", &self.slow_body),
        ];
        for (name, body) in bodies {
            if let Some(body) = body
                && self.has_key_in_body()
                && !has(body, KEY)
            {
                return Err(format!(
                    "{}: the body contains the key as {KEY}, but --{name} does not; add {KEY} to it",
                    self.name()
                ));
            }
        }
        Ok(())
    }
}

fn has(text: &[u8], word: &str) -> bool {
    text.windows(word.len()).any(|part| part == word.as_bytes())
}

fn bad_operation(text: &str) -> BadPlan {
    BadPlan(format!(
        "invalid operation `{text}`; write a method and a path, such as \"POST /v1/payments\""
    ))
}

/// Parses a header from `Name: value`.
///
/// # Errors
/// [`BadPlan`] when the header is invalid.
pub fn header(text: &str) -> Result<(String, String), BadPlan> {
    let bad = || BadPlan(format!("invalid header `{text}`; write \"Name: value\""));
    let (name, value) = text.split_once(':').ok_or_else(bad)?;
    let is_name = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
    let value = value.trim();
    let is_value = http::HeaderValue::from_str(value).is_ok();
    let named = (name.to_owned(), value.to_owned());
    (is_name && is_value).then_some(named).ok_or_else(bad)
}

/// Why a plan is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadPlan(pub(super) String);

/// Address of a service: `http://HOST[:PORT][/PREFIX]`, or `https://`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(super) is_tls: bool,
    /// `host:port`.
    pub(super) address: String,
    /// Value of the `Host` header.
    pub(super) authority: String,
    /// Prefix of every path, without a trailing slash.
    pub(super) prefix: String,
}

impl Target {
    /// Sets the prefix of every path, unless the target has one.
    #[must_use]
    pub fn or_prefix(mut self, prefix: &str) -> Self {
        if self.prefix.is_empty() {
            prefix.trim_end_matches('/').clone_into(&mut self.prefix);
        }
        self
    }

    /// Scheme, host and port as given.
    pub(super) fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// Whether the host is `localhost` or a loopback address.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_address = |ip: std::net::IpAddr| ip.is_loopback();
        host == "localhost" || host.parse().is_ok_and(is_address)
    }
}

/// TLS setup shared by all connections of a plan; present only if a connection needs TLS.
#[derive(Clone)]
pub(super) struct TlsSetup(Option<TlsConnector>);

impl std::fmt::Debug for TlsSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TlsSetup(tls: {})", self.0.is_some())
    }
}

impl TlsSetup {
    pub(super) fn new(plan: &Plan) -> Result<Self, String> {
        match plan.target.is_tls {
            true => Ok(Self(Some(plan.trust.connector()?))),
            false => Self::to_count(&plan.counting, &plan.trust),
        }
    }

    /// Returns the setup for counting effects only.
    pub(super) fn to_count(counting: &Counting, trust: &Trust) -> Result<Self, String> {
        let is_tls = matches!(counting, Counting::Url { url, .. } if url.scheme() == "https");
        Ok(Self(is_tls.then(|| trust.connector()).transpose()?))
    }

    pub(super) fn to(&self, target: &Target) -> Result<Endpoint, String> {
        match (&self.0, target.is_tls) {
            (Some(tls), true) => Endpoint::secured(&target.address, tls.clone()),
            _ => Ok(Endpoint::plain(&target.address)),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.origin(), self.prefix)
    }
}

impl std::str::FromStr for Target {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Self, BadPlan> {
        let bad = || {
            BadPlan(format!(
                "invalid address `{text}`; write http://HOST:PORT or https://HOST, with the path prefix of all operations if there is one"
            ))
        };
        let (is_tls, rest) = match text.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("http://").ok_or_else(bad)?),
        };
        let (authority, prefix) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let is_good = !authority.is_empty()
            && text.is_ascii()
            && !text.contains(|it: char| "?#@".contains(it) || it.is_ascii_whitespace());
        let parsed = authority.parse::<http::uri::Authority>().ok();
        let parsed = parsed.filter(|_| is_good).ok_or_else(bad)?;
        let port = if is_tls { 443 } else { 80 };
        Ok(Self {
            is_tls,
            address: format!("{}:{}", parsed.host(), parsed.port_u16().unwrap_or(port)),
            authority: authority.into(),
            prefix: prefix.trim_end_matches('/').into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_operations_headers_and_addresses_or_rejects_with_the_fix() {
        for (text, address, prefix, is_loopback) in [
            ("http://127.0.0.1:3000", "127.0.0.1:3000", "", true),
            ("http://localhost/api/", "localhost:80", "/api", true),
            ("http://[::1]:9", "[::1]:9", "", true),
            ("https://localhost/api", "localhost:443", "/api", true),
            ("https://api.example:8443", "api.example:8443", "", false),
            ("http://api.example:81/v1", "api.example:81", "/v1", false),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.address, address);
            assert_eq!(target.prefix, prefix);
            assert_eq!(target.is_tls, text.starts_with("https"), "{text}");
            assert_eq!(target.is_loopback(), is_loopback, "{text}");
        }
        for text in [
            "",
            "https://",
            "http://",
            "ftp://x",
            "http://a/?x",
            "http://u@h",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        for text in ["", "POST", "/a", "post /a", "POST a", "POST /a b"] {
            assert!(Operation::new(text).is_err(), "{text}");
        }
        assert_eq!(Operation::new("POST /a?b=1").unwrap().name(), "POST /a?b=1");
        assert!(header("a b").is_err() && header("a\n: b").is_err());
        assert_eq!(header("A: b ").unwrap(), ("A".into(), "b".into()));
    }
}

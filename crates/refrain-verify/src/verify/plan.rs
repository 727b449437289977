//! What is tested, and how.

use std::time::Duration;

use tokio_rustls::TlsConnector;

use super::stage::{KEY, UNIQUE};
use crate::place::Place;
pub use crate::place::Trust;

/// The most requests at once in one case.
pub const CONCURRENT_MAX: usize = 256;

/// What is tested, and how. Made by hand or read from a file with [`super::File`].
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the service is.
    pub target: Target,
    /// Whose certificates are believed where TLS is spoken.
    pub trust: Trust,
    /// What keys and bodies go by.
    pub seed: u64,
    /// How effects are counted.
    pub counting: Counting,
    /// The process of the service, where it may be killed and paused.
    pub process: Process,
    /// How long one answer may take.
    pub timeout: Duration,
    /// How long a key may stay in flight once nobody works on it.
    pub patience: Duration,
    /// How much later the late duplicate comes.
    pub late: Duration,
    /// How long the count of effects has to stay as it is.
    pub settle: Duration,
    /// How many duplicates come at once.
    pub concurrent: usize,
    /// The cases to run; all where none is named.
    pub only: Vec<String>,
    /// The operations under test.
    pub operations: Vec<Operation>,
    /// Whether an operation that cannot be tried is left out with the reason, instead of ending the run.
    pub leaves_out: bool,
}

impl Plan {
    /// A plan with the usual times and no operations yet.
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

/// How effects are counted, the strongest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counting {
    /// A statement on PostgreSQL that answers with one number.
    Sql {
        /// Where.
        database: String,
        /// What; `{key}` and `{unique}` are filled in.
        statement: String,
    },
    /// An address that answers with a number, or with a list that is counted.
    Url {
        /// Where; `{key}` and `{unique}` are filled in.
        url: String,
        /// Where in the JSON the number or list is.
        pointer: Option<String>,
    },
    /// Ids in the answers: an effect that no answer tells of is not seen.
    Answers,
}

/// The process of the service. Nothing else is ever signalled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// What starts the service.
    pub command: Option<String>,
    /// The running process; without a command somebody else starts it again.
    pub pid: Option<u32>,
}

/// One operation under test.
#[derive(Debug, Clone)]
pub struct Operation {
    /// What the report calls it, where that is not method and path.
    pub title: Option<String>,
    /// `POST`.
    pub method: String,
    /// Path and query behind the target's own; `{{unique}}` is filled in.
    pub path: String,
    /// Headers of each request, with the credential.
    pub headers: Vec<(String, String)>,
    /// A body that the service accepts; `{{unique}}` is filled in.
    pub body: Vec<u8>,
    /// The header that carries the key, where `{{key}}` stands nowhere else.
    pub key_header: String,
    /// The credential of somebody else.
    pub other_credential: Option<(String, String)>,
    /// A newer credential of the same caller.
    pub rotated_credential: Option<(String, String)>,
    /// A body for the same key that is another request.
    pub other_body: Option<Vec<u8>>,
    /// Another path that takes the same body.
    pub other_path: Option<String>,
    /// A body that is refused with 4xx.
    pub bad_body: Option<Vec<u8>>,
    /// A body that fails with 5xx.
    pub failing_body: Option<Vec<u8>>,
    /// A body that takes the service a while.
    pub slow_body: Option<Vec<u8>>,
    /// How long the service says that it keeps answers.
    pub retention: Option<Duration>,
    /// How long the service says that a claim stands.
    pub lease: Option<Duration>,
}

impl Operation {
    /// From `POST /v1/payments`.
    ///
    /// # Errors
    /// [`BadPlan`] where it is no method and path.
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

    /// As the report calls it.
    #[must_use]
    pub fn name(&self) -> String {
        let plain = || format!("{} {}", self.method, self.path);
        self.title.clone().unwrap_or_else(plain)
    }

    /// Whether each request can be told from all others by its content.
    pub(super) fn is_unique(&self) -> bool {
        has(&self.body, UNIQUE) || has(self.path.as_bytes(), UNIQUE)
    }

    /// Whether the key stands in the body, the path or a header of its own as `{{key}}`.
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

    /// Every body has to carry the key where one does.
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
                    "{}: the body carries the key as {KEY}, and --{name} does not; write it there, too",
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
        "`{text}` is no operation; write a method and a path, such as \"POST /v1/payments\""
    ))
}

/// A header from `Name: value`.
///
/// # Errors
/// [`BadPlan`] where it is none.
pub fn header(text: &str) -> Result<(String, String), BadPlan> {
    let bad = || BadPlan(format!("`{text}` is no header; write \"Name: value\""));
    let (name, value) = text.split_once(':').ok_or_else(bad)?;
    let is_name = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
    let value = value.trim();
    let is_value = http::HeaderValue::from_str(value).is_ok();
    let named = (name.to_owned(), value.to_owned());
    (is_name && is_value).then_some(named).ok_or_else(bad)
}

/// Why something cannot be tested as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadPlan(pub(super) String);

/// Where a service is: `http://HOST[:PORT][/PREFIX]`, or `https://`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(super) is_tls: bool,
    /// `host:port`.
    pub(super) address: String,
    /// As the `Host` header says it.
    pub(super) authority: String,
    /// What goes before every path; without a slash behind it.
    pub(super) prefix: String,
}

impl Target {
    /// The same with this in front of every path, where nothing else is.
    #[must_use]
    pub fn or_prefix(mut self, prefix: &str) -> Self {
        if self.prefix.is_empty() {
            prefix.trim_end_matches('/').clone_into(&mut self.prefix);
        }
        self
    }

    /// Scheme, host and port, as they were given.
    pub(super) fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// Whether it is on this machine by its name.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_address = |ip: std::net::IpAddr| ip.is_loopback();
        host == "localhost" || host.parse().is_ok_and(is_address)
    }
}

/// How all the places of a plan are reached. TLS is set up once, where any of them needs it.
#[derive(Clone)]
pub(super) struct Way(Option<TlsConnector>);

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Way(tls: {})", self.0.is_some())
    }
}

impl Way {
    pub(super) fn new(plan: &Plan) -> Result<Self, String> {
        match plan.target.is_tls {
            true => Ok(Self(Some(plan.trust.connector()?))),
            false => Self::to_count(&plan.counting, &plan.trust),
        }
    }

    /// To where effects are counted alone.
    pub(super) fn to_count(counting: &Counting, trust: &Trust) -> Result<Self, String> {
        let is_tls = matches!(counting, Counting::Url { url, .. } if url.starts_with("https://"));
        Ok(Self(is_tls.then(|| trust.connector()).transpose()?))
    }

    pub(super) fn to(&self, target: &Target) -> Result<Place, String> {
        match (&self.0, target.is_tls) {
            (Some(tls), true) => Place::secured(&target.address, tls.clone()),
            _ => Ok(Place::plain(&target.address)),
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
                "`{text}` is no address; write http://HOST:PORT or https://HOST, with a path in front of all operations where there is one"
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
    fn what_is_asked_for_is_understood_or_refused_with_the_fix() {
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

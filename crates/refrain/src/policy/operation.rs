//! One operation with all its settings resolved, and the table of statuses that keep or free its key.

use std::{
    fmt::{self, Display},
    str::FromStr,
};

use serde::{Serialize, Serializer};

use super::probe::RECORD_PLACE;
use super::{
    Address, Authorization, Class, Pattern, Probe, Signature, Terms, class, invalid, pattern,
};
use crate::{
    Error, Guarantee, Result, fingerprint,
    key::{CredentialPart, ScopePart, Sender, Source, Syntax},
};

/// Response headers that are always replayed.
const REPLAY_HEADERS: [&str; 8] = [
    "content-type",
    "content-encoding",
    "content-language",
    "content-location",
    "location",
    "etag",
    "last-modified",
    "link",
];

/// Statuses of requests that were rejected before they ran.
const REFUSED: [u16; 7] = [401, 403, 407, 408, 421, 425, 429];

/// A class of requests, and the settings that guard them.
///
/// Set the fields as needed. [`Policy::new`](super::Policy::new) checks the rules between them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Operation {
    /// Name in reports, metrics and the scope `route`. Default: the pattern.
    pub name: String,
    /// Methods and paths that it matches.
    #[serde(rename = "match", serialize_with = "as_text")]
    pub pattern: Pattern,
    /// Case sensitivity of path matching.
    pub paths: Paths,
    /// Class of the operation.
    pub class: Option<Class>,
    /// Sender of the webhooks that it receives.
    pub webhook: Option<Sender>,
    /// Signature verification. A request without a valid signature is rejected before any claim.
    pub signature: Option<Signature>,
    /// Whether it is guarded; [`Class::Read`] is not.
    pub guarded: bool,
    /// Sources of the key, tried in order; the first one present is used.
    #[serde(serialize_with = "as_texts")]
    pub key: Vec<Source>,
    /// Accepted syntax of the key header.
    pub syntax: Syntax,
    /// Reject requests without a key. If false, they pass through unguarded.
    pub required: bool,
    /// Namespace in which keys are unique.
    #[serde(serialize_with = "as_texts")]
    pub scope: Vec<ScopePart>,
    /// Headers and cookies that identify the caller.
    #[serde(serialize_with = "as_texts")]
    pub credential: Vec<CredentialPart>,
    /// Callers that may receive a replay.
    pub replay_to: ReplayTo,
    /// Request that asks the upstream, before a replay and with the duplicate's own headers, whether the caller may see it.
    #[serde(serialize_with = "as_optional_text")]
    pub replay_probe: Option<Probe>,
    /// Parts of the request that a retry must repeat unchanged.
    #[serde(serialize_with = "as_texts")]
    pub fingerprint: Vec<fingerprint::Part>,
    /// Guarantee, timeouts and retention.
    #[serde(flatten)]
    pub terms: Terms,
    /// Response statuses to keep and replay, overriding the guarantee's table.
    #[serde(serialize_with = "as_texts")]
    pub keep: Vec<Statuses>,
    /// Response statuses that free the key, overriding the guarantee's table.
    #[serde(serialize_with = "as_texts")]
    pub release: Vec<Statuses>,
    /// Response headers to replay in addition to the built-in list, in lower case.
    pub replay_headers: Vec<String>,
    /// Maximum size of a request body, in bytes.
    pub request_bytes_max: usize,
    /// Maximum size of a response body that is stored with its outcome, in bytes.
    pub outcome_bytes_max: usize,
    /// When a response is sent to the client.
    pub reply: Reply,
    /// Enforce the policy, or only observe.
    pub mode: Mode,
    /// Response to a duplicate of a completed request whose outcome cannot be replayed.
    pub duplicates: Duplicates,
    /// Behaviour while the store is unavailable.
    pub on_store_failure: OnStoreFailure,
    /// Allow at-most-once claims in a store that may lose acknowledged writes.
    pub accept_lossy_claims: bool,
    /// Request that resolves an unknown outcome.
    #[serde(serialize_with = "as_optional_text")]
    pub probe: Option<Probe>,
    /// Credential of probes after a restart, when the client's is no longer known.
    pub probe_authorization: Option<Authorization>,
    /// Database with the receipts that an exactly-once operation commits together with its effect.
    pub receipts: Option<Address>,
    /// How keys are kept with their records.
    pub records_keys: KeysKept,
    /// Keep the query of a request with its record, beside its method and path.
    pub records_query: bool,
    /// Let clients look up the state of their own keys.
    pub lookup: bool,
    /// Write every attempt and its result to the audit log.
    pub audit: bool,
    /// Refuse to run without an audit log: the proxy does not start, the layer responds with 503.
    pub audit_required: bool,
}

/// Case sensitivity of path matching.
///
/// By default every spelling is guarded, because a case-insensitive service must not be reachable around its guard.
/// With either value, an operation that guards less than another applies only to its exact spelling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Paths {
    /// `/V1/Pay` matches the pattern `/v1/pay`.
    #[default]
    CaseInsensitive,
    /// `/V1/Pay` and `/v1/pay` are different paths.
    CaseSensitive,
}

impl Paths {
    /// Whether two segments are equal.
    pub(super) fn is_same(self, left: &[u8], right: &[u8]) -> bool {
        match self {
            Self::CaseInsensitive => pattern::fold(left) == pattern::fold(right),
            Self::CaseSensitive => left == right,
        }
    }
}

/// Callers that may receive a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ReplayTo {
    /// Only callers with the credential of the first request.
    #[default]
    SameCredential,
    /// All callers in the same scope.
    SameScope,
}

/// When a response is sent to the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// An event stream (`text/event-stream`) while it arrives, any other response after its outcome is durable.
    #[default]
    Auto,
    /// After its outcome is durable.
    Stored,
    /// While it arrives from the upstream; the outcome is recorded at the same time.
    Streamed,
}

/// Response to a duplicate of a completed request whose outcome cannot be replayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Duplicates {
    /// A problem response with the reason: 409 if the body was not kept, 410 after the end of retention.
    #[default]
    Explain,
    /// A success without a body: senders of events only need to know that the event is done.
    Acknowledge,
}

/// Enforce the policy, or only observe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Answer duplicates without executing them.
    #[default]
    Enforce,
    /// Count the decisions that would have been made; change nothing.
    Observe,
}

/// How the key of a request is kept with its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum KeysKept {
    /// As a digest: a record can be found by its key, but its key cannot be read.
    #[default]
    Digest,
    /// Readable as well.
    Clear,
}

/// Behaviour while the store is unavailable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnStoreFailure {
    /// Reject the request; nothing is executed.
    #[default]
    Refuse,
    /// Execute the request unguarded, and count it.
    Pass,
}

impl Operation {
    /// Creates an operation with default settings for a pattern such as `POST /v1/payments`.
    ///
    /// # Errors
    /// If the pattern is malformed.
    pub fn new(pattern: &str) -> Result<Self> {
        Ok(Self::default().at(pattern.parse()?))
    }

    /// Applies the presets of a class. Change individual settings afterwards.
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Self {
        class.apply(&mut self);
        self
    }

    /// Applies the presets for the webhooks of a sender. Change individual settings afterwards.
    ///
    /// ```
    /// use refrain::{key::Sender, policy::{Operation, Policy, Signature}};
    ///
    /// let mut hooks = Operation::new("POST /hooks/stripe")?.with_webhook(Sender::Stripe);
    /// hooks.signature = Some(Signature::new(Sender::Stripe).with_secret("whsec_test")?);
    /// let policy = Policy::default().with(hooks)?;
    /// # Ok::<(), refrain::Error>(())
    /// ```
    #[must_use]
    pub fn with_webhook(mut self, sender: Sender) -> Self {
        class::apply_webhook(sender, &mut self);
        self
    }

    /// Replaces the terms.
    #[must_use]
    pub fn with_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Replaces the pattern and the name.
    pub(super) fn at(self, pattern: Pattern) -> Self {
        let name = pattern.to_string();
        Self {
            name,
            pattern,
            ..self
        }
    }

    /// Returns what happens to the key after a response with this status.
    #[must_use]
    pub fn keeps(&self, status: u16) -> Ending {
        let has = |list: &[Statuses]| list.iter().any(|statuses| statuses.contains(status));
        match (has(&self.keep), has(&self.release)) {
            (true, _) => Ending::Keep,
            (false, true) => Ending::Release,
            (false, false) => default_ending(status, self.terms.guarantee),
        }
    }

    /// Whether a header with this name, in lower case, is stored and replayed.
    #[must_use]
    pub fn replays_header(&self, name: &str) -> bool {
        Self::always_replays(name) || self.replay_headers.iter().any(|header| header == name)
    }

    /// Whether every operation stores and replays a header with this name, in lower case.
    #[must_use]
    pub fn always_replays(name: &str) -> bool {
        REPLAY_HEADERS.contains(&name)
    }

    /// Whether this operation applies wherever both match, so that `other` never does there.
    #[cfg(feature = "http")]
    pub(super) fn shadows(&self, other: &Self) -> bool {
        self.paths == other.paths
            && self.pattern.covers_methods(&other.pattern)
            && self.pattern.is_more_specific_than(&other.pattern)
    }

    /// Whether a lost claim would break the guarantee.
    #[must_use]
    pub fn needs_every_claim(&self) -> bool {
        self.guarded
            && self.mode == Mode::Enforce
            && self.terms.guarantee == Guarantee::AtMostOnce
            && !self.accept_lossy_claims
    }

    /// Whether its attempts are written to the audit log.
    #[must_use]
    pub fn is_audited(&self) -> bool {
        self.guarded && self.mode == Mode::Enforce && (self.audit || self.audit_required)
    }

    /// Whether it moves money without an audit log.
    #[must_use]
    pub fn is_unaudited_money(&self) -> bool {
        self.class == Some(Class::Monetary) && self.mode == Mode::Enforce && !self.is_audited()
    }

    /// Whether a probe names the record, so that its requests carry `Refrain-Record`.
    #[must_use]
    pub fn is_probed_by_record(&self) -> bool {
        let is_record = |place: &str| place == RECORD_PLACE;
        let mut probes = self.probe.iter().chain(&self.replay_probe);
        probes.any(|probe| probe.places().any(is_record)) && !self.pattern.names().any(is_record)
    }

    /// Whether its scope has a claim of a token, so that its requests need one.
    #[must_use]
    pub fn needs_token(&self) -> bool {
        let mut parts = self.scope.iter();
        self.guarded && parts.any(|part| matches!(part, ScopePart::Jwt(_)))
    }

    /// Whether its scope or its credential is the subject of the client's certificate.
    #[must_use]
    pub fn needs_client_certificate(&self) -> bool {
        self.scope.contains(&ScopePart::TlsSubject)
            || self.credential.contains(&CredentialPart::TlsSubject)
    }

    /// Whether receipts decide its unknown outcomes.
    #[must_use]
    pub fn is_receipted(&self) -> bool {
        self.guarded && self.terms.guarantee == Guarantee::ExactlyOnce
    }

    /// Whether it keeps only successes, so that an expired key implies a success.
    #[must_use]
    pub fn keeps_successes_alone(&self) -> bool {
        (400..=599).all(|status| self.keeps(status) == Ending::Release)
    }

    /// Sorts operations by how little they let through, the strictest last.
    pub(super) fn strictness(&self) -> impl Ord + use<> {
        (
            self.guarded,
            self.mode == Mode::Enforce,
            self.signature.is_some(),
            self.required,
            self.terms.guarantee != Guarantee::AtLeastOnce,
        )
    }
}

impl Default for Operation {
    /// `POST *` with default settings.
    fn default() -> Self {
        let pattern = Pattern::every_path("POST");
        Self {
            name: pattern.to_string(),
            pattern,
            paths: Paths::default(),
            class: None,
            webhook: None,
            signature: None,
            guarded: true,
            key: vec![Source::Header("idempotency-key".into())],
            syntax: Syntax::default(),
            required: false,
            scope: vec![ScopePart::Credential],
            credential: CredentialPart::default_list(),
            replay_to: ReplayTo::default(),
            replay_probe: None,
            fingerprint: fingerprint::Part::DEFAULT.to_vec(),
            terms: Terms::default(),
            keep: Vec::new(),
            release: Vec::new(),
            replay_headers: Vec::new(),
            request_bytes_max: 8 << 20,
            outcome_bytes_max: 8 << 20,
            reply: Reply::default(),
            mode: Mode::default(),
            duplicates: Duplicates::default(),
            on_store_failure: OnStoreFailure::default(),
            accept_lossy_claims: false,
            probe: None,
            probe_authorization: None,
            receipts: None,
            records_keys: KeysKept::default(),
            records_query: false,
            lookup: false,
            audit: false,
            audit_required: false,
        }
    }
}

/// What happens to the key after the operation responded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The response is the outcome, and is replayed.
    Keep,
    /// The key is free for a new attempt.
    Release,
    /// The status is not enough: under exactly-once the receipt decides; without one the outcome is unknown.
    Doubt,
}

/// A range of statuses: `404`, `5xx` or `400-417`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statuses {
    low: u16,
    high: u16,
}

impl Statuses {
    /// Whether the range contains this status.
    #[must_use]
    pub fn contains(self, status: u16) -> bool {
        (self.low..=self.high).contains(&status)
    }

    /// Returns a status that both ranges contain.
    pub(super) fn common(self, other: Self) -> Option<u16> {
        let low = self.low.max(other.low);
        (low <= self.high.min(other.high)).then_some(low)
    }
}

/// Default table: what happens to the key after this status.
fn default_ending(status: u16, guarantee: Guarantee) -> Ending {
    match status {
        ..=399 => Ending::Keep,
        _ if REFUSED.contains(&status) => Ending::Release,
        _ if guarantee == Guarantee::AtLeastOnce => Ending::Release,
        // The transaction may have rolled back, or a gateway may have given up: the receipt decides.
        500.. if guarantee == Guarantee::ExactlyOnce => Ending::Doubt,
        _ => Ending::Keep,
    }
}

impl FromStr for Statuses {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            invalid(format!(
                "invalid status `{text}`; write 404, \"5xx\" or \"400-417\""
            ))
        };
        let number = |text: &str| match text.len() {
            3 => text.parse::<u16>().map_err(|_| bad()),
            _ => Err(bad()),
        };
        let (low, high) = if let Some((low, high)) = text.split_once('-') {
            (number(low)?, number(high)?)
        } else if let Some(class) = text.strip_suffix("xx") {
            let low = number(&format!("{class}00"))?;
            (low, low + 99)
        } else {
            (number(text)?, number(text)?)
        };
        match (200..=599).contains(&low) && low <= high && high <= 599 {
            true => Ok(Self { low, high }),
            false => Err(invalid(format!(
                "`{text}` is out of range; write a status from 200 to 599"
            ))),
        }
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (low, high) if low == high => write!(f, "{low}"),
            (low, high) if low % 100 == 0 && high == low + 99 => write!(f, "{}xx", low / 100),
            (low, high) => write!(f, "{low}-{high}"),
        }
    }
}

fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_optional_text<S: Serializer>(
    value: &Option<impl Display>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

fn as_texts<S: Serializer>(values: &[impl Display], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

//! One operation, with every setting resolved.

use std::fmt::Display;

use serde::{Serialize, Serializer};

use super::{
    Address, Class, Ending, Pattern, Probe, Signature, Statuses, Terms, matcher, status, webhook,
};
use crate::{
    Guarantee, Result, fingerprint,
    key::{CredentialPart, ScopePart, Sender, Source, Syntax},
};

/// Headers that are replayed without being asked for.
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

/// A class of requests, and how they are guarded.
///
/// Set the fields as needed; the rules between them are checked when a [`Policy`](super::Policy) is made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Operation {
    /// What it is called in reports, metrics and the scope `route`: its pattern, where nothing else is said.
    pub name: String,
    /// What it matches.
    #[serde(rename = "match", serialize_with = "as_text")]
    pub pattern: Pattern,
    /// Whether the case of the path counts.
    pub paths: Paths,
    /// What kind of operation it is.
    pub class: Option<Class>,
    /// Whose webhooks it takes in.
    pub webhook: Option<Sender>,
    /// How its requests are signed; what is not signed so is refused before anything else is done about it.
    pub signature: Option<Signature>,
    /// Whether it is guarded at all; [`Class::Read`] is not.
    pub guarded: bool,
    /// Where the key comes from; the first that is found counts.
    #[serde(serialize_with = "as_texts")]
    pub key: Vec<Source>,
    /// How a key header is written.
    pub syntax: Syntax,
    /// Whether a request without a key is refused. Otherwise it is let through unguarded.
    pub required: bool,
    /// The namespace in which keys are unique.
    #[serde(serialize_with = "as_texts")]
    pub scope: Vec<ScopePart>,
    /// What tells callers apart.
    #[serde(serialize_with = "as_texts")]
    pub credential: Vec<CredentialPart>,
    /// Who may see a replay.
    pub replay_to: ReplayTo,
    /// What tells a retry from another request under the same key.
    #[serde(serialize_with = "as_texts")]
    pub fingerprint: Vec<fingerprint::Part>,
    /// What is promised, and for how long everything stands.
    #[serde(flatten)]
    pub terms: Terms,
    /// Answers that are kept against the contract's table.
    #[serde(serialize_with = "as_texts")]
    pub keep: Vec<Statuses>,
    /// Answers that free the key against the contract's table.
    #[serde(serialize_with = "as_texts")]
    pub release: Vec<Statuses>,
    /// Headers that are replayed on top of the usual ones, in lower case.
    pub replay_headers: Vec<String>,
    /// The largest request body that is taken.
    pub request_bytes_max: usize,
    /// The largest body that is kept with an outcome.
    pub outcome_bytes_max: usize,
    /// When a reply leaves.
    pub reply: Reply,
    /// Whether the guard acts or only watches.
    pub mode: Mode,
    /// What is answered to duplicates of what is done, where its outcome cannot be replayed.
    pub duplicates: Duplicates,
    /// What happens while the store cannot be reached.
    pub on_store_failure: OnStoreFailure,
    /// Whether at-most-once claims may lie in a store that may lose what it acknowledged.
    pub accept_lossy_claims: bool,
    /// How to learn what became of an indeterminate one.
    #[serde(serialize_with = "as_optional_text")]
    pub probe: Option<Probe>,
    /// Where the receipts are that an exactly-once operation commits together with its effect.
    pub receipts: Option<Address>,
    /// Whether every attempt and its end is written to the audit log.
    pub audit: bool,
    /// Whether it is refused where there is no audit log: the proxy does not start, the layer answers 503.
    pub audit_required: bool,
}

/// Whether the case of a path counts when it is matched.
///
/// A service that ignores case must not be reached around its guard, so by default every spelling is guarded.
/// Rules that guard less than others count for the spelling that they have, in either case.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Paths {
    /// `/V1/Pay` is matched by `/v1/pay`.
    #[default]
    CaseInsensitive,
    /// `/V1/Pay` and `/v1/pay` are two paths.
    CaseSensitive,
}

impl Paths {
    /// Whether two segments are one.
    pub(super) fn is_same(self, left: &[u8], right: &[u8]) -> bool {
        match self {
            Self::CaseInsensitive => matcher::fold(left) == matcher::fold(right),
            Self::CaseSensitive => left == right,
        }
    }
}

/// Who may see a replay.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayTo {
    /// Only who presents the first request's credential.
    #[default]
    SameCredential,
    /// Everybody in the same scope.
    SameScope,
}

/// When a reply leaves.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Once its outcome is durable.
    #[default]
    Stored,
    /// As it comes; recorded beside.
    Streamed,
}

/// What is answered to duplicates of what is done, where its outcome cannot be replayed.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Duplicates {
    /// A problem that says why: 409 where the body was not kept, 410 after the end of retention.
    #[default]
    Explain,
    /// A success without a body: senders of events only ask whether they are done.
    Acknowledge,
}

/// Whether the guard acts or only watches.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Duplicates are answered, not run.
    #[default]
    Enforce,
    /// What would have happened is counted; nothing is changed.
    Observe,
}

/// What happens to a guarded request while the store cannot be reached.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum OnStoreFailure {
    /// It is refused, and nothing runs.
    #[default]
    Refuse,
    /// It runs unguarded, and is counted.
    Pass,
}

impl Operation {
    /// An operation with default settings for what `pattern` matches, such as `POST /v1/payments`.
    ///
    /// # Errors
    /// When the pattern is malformed.
    pub fn new(pattern: &str) -> Result<Self> {
        Ok(Self::default().at(pattern.parse()?))
    }

    /// The same operation with the settings of a class. Set what differs from the class afterwards.
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Self {
        class.apply(&mut self);
        self
    }

    /// The same operation with the settings for the webhooks of this sender. Set what differs afterwards.
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
        webhook::apply(sender, &mut self);
        self
    }

    /// The same operation on other terms.
    #[must_use]
    pub fn with_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// The same settings for another pattern.
    pub(super) fn at(self, pattern: Pattern) -> Self {
        let name = pattern.to_string();
        Self {
            name,
            pattern,
            ..self
        }
    }

    /// What becomes of the key when the operation has answered with this status.
    #[must_use]
    pub fn keeps(&self, status: u16) -> Ending {
        let has = |list: &[Statuses]| list.iter().any(|statuses| statuses.contains(status));
        match (has(&self.keep), has(&self.release)) {
            (true, _) => Ending::Keep,
            (false, true) => Ending::Release,
            (false, false) => status::ending(status, self.terms.guarantee),
        }
    }

    /// Whether a header with this name, in lower case, is kept and replayed.
    #[must_use]
    pub fn replays_header(&self, name: &str) -> bool {
        REPLAY_HEADERS.contains(&name) || self.replay_headers.iter().any(|header| header == name)
    }

    /// Whether a path below this prefix can match.
    #[cfg(feature = "http")]
    pub(crate) fn reaches_below(&self, prefix: &Pattern) -> bool {
        self.pattern.reaches_below(prefix, self.paths)
    }

    /// Whether a claim that got lost would break its promise.
    #[must_use]
    pub fn needs_every_claim(&self) -> bool {
        self.guarded
            && self.mode == Mode::Enforce
            && self.terms.guarantee == Guarantee::AtMostOnce
            && !self.accept_lossy_claims
    }

    /// Whether its attempts go into the audit log.
    #[must_use]
    pub fn is_audited(&self) -> bool {
        self.guarded && self.mode == Mode::Enforce && (self.audit || self.audit_required)
    }

    /// Whether it moves money and its attempts go into no audit log.
    #[must_use]
    pub fn is_unaudited_money(&self) -> bool {
        self.class == Some(Class::Monetary) && self.mode == Mode::Enforce && !self.is_audited()
    }

    /// Whether its receipts tell what became of it.
    #[must_use]
    pub fn is_receipted(&self) -> bool {
        self.guarded && self.terms.guarantee == Guarantee::ExactlyOnce
    }

    /// Whether only successes are kept by its own rules, so that a key past retention stands for one.
    #[must_use]
    pub fn keeps_successes_alone(&self) -> bool {
        (400..=599).all(|status| self.keeps(status) == Ending::Release)
    }

    /// Larger for the operation that lets less through.
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
        let header = |name: &str| CredentialPart::Header(name.into());
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
            credential: vec![
                header("authorization"),
                header("x-api-key"),
                header("cookie"),
            ],
            replay_to: ReplayTo::default(),
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
            receipts: None,
            audit: false,
            audit_required: false,
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

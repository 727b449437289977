//! Before all states: configures the layer, with the state that its requests share and the decisions that it reports.

use std::{
    collections::HashMap,
    fmt::{self, Debug},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, request::Parts};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    REFRAIN_RECORD, TraceContext,
    body::{Budget, Carried, Guarded},
    lookup::{LOOKUP_PATH, LOOKUPS_MAX},
    probe::{self, Ask, Nothing},
    problem::PROBLEMS_PATH,
};
use crate::{
    Engine, Error, ErrorKind, Operation, Policy, Result, Scope,
    jwt::JwtVerifier,
    policy::Pattern,
    receipts::{AnyReceipts, Receipts, Witness},
};

/// Tower layer that guards the operations of a service according to a policy.
///
/// The layer adds no error of its own: its failures become responses.
#[derive(Debug, Clone)]
pub struct RefrainLayer {
    pub(super) shared: Arc<LayerState>,
}

/// Configuration and state that all requests share.
#[derive(Clone)]
pub(super) struct LayerState {
    pub(super) engine: Engine,
    pub(super) policy: Policy,
    /// Base of the `type` of problems, where their pages are.
    pub(super) problems: String,
    /// Returns the URI that the client requested, if the head does not contain it.
    pub(super) original: Option<UriOf>,
    /// The router prefix that the layer is nested under.
    pub(super) prefix: Option<Prefix>,
    /// Overrides the policy's scope.
    pub(super) scope: Option<ScopeOf>,
    /// The service that answers probes.
    pub(super) probes: Option<Ask>,
    /// Verifies the tokens of requests.
    pub(super) jwt: Option<JwtVerifier>,
    /// Readers of receipts, by the name of the operation.
    pub(super) witnesses: HashMap<String, Arc<Witness>>,
    /// Path of look-ups of keys.
    pub(super) lookup: String,
    /// Whether an operation allows look-ups.
    pub(super) has_lookup: bool,
    /// Limits the number of look-ups that read the store at the same time.
    pub(super) lookup_turns: Arc<Semaphore>,
    /// Number of requests that are observed now.
    pub(super) observed: Arc<AtomicUsize>,
    /// Receives the decision about each request.
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Memory budget for buffered bodies.
    pub(super) budget: Arc<Budget>,
    /// Whether the service sends each request to another process.
    pub(super) forwards: bool,
    /// Whether probable configuration mistakes were reported.
    pub(super) reported: Reported,
    /// Whether another layer replaced this one.
    pub(super) retired: Reported,
    /// Whether operations that match nothing below a router's prefix were reported.
    #[cfg(feature = "axum")]
    pub(super) nest_reported: Reported,
}

/// Whether something was reported or done. A clone starts unset, because it may be reconfigured before it is used.
#[derive(Default)]
pub(super) struct Reported(pub(super) AtomicBool);

impl Clone for Reported {
    fn clone(&self) -> Self {
        Self::default()
    }
}

pub(super) type ScopeOf = Arc<dyn Fn(&Parts) -> Scope + Send + Sync>;

pub(super) type UriOf = Arc<dyn Fn(&Parts) -> Option<Uri> + Send + Sync>;

/// The router prefix that the layer is nested under.
#[derive(Debug, Clone)]
pub(super) struct Prefix {
    /// Without a slash at its end.
    pub(super) path: String,
    pub(super) pattern: Pattern,
}

impl RefrainLayer {
    /// Guards the operations of `policy`, with the records of `engine`.
    #[must_use]
    pub fn new(engine: Engine, policy: Policy) -> Self {
        Self {
            shared: Arc::new(LayerState {
                engine,
                has_lookup: has_lookup(&policy),
                policy,
                lookup: LOOKUP_PATH.into(),
                lookup_turns: Arc::new(Semaphore::new(LOOKUPS_MAX)),
                problems: PROBLEMS_PATH.into(),
                original: None,
                prefix: None,
                scope: None,
                probes: None,
                jwt: None,
                witnesses: HashMap::new(),
                observed: Arc::default(),
                observer: None,
                budget: Arc::default(),
                forwards: false,
                reported: Reported::default(),
                retired: Reported::default(),
                #[cfg(feature = "axum")]
                nest_reported: Reported::default(),
            }),
        }
    }

    /// The engine that holds the records.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The policy that it applies.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// Checks whether store and engine support the guarantees of the policy. Call it at start-up.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] as for [`Policy::check_store`], and if an operation has `audit = "required"`
    /// and the engine has no [audit log](Engine::with_audit), needs a token and [nothing verifies it](Self::with_jwt),
    /// or has a `replay_probe` and [no service answers it](Self::with_probes).
    /// Without this check such an operation answers 503.
    pub fn check(&self) -> Result<()> {
        let LayerState { engine, policy, .. } = &*self.shared;
        policy.check_store(engine.store())?;
        self.check_callers()?;
        let is_refused = |it: &&Operation| it.audit_required && it.is_audited();
        match policy.operations().find(is_refused) {
            Some(operation) if engine.audit().is_none() => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "operation `{}` has audit = \"required\", and the engine has no audit log; \
                     give it one with `Engine::with_audit`",
                    operation.name
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the layer can tell who a caller is.
    fn check_callers(&self) -> Result<()> {
        let LayerState {
            policy,
            jwt,
            probes,
            ..
        } = &*self.shared;
        let mut operations = policy.operations().filter(|it| it.guarded);
        let lacking = operations.find_map(|it| match it {
            it if self.shared.needs_token(it) && jwt.is_none() => Some((
                it,
                "has a scope with `jwt:`, and nothing verifies tokens; set the keys with `RefrainLayer::with_jwt`",
            )),
            it if it.replay_probe.is_some() && probes.is_none() => Some((
                it,
                "has a `replay_probe`, and no service answers it; set one with `RefrainLayer::with_probes`",
            )),
            _ => None,
        });
        match lacking {
            Some((operation, why)) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("operation `{}` {why}", operation.name),
            )),
            None => Ok(()),
        }
    }

    /// Sets a function that returns the URI that the client requested, for routers that strip a prefix from the request's head.
    ///
    /// Policies, fingerprints, scopes and derived keys use the whole path; the service still sees the stripped one.
    /// With the feature `axum` the layer reads axum's `OriginalUri`; this function is for other routers, and takes precedence.
    /// If it returns `None`, the layer continues as if it were not set.
    ///
    /// ```
    /// use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
    ///
    /// #[derive(Clone)]
    /// struct WholeUri(http::Uri);
    ///
    /// let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default())
    ///     .with_original_uri(|head| Some(head.extensions.get::<WholeUri>()?.0.clone()));
    /// ```
    #[must_use]
    pub fn with_original_uri(
        mut self,
        uri: impl Fn(&Parts) -> Option<Uri> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.shared).original = Some(Arc::new(uri));
        self
    }

    /// Sets the router prefix that the layer is nested under, such as that of a router's `nest`.
    ///
    /// Operations that [apply to no request below it](Self::out_of_reach) are reported when the layer is applied.
    /// If the original URI is not known otherwise, the prefix is prepended to the path, unless it contains a `{name}`.
    ///
    /// ```
    /// use refrain::{Engine, Operation, Policy, http::RefrainLayer, store::Memory};
    ///
    /// let policy = Policy::default()
    ///     .with(Operation::new("POST /eu/pay")?)?
    ///     .with(Operation::new("POST /us/pay")?)?;
    /// let layer = RefrainLayer::new(Engine::new(Memory::new()), policy).under("/eu")?;
    /// let unused: Vec<_> = layer.out_of_reach().map(|it| &it.name[..]).collect();
    /// assert_eq!(unused, ["POST /us/pay"]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the prefix is not a path.
    pub fn under(mut self, prefix: &str) -> Result<Self> {
        let pattern: Pattern = format!("* {prefix}").parse()?;
        if prefix.contains('*') {
            let message =
                format!("invalid prefix `{prefix}`; write it as the router has it, such as /v1");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let path = prefix.trim_end_matches('/').into();
        Arc::make_mut(&mut self.shared).prefix = Some(Prefix { path, pattern });
        Ok(self)
    }

    /// The operations of the policy that apply to no request below the prefix set with [`under`](Self::under):
    /// no path there matches them, or a more specific operation matches the same paths.
    /// Operations for every path (`POST *`) are fallbacks, and never listed.
    pub fn out_of_reach(&self) -> impl Iterator<Item = &Operation> {
        let prefix = self.shared.prefix.as_ref();
        prefix
            .into_iter()
            .flat_map(|prefix| self.shared.policy.out_of_reach(&prefix.pattern))
    }

    /// Sets a function that derives the scope from the request's head, such as a tenant that an earlier layer has verified.
    /// It overrides the policy's scope.
    #[must_use]
    pub fn with_scope(mut self, scope: impl Fn(&Parts) -> Scope + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.shared).scope = Some(Arc::new(scope));
        self
    }

    /// Sets the service that answers the policy's `probe` for an indeterminate operation, and its `replay_probe`.
    ///
    /// The guarded service itself is never probed: with axum's `Router::layer` it is the handler of one route,
    /// which would execute the probe as the operation. Pass the whole router, unguarded:
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
    ///
    /// let router: Router = Router::new()
    ///     .route("/v1/payments", get(async || "what was charged").post(async || "charged"));
    /// let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default())
    ///     .with_probes(router.clone());
    /// let app = router.layer(layer);
    /// ```
    #[must_use]
    pub fn with_probes<S, R>(mut self, service: S) -> Self
    where
        S: Guarded<Nothing, R>,
        R: Carried,
    {
        Arc::make_mut(&mut self.shared).probes = Some(probe::target(service));
        self
    }

    /// Sets what verifies the tokens of requests, for operations with `scope = "jwt:CLAIM"`.
    ///
    /// ```
    /// use refrain::{Engine, Operation, Policy, http::RefrainLayer, jwt::{JwtSettings, JwtVerifier}, store::Memory};
    ///
    /// let mut payments = Operation::new("POST /v1/payments")?;
    /// payments.scope = vec!["jwt:sub".parse()?];
    /// let policy = Policy::new(vec![payments])?;
    /// let tokens = JwtSettings::with_secret("a secret of at least 32 characters")?
    ///     .from_issuer("https://login.example")
    ///     .for_audience("payments");
    /// let layer = RefrainLayer::new(Engine::new(Memory::new()), policy);
    /// # #[cfg(feature = "jwt")]
    /// let layer = layer.with_jwt(JwtVerifier::new(tokens)?);
    /// # #[cfg(feature = "jwt")]
    /// layer.check()?;
    /// # Ok::<(), refrain::Error>(())
    /// ```
    #[must_use]
    pub fn with_jwt(mut self, verifier: JwtVerifier) -> Self {
        Arc::make_mut(&mut self.shared).jwt = Some(verifier);
        self
    }

    /// What verifies the tokens of requests.
    #[must_use]
    pub fn jwt(&self) -> Option<&JwtVerifier> {
        self.shared.jwt.as_ref()
    }

    /// Sets where receipts are read, for the exactly-once operations whose `receipts` is this address.
    ///
    /// Without it these operations are at-most-once. Operations that have receipts already keep them.
    #[must_use]
    pub fn with_receipts(mut self, address: &str, receipts: impl Receipts) -> Self {
        let receipts = AnyReceipts::new(receipts);
        let shared = Arc::make_mut(&mut self.shared);
        let is_meant = |operation: &&Operation| {
            let named = operation.receipts.as_ref();
            named.is_some_and(|named| named.as_str() == address)
        };
        let operations = shared.policy.operations().filter(|it| it.is_receipted());
        for operation in operations.filter(is_meant) {
            let witness = || Arc::new(Witness::new(operation, receipts.clone()));
            let name = operation.name.clone();
            shared.witnesses.entry(name).or_insert_with(witness);
        }
        self
    }

    /// The readers of receipts of the exactly-once operations, with what is known about their reliability.
    pub fn witnesses(&self) -> impl Iterator<Item = &Arc<Witness>> {
        self.shared.witnesses.values()
    }

    /// The same layer with another policy, which shares the engine, the memory budget and the observer.
    ///
    /// Requests of services that this layer was applied to keep the old policy; apply the new layer for the others,
    /// and then [retire](Self::retire) this one. Operations that did not change keep the reader of their receipts;
    /// set those of the others with [`with_receipts`](Self::with_receipts).
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        let mut shared = LayerState::clone(&self.shared);
        shared.has_lookup = has_lookup(&policy);
        let is_unchanged = |name: &str| {
            let is_named = |it: &&Operation| it.name == name;
            let old = shared.policy.operations().find(is_named);
            old.is_some() && old == policy.operations().find(is_named)
        };
        shared.witnesses.retain(|name, _| is_unchanged(name));
        shared.policy = policy;
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Stops to look up the records in doubt of earlier processes by this layer's policy, because another layer replaced it.
    /// Requests that it guards already continue.
    pub fn retire(&self) {
        self.shared.retired.set();
        self.stop_probes();
    }

    /// Sets the observer, which receives the decision about each request, and how long it took.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        Arc::make_mut(&mut self.shared).observer = Some(observer);
        self
    }

    /// Sets the memory budget for buffered bodies, 256 MiB by default: request bodies of guarded operations
    /// until they are passed on, and their response bodies until they are sent.
    ///
    /// A request beyond the budget is answered with 503 `over-budget`, before the claim; so is the duplicate of a request
    /// whose stored outcome has a large body. A fresh response is never rejected.
    /// An eighth of the budget is reserved for bodies up to 64 KiB, and no body may be larger than the rest.
    #[must_use]
    pub fn with_buffered_bytes_max(mut self, bytes_max: usize) -> Self {
        Arc::make_mut(&mut self.shared).budget = Arc::new(Budget::new(bytes_max));
        self
    }

    /// Number of bytes of bodies that are buffered in memory now.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.shared.budget.used()
    }

    /// The memory budget for buffered bodies, in bytes.
    #[must_use]
    pub fn buffered_bytes_max(&self) -> usize {
        self.shared.budget.bytes_max()
    }

    /// Declares that the service forwards each request to another process, and drops the request's body once all of it was sent.
    ///
    /// A request that was sent cannot be cancelled, so its late response counts until the record is settled; the call
    /// of any other service is dropped at the end of `settle_after`. Requests get no extensions with fence and record.
    #[must_use]
    pub fn forwarding(mut self) -> Self {
        Arc::make_mut(&mut self.shared).forwards = true;
        self
    }

    /// Sets the base of the `type` of problems: a path, under which the layer serves their pages itself, or a URL elsewhere.
    #[must_use]
    pub fn with_problems(mut self, base: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.shared).problems = base.into();
        self
    }

    /// Sets the path of look-ups, [`LOOKUP_PATH`] by default, which ends with a slash; below a prefix, include the prefix.
    /// Look-ups are answered only for operations with [`lookup`](Operation::lookup).
    #[must_use]
    pub fn with_lookup(mut self, path: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.shared).lookup = path.into();
        self
    }
}

/// Whether an operation allows look-ups.
fn has_lookup(policy: &Policy) -> bool {
    policy.operations().any(|it| it.lookup && it.guarded)
}

impl fmt::Debug for LayerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerState")
            .field("engine", &self.engine)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Receives the decision about each request, once.
/// Set with [`RefrainLayer::with_observer`](super::RefrainLayer::with_observer).
///
/// Called on the path of every request: it must be quick, and must not block.
pub trait Observer: Debug + Send + Sync + 'static {
    /// Called when the response is ready, or the client has disconnected; the body of the response may not be sent yet.
    fn decided(&self, request: &DecidedRequest<'_>);

    /// Called for each request to an operation with `mode = "observe"`, once it is known what guarding would have done.
    fn observed(&self, operation: &Operation, result: Observed) {
        let _ = (operation, result);
    }
}

/// A request whose response is ready, as an [`Observer`] sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DecidedRequest<'a> {
    /// The operation that it matches; `None` if the policy guards no such operation.
    pub operation: Option<&'a Operation>,
    /// The decision; [`Decision::Passed`] if it matches no operation.
    pub decision: Decision,
    /// The method of the request.
    pub method: &'a Method,
    /// The target, as the client requested it. The query may contain secrets.
    pub target: &'a Uri,
    /// Status and headers of the response; `None` if the service failed or the client disconnected before.
    pub response: Option<(StatusCode, &'a HeaderMap)>,
    /// The header `traceparent` of the request.
    pub(super) traceparent: Option<&'a HeaderValue>,
    /// The span of the request, if its server records one.
    pub trace: Option<TraceContext>,
    /// When the request arrived.
    pub since: Instant,
    /// Time from then until the decision.
    pub took: Duration,
    /// The part of it that the service took; `None` if it was not called, or did not respond.
    pub served: Option<Duration>,
    /// Whether it waited for another request with the same key.
    pub waited: bool,
}

impl<'a> DecidedRequest<'a> {
    /// The identity of its record, if it has one.
    #[must_use]
    pub fn record(&self) -> Option<&'a str> {
        let (_, headers) = self.response?;
        headers.get(REFRAIN_RECORD)?.to_str().ok()
    }

    /// The trace id of its caller, from the header `traceparent` of W3C Trace Context.
    #[must_use]
    pub fn trace_id(&self) -> Option<[u8; 16]> {
        Some(TraceContext::read(self.traceparent?)?.trace_id)
    }
}

macro_rules! labelled {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $case:ident = $label:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $case,)* }

        impl $name {
            /// All of them, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$case,)*];

            /// Its name in metrics.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(Self::$case => $label,)* }
            }
        }
    };
}

labelled! {
    /// What guarding would have done with a request that was only observed.
    Observed {
        /// It would have executed.
        WouldExecute = "would-execute",
        /// It would have got a stored outcome.
        WouldReplay = "would-replay",
        /// It would have got a problem, such as `key-reused`, `in-flight` or `request-too-large`.
        WouldRefuse = "would-refuse",
        /// It has no key.
        KeyMissing = "key-missing",
        /// Its key is malformed.
        KeyInvalid = "key-invalid",
        /// Unknown: too many requests were observed at once, its body was not read to the end, or the store failed.
        Unknown = "unknown",
    }
}

labelled! {
    /// Decision of the layer about a request.
    Decision {
        /// The operation ran, and its outcome is kept.
        FreshKept = "fresh-kept",
        /// The operation ran or was refused, and its key is free again.
        FreshReleased = "fresh-released",
        /// A stored outcome was replayed.
        Replayed = "replayed",
        /// A duplicate got the response of the released request that it waited for.
        Refused = "refused",
        /// Another request with the same key is still running.
        InFlight = "in-flight",
        /// The key was used for another request.
        KeyReused = "key-reused",
        /// There was no key where one is required.
        KeyMissing = "key-missing",
        /// The key was malformed.
        KeyInvalid = "key-invalid",
        /// The record belongs to another credential.
        CredentialChanged = "credential-changed",
        /// The operation may or may not have taken effect.
        OutcomeUnknown = "outcome-unknown",
        /// The upstream is unreachable; nothing was sent.
        UpstreamUnreachable = "upstream-unreachable",
        /// The outcome is known, but its body was not kept.
        BodyNotKept = "body-not-kept",
        /// The key is past retention.
        KeyExpired = "key-expired",
        /// The store did not answer; nothing ran.
        StoreUnavailable = "store-unavailable",
        /// The request body was over the cap.
        RequestTooLarge = "request-too-large",
        /// The signature is missing or invalid; nothing ran.
        SignatureInvalid = "signature-invalid",
        /// The token is missing or invalid; nothing ran.
        TokenInvalid = "token-invalid",
        /// It could not be confirmed who the caller is; nothing ran, and nothing was replayed.
        CallerUnconfirmed = "caller-unconfirmed",
        /// The upstream refused to show the outcome to this caller.
        ReplayRefused = "replay-refused",
        /// The memory budget for bodies was used up; nothing ran.
        OverBudget = "over-budget",
        /// The request was malformed; nothing ran.
        RequestMalformed = "request-malformed",
        /// The request body did not arrive in time; nothing ran.
        RequestTimeout = "request-timeout",
        /// A duplicate of a completed request was acknowledged, without the outcome.
        Acknowledged = "acknowledged",
        /// The client looked up the state of a key; nothing ran.
        LookedUp = "looked-up",
        /// The client read the page of a problem; nothing ran.
        PageServed = "page-served",
        /// The request had no key, and none is required: it passed unguarded.
        Passed = "passed",
        /// The store did not answer, and the policy lets the request pass unguarded.
        Unguarded = "unguarded",
        /// The request passed in `mode = "observe"`.
        Observed = "observed",
        /// The service failed without a response.
        Failed = "failed",
        /// The client disconnected before the response.
        HungUp = "hung-up",
    }
}

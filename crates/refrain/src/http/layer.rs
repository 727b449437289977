//! All states: the layer, and the configuration and state that its requests share.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use http::{Response, Uri, request::Parts, uri::PathAndQuery};

use super::{
    Observer,
    body::{Body, Carried, Guarded, marked},
    capture::Budget,
    log_rate::LogRate,
    probe::{self, Ask, Nothing},
    problem::{PROBLEMS_PATH, Problem},
};
use crate::{
    Engine, Error, ErrorKind, Operation, Policy, Result, Scope,
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
    original: Option<UriOf>,
    /// The router prefix that the layer is nested under.
    prefix: Option<Prefix>,
    /// Overrides the policy's scope.
    pub(super) scope: Option<ScopeOf>,
    /// The service that answers probes.
    pub(super) probes: Option<Ask>,
    /// Readers of receipts, by the name of the operation.
    pub(super) witnesses: HashMap<String, Arc<Witness>>,
    /// Number of requests that are observed now.
    pub(super) observed: Arc<AtomicUsize>,
    /// Receives the decision about each request.
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Rate limit for the log of failed claims.
    pub(super) failed_claims: Arc<LogRate>,
    /// Memory budget for buffered bodies.
    pub(super) budget: Arc<Budget>,
    /// Whether the service sends each request to another process.
    pub(super) forwards: bool,
    /// Whether probable configuration mistakes were reported.
    reported: Reported,
    /// Whether operations that match nothing below a router's prefix were reported.
    #[cfg(feature = "axum")]
    nest_reported: Reported,
}

/// Whether something was reported. A clone starts unset, because it may be reconfigured before it is used.
#[derive(Default)]
struct Reported(AtomicBool);

impl Reported {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it. Returns `true` to the first caller only.
    fn set(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

impl Clone for Reported {
    fn clone(&self) -> Self {
        Self::default()
    }
}

type ScopeOf = Arc<dyn Fn(&Parts) -> Scope + Send + Sync>;

type UriOf = Arc<dyn Fn(&Parts) -> Option<Uri> + Send + Sync>;

/// The router prefix that the layer is nested under.
#[derive(Debug, Clone)]
struct Prefix {
    /// Without a slash at its end.
    path: String,
    pattern: Pattern,
}

impl RefrainLayer {
    /// Guards the operations of `policy`, with the records of `engine`.
    #[must_use]
    pub fn new(engine: Engine, policy: Policy) -> Self {
        Self {
            shared: Arc::new(LayerState {
                engine,
                policy,
                problems: PROBLEMS_PATH.into(),
                original: None,
                prefix: None,
                scope: None,
                probes: None,
                witnesses: HashMap::new(),
                observed: Arc::default(),
                observer: None,
                failed_claims: Arc::default(),
                budget: Arc::default(),
                forwards: false,
                reported: Reported::default(),
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
    /// and the engine has no [audit log](Engine::with_audit). Without this check such an operation answers 503.
    pub fn check(&self) -> Result<()> {
        let LayerState { engine, policy, .. } = &*self.shared;
        policy.check_store(engine.store())?;
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

    /// Sets the service that answers the policy's `probe` for an indeterminate operation.
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

    /// Sets where receipts are read, for the exactly-once operations whose `receipts` is this address.
    ///
    /// Without it these operations are at-most-once.
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
            let witness = Witness::new(operation, receipts.clone());
            let name = operation.name.clone();
            shared.witnesses.insert(name, Arc::new(witness));
        }
        self
    }

    /// The readers of receipts of the exactly-once operations, with what is known about their reliability.
    pub fn witnesses(&self) -> impl Iterator<Item = &Arc<Witness>> {
        self.shared.witnesses.values()
    }

    /// Sets the observer, which receives the decision about each request to a guarded operation, and how long it took.
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
}

impl LayerState {
    /// The reader of this operation's receipts, if it has one.
    pub(super) fn witness(&self, operation: &Operation) -> Option<&Arc<Witness>> {
        match operation.is_receipted() {
            true => self.witnesses.get(&operation.name),
            false => None,
        }
    }

    /// The problem as a response.
    pub(super) fn refuse<R>(&self, problem: &Problem) -> Response<Body<R>> {
        marked(problem.code().into(), problem.response(&self.problems))
    }

    /// The URI that the client requested: below a router's prefix, the request's head has only the rest of the path.
    pub(super) fn uri<'h>(&self, head: &'h Parts) -> Cow<'h, Uri> {
        if let Some(uri) = self.original.as_ref().and_then(|original| original(head)) {
            return Cow::Owned(uri);
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(uri)) = head.extensions.get() {
            self.report_nest(head, uri);
            return Cow::Borrowed(uri);
        }
        let put_in_front = self
            .prefix
            .as_ref()
            .and_then(|prefix| prefix.join(&head.uri));
        put_in_front.map_or(Cow::Borrowed(&head.uri), Cow::Owned)
    }

    /// Reports operations that match nothing below axum's `nest`, at the first nested request.
    ///
    /// Only such a request contains the prefix. Without the report, an operation written without the prefix would silently
    /// not be guarded.
    #[cfg(feature = "axum")]
    fn report_nest(&self, head: &Parts, original: &Uri) {
        if self.nest_reported.is_set() || original.path().len() == head.uri.path().len() {
            return;
        }
        let nest = head.extensions.get::<axum::extract::NestedPath>();
        let Some(nest) = nest.filter(|_| self.nest_reported.set() && self.prefix.is_none()) else {
            return;
        };
        let nest = nest.as_str();
        let Ok(prefix) = format!("* {nest}").parse::<Pattern>() else {
            return;
        };
        let unreached: Vec<_> = self.policy.out_of_reach(&prefix).collect();
        if !unreached.is_empty() {
            report_loudly(&format!(
                "no request below `{nest}`, where the router nests the layer, reaches these operations: {}; \
                 write their whole paths, such as `{}/...`, unless the layer is nested elsewhere too",
                names(&unreached),
                nest.trim_end_matches('/')
            ));
        }
    }
}

impl Prefix {
    /// The URI with the prefix prepended to its path.
    fn join(&self, uri: &Uri) -> Option<Uri> {
        if self.pattern.names().next().is_some() {
            return None;
        }
        let rest = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(format!("{}{rest}", self.path).parse().ok()?);
        Uri::from_parts(parts).ok()
    }
}

impl RefrainLayer {
    /// Reports probable configuration mistakes, such as operations that run without an audit log:
    /// as warnings, some of them on standard error if no subscriber collects warnings.
    ///
    /// Called when the layer is applied to a service. Reports once, because routers apply the layer to each route.
    pub fn report(&self) {
        let reported = &self.shared.reported;
        if reported.is_set() || !reported.set() {
            return;
        }
        let LayerState { engine, policy, .. } = &*self.shared;
        let has_probe = |operation: &Operation| operation.probe.is_some();
        if self.shared.probes.is_none() && policy.operations().any(has_probe) {
            tracing::warn!(
                "the policy has a `probe`, but no service answers it; set one with `RefrainLayer::with_probes`"
            );
        }
        let is_blind =
            |it: &&Operation| it.is_receipted() && !self.shared.witnesses.contains_key(&it.name);
        for operation in policy.operations().filter(is_blind) {
            tracing::warn!(
                operation = %operation.name,
                "no reader of receipts is set, so the operation is only at-most-once; \
                 set one with `RefrainLayer::with_receipts`"
            );
        }
        let lacks_log = engine.audit().is_none();
        let runs = |it: &&Operation| match it.is_audited() {
            true => lacks_log && !it.audit_required,
            false => it.is_unaudited_money(),
        };
        let unaudited: Vec<_> = policy.operations().filter(runs).collect();
        if !unaudited.is_empty() {
            let help = match lacks_log {
                true => "give the engine an audit log with `Engine::with_audit`",
                false => "write audit = true",
            };
            report_loudly(&format!(
                "these operations run without an audit log: {}; {help}",
                names(&unaudited)
            ));
        }
        let required = policy
            .operations()
            .filter(|it| it.audit_required && it.is_audited());
        let required: Vec<_> = required.filter(|_| lacks_log).collect();
        if !required.is_empty() {
            report_loudly(&format!(
                "these operations have audit = \"required\" and are refused, because there is no audit log: {}; \
                 give the engine one with `Engine::with_audit`",
                names(&required)
            ));
        }
        let unreached: Vec<_> = self.out_of_reach().collect();
        if !unreached.is_empty() {
            report_loudly(&format!(
                "no request reaches these operations below the layer's prefix: {}; write their whole paths, \
                 or remove them from this layer's policy if more specific operations match all their requests",
                names(&unreached)
            ));
        }
    }
}

fn names(operations: &[&Operation]) -> String {
    let names: Vec<_> = operations
        .iter()
        .map(|it| format!("`{}`", it.name))
        .collect();
    names.join(", ")
}

/// Warns; on standard error if no subscriber collects warnings.
fn report_loudly(message: &str) {
    match tracing::enabled!(tracing::Level::WARN) {
        true => tracing::warn!("{message}"),
        false => eprintln!("refrain: warning: {message}"),
    }
}

impl fmt::Debug for LayerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerState")
            .field("engine", &self.engine)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

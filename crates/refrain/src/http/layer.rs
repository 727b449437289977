//! The layer that guards a service.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
};

use http::request::Parts;
use tower_layer::Layer;

use super::{RefrainService, problem::PROBLEMS_PATH};
use crate::{Engine, Policy, Scope};

/// Guards the operations of a service as a policy says.
///
/// The layer adds no error of its own: its troubles become answers.
#[derive(Debug, Clone)]
pub struct RefrainLayer {
    pub(super) shared: Arc<Shared>,
}

/// What every request needs.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) policy: Policy,
    /// Where the pages behind a problem's `type` are.
    pub(super) problems: String,
    /// Says what the scope is, in place of the policy.
    pub(super) scope: Option<ScopeOf>,
    /// How many requests are observed now.
    pub(super) observed: Arc<AtomicUsize>,
}

type ScopeOf = Arc<dyn Fn(&Parts) -> Scope + Send + Sync>;

impl RefrainLayer {
    /// Guards what `policy` names, with the records of `engine`.
    #[must_use]
    pub fn new(engine: Engine, policy: Policy) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                policy,
                problems: PROBLEMS_PATH.into(),
                scope: None,
                observed: Arc::default(),
            }),
        }
    }

    /// Takes the scope from the request's head in a way of your own, such as a tenant that an earlier layer has verified.
    #[must_use]
    pub fn with_scope(mut self, scope: impl Fn(&Parts) -> Scope + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.shared).scope = Some(Arc::new(scope));
        self
    }

    /// Where the pages behind a problem's `type` are: a path, under which the layer serves them itself, or an address elsewhere.
    #[must_use]
    pub fn with_problems(mut self, base: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.shared).problems = base.into();
        self
    }
}

impl<S> Layer<S> for RefrainLayer {
    type Service = RefrainService<S>;

    fn layer(&self, inner: S) -> RefrainService<S> {
        RefrainService {
            inner,
            shared: self.shared.clone(),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("engine", &self.engine)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

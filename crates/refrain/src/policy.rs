//! Policy: which operations are guarded, and how.
//!
//! A [`Policy`] is resolved once and is immutable. It comes from `refrain.toml` through [`File`], or from Rust code.
//! [`Policy::find`] returns the operation of a request; a request without one is unguarded and streams through
//! untouched.
//!
//! ```
//! use refrain::policy::{Class, Operation, Policy};
//!
//! let payments = Operation::new("POST /v1/payments/{id}/capture")?.with_class(Class::Monetary);
//! let policy = Policy::default().with(payments)?;
//!
//! let found = policy.find("POST", "/v1/payments/7/capture").unwrap();
//! assert!(found.operation.required);
//! assert_eq!(found.value("id"), Some(&b"7"[..]));
//! assert_eq!(policy.find("POST", "/anything/else").unwrap().operation.name, "POST *");
//! assert!(policy.find("GET", "/v1/payments/7").is_none());
//! # Ok::<(), refrain::Error>(())
//! ```

#[cfg(feature = "http")]
use std::collections::HashMap;
use std::sync::Arc;

use crate::{
    Error, ErrorKind, Result,
    store::{AnyStore, Store as _},
};

mod address;
pub use address::{Address, redacted};

mod authorization;
pub use authorization::Authorization;

mod class;
pub use class::Class;

#[cfg(feature = "policy-file")]
mod file;
#[cfg(feature = "policy-file")]
pub use file::{
    AccessLogSettings, AccessLogTarget, AuthorizationScheme, ClientAuth, ConfigError, File,
    HostHeader, Network, Problem, ProxySettings, RelaySettings, Secrets, Settings, TlsSettings,
    TraceSettings, WorkerSettings,
};

mod operation;
pub use operation::{
    Duplicates, Ending, KeysKept, Mode, OnStoreFailure, Operation, Paths, ReplayTo, Reply, Statuses,
};

mod outside;

mod pattern;
pub use pattern::Pattern;
#[cfg(feature = "http")]
pub(crate) use pattern::decoded;

mod probe;
pub use probe::Probe;

mod rules;

pub mod schemes;

mod signature;
pub use signature::{Signature, SigningSecret, Unverified};

mod suggest;

mod terms;
pub use terms::Terms;

pub mod units;

mod warning;
pub use warning::{Redelivery, Warning};

/// Maximum number of operations in one policy.
pub const OPERATIONS_MAX: usize = 10_000;

/// Methods that are guarded by default.
const METHODS_DEFAULT: [&str; 2] = ["POST", "PATCH"];

/// Guarded operations, indexed by pattern. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Policy(Arc<PolicyIndex>);

#[derive(Debug)]
struct PolicyIndex {
    /// In the order in which they were given.
    operations: Vec<Arc<Operation>>,
    /// Index of their patterns; leaves are positions in `operations`.
    tree: pattern::Tree,
}

/// Operation that a request matched.
#[derive(Debug, Clone)]
pub struct Match {
    /// The settings that guard the request.
    pub operation: Arc<Operation>,
    /// Percent-decoded values of the pattern's `{name}` segments, in the pattern's order.
    values: Vec<Box<[u8]>>,
}

impl Match {
    /// Returns the percent-decoded value of the pattern's `{name}` segment.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let at = self.operation.pattern.names().position(|n| n == name)?;
        self.values.get(at).map(AsRef::as_ref)
    }
}

impl Policy {
    /// Creates a policy of exactly these operations. Requests that match none of them are unguarded.
    ///
    /// # Errors
    /// If an operation breaks a rule, or two operations match the same requests equally specifically.
    pub fn new(operations: Vec<Operation>) -> Result<Self> {
        if operations.len() > OPERATIONS_MAX {
            let len = operations.len();
            return Err(invalid(format!(
                "the policy has {len} operations, more than the maximum of {OPERATIONS_MAX}"
            )));
        }
        for operation in &operations {
            if let Some(fault) = rules::faults(operation).into_iter().next() {
                let (name, message, help) = (&operation.name, fault.message, fault.help);
                return Err(invalid(format!("operation `{name}`: {message}; {help}")));
            }
        }
        let (policy, clashes) = Self::build(operations);
        match clashes.first() {
            None => Ok(policy),
            Some(&(first, second)) => {
                let (first, second) = (&policy.0.operations[first], &policy.0.operations[second]);
                Err(invalid(format!(
                    "operations `{}` and `{}` match the same requests; {}",
                    first.name,
                    second.name,
                    clash_help(first, second)
                )))
            }
        }
    }

    /// Adds one operation. It replaces those with the same path and no further methods.
    ///
    /// # Errors
    /// As for [`Policy::new`].
    pub fn with(self, operation: Operation) -> Result<Self> {
        let covers = |other: &Operation| {
            let (pattern, paths) = (&operation.pattern, operation.paths);
            paths == other.paths && pattern.covers(&other.pattern, paths)
        };
        let mut operations: Vec<_> = self
            .operations()
            .filter(|other| !covers(other))
            .cloned()
            .collect();
        operations.push(operation);
        Self::new(operations)
    }

    /// Returns the guarded operation of a request; `None` means unguarded.
    ///
    /// The most specific pattern wins, segment by segment from the left: literal, then `{name}`, then the rest, then
    /// `*` alone. If two patterns have the same path, one that names the method wins over one for any method.
    /// The query is ignored. So is case, unless an operation [compares it](Paths).
    ///
    /// Servers disagree about `//`, `.` and `..`, encoded slashes and `;parameters`.
    /// A path that contains any of these is interpreted in every way a server might, and the strictest operation found
    /// applies, so no spelling bypasses a guard. The same goes for a path whose case differs from the pattern's.
    #[must_use]
    pub fn find(&self, method: &str, path: &str) -> Option<Match> {
        if self.0.tree.is_pathless() {
            let found = self.search(method, &Vec::new(), Paths::CaseInsensitive)?;
            return self.matched(found, &Vec::new());
        }
        pattern::readings(path)
            .iter()
            .flat_map(|reading| self.find_reading(method, reading))
            .flatten()
            .max_by_key(|found| found.operation.strictness())
    }

    /// Returns every operation, unguarded ones included, in the order in which they were given.
    pub fn operations(&self) -> impl ExactSizeIterator<Item = &Operation> {
        self.0.operations.iter().map(AsRef::as_ref)
    }

    /// Checks that `store` can keep the guarantees of this policy.
    ///
    /// A store that [may lose](crate::store::Guarantees::lossy_failover) acknowledged writes could grant a lost claim
    /// again, and the operation would run twice. Such a store is rejected for at-most-once operations that do not set
    /// [`accept_lossy_claims`](Operation::accept_lossy_claims).
    /// The proxy checks this at start-up; with the tower layer, check it where the layer is created:
    ///
    /// ```
    /// use refrain::{Engine, policy::Policy, store::Memory};
    ///
    /// let (engine, policy) = (Engine::new(Memory::new()), Policy::default());
    /// policy.check_store(engine.store())?;
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the operation and the reason why claims may be lost.
    pub fn check_store(&self, store: &AnyStore) -> Result<()> {
        if !store.guarantees().lossy_failover {
            return Ok(());
        }
        let Some(operation) = self.operations().find(|it| it.needs_every_claim()) else {
            return Ok(());
        };
        let (name, losses) = (&operation.name, store.losses());
        let why = match losses.is_empty() {
            true => String::new(),
            false => format!(" ({losses})"),
        };
        let message = format!(
            "operation `{name}` is at-most-once, but the store may lose granted claims{why}: \
             a retry after a lost claim would execute again; make the store durable, \
             write guarantee = \"at-least-once\", or set accept_lossy_claims = true"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Returns warnings about valid but probably unintended settings, such as a retention that ends before a sender
    /// stops retrying.
    pub fn warnings(&self) -> impl Iterator<Item = Warning> {
        self.operations().flat_map(warning::warnings)
    }

    /// Returns the operations that apply to no request below `prefix`: no path there matches, or a more specific
    /// operation matches the same paths.
    #[cfg(feature = "http")]
    pub(crate) fn out_of_reach<'p>(
        &'p self,
        prefix: &'p Pattern,
    ) -> impl Iterator<Item = &'p Operation> {
        let mut alike: HashMap<_, Vec<&Operation>> = HashMap::new();
        for operation in self.operations() {
            // With case, because in another case than the request's a pattern does not shadow others.
            let below = operation.pattern.below(prefix, Paths::CaseSensitive);
            if let Some(below) = below {
                alike.entry(below).or_default().push(operation);
            }
        }
        self.operations().filter(move |operation| {
            let Some(below) = operation.pattern.below(prefix, operation.paths) else {
                return true;
            };
            let mut others = alike.get(&below).into_iter().flatten();
            others.any(|other| other.shadows(operation))
        })
    }

    /// Returns the match of a case-sensitive search, if it may differ, and the match of a case-insensitive one.
    fn find_reading(&self, method: &str, reading: &pattern::PathReading<'_>) -> [Option<Match>; 2] {
        let Some(found) = self.search(method, reading, Paths::CaseInsensitive) else {
            return [None, None];
        };
        let is_spelled = self.0.operations[found].pattern.is_written_as(reading);
        let spelled = match is_spelled {
            true => None,
            false => self.search(method, reading, Paths::CaseSensitive),
        };
        let spelled = spelled.and_then(|found| self.matched(found, reading));
        [spelled, self.matched(found, reading)]
    }

    /// Finds the most specific operation. With `CaseSensitive`, all patterns compare case, regardless of their setting.
    fn search(
        &self,
        method: &str,
        reading: &pattern::PathReading<'_>,
        paths: Paths,
    ) -> Option<usize> {
        let is_sensitive = |at: usize| self.0.operations[at].paths == Paths::CaseSensitive;
        let pick = |slot: &[usize]| {
            let fits = |at: &usize| {
                let pattern = &self.0.operations[*at].pattern;
                let is_strict = paths == Paths::CaseSensitive || is_sensitive(*at);
                (pattern.names_method(method) || pattern.is_any_method())
                    && (!is_strict || pattern.is_written_as(reading))
            };
            let names = |at: usize| self.0.operations[at].pattern.names_method(method);
            let fitting = slot.iter().copied().filter(fits);
            fitting.max_by_key(|&at| (is_sensitive(at), names(at)))
        };
        self.0.tree.find(reading, &pick)
    }

    fn matched(&self, at: usize, reading: &pattern::PathReading<'_>) -> Option<Match> {
        let operation = self.0.operations[at].clone();
        if !operation.guarded {
            return None;
        }
        let values = operation.pattern.values(reading);
        Some(Match { operation, values })
    }

    /// Builds the policy, and lists the pairs of operations that match the same requests.
    fn build(operations: Vec<Operation>) -> (Self, Vec<(usize, usize)>) {
        let mut tree = pattern::Tree::default();
        let mut clashes = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            let slot = tree.slot(&operation.pattern);
            let is_same = |&&other: &&usize| {
                let (other, paths) = (&operations[other], operation.paths);
                other.paths == paths
                    && other.pattern.shares_method(&operation.pattern)
                    && other.pattern.shares_path(&operation.pattern, paths)
            };
            clashes.extend(slot.iter().find(is_same).map(|&first| (first, at)));
            slot.push(at);
        }
        let operations = operations.into_iter().map(Arc::new).collect();
        (Self(Arc::new(PolicyIndex { operations, tree })), clashes)
    }
}

impl Default for Policy {
    /// Guards POST and PATCH with default settings.
    fn default() -> Self {
        let operations = default_operations(&Operation::default(), &[]);
        Self::build(operations).0
    }
}

/// `POST *` and `PATCH *` with the settings of `base`, unless one of `others` matches all paths of that method.
fn default_operations(base: &Operation, others: &[Operation]) -> Vec<Operation> {
    let speaks = |other: &Operation, method| other.pattern.is_every_path_of(method);
    METHODS_DEFAULT
        .into_iter()
        .filter(|method| !others.iter().any(|other| speaks(other, method)))
        .map(|method| base.clone().at(Pattern::every_path(method)))
        .collect()
}

/// Fix suggested for two operations that match the same requests.
fn clash_help(first: &Operation, second: &Operation) -> &'static str {
    let differs_in_case = !first
        .pattern
        .shares_path(&second.pattern, Paths::CaseSensitive);
    match differs_in_case {
        true => {
            "remove one of the two, or write paths = \"case-sensitive\" if the service distinguishes upper and lower case"
        }
        false => "remove one of the two operations",
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

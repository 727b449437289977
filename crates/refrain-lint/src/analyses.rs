//! Analyses that rules use by name, for what a pattern cannot express.
//!
//! Each analyses one file with facts of the whole project, and returns places and reasons.

use crate::{project::Project, rule::Severity};

mod acks;
mod calls;
mod claims;
mod cut;
mod insert;
mod keys;
mod locks;
mod marks;
mod money;
mod outcomes;
mod publish;
mod resend;
mod retries;
mod scope;
mod ttl;
mod work;

/// A violation found by an analysis or a pattern, before it is attributed to a rule.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) at: usize,
    /// Severity instead of the rule's; only a lower one has an effect.
    pub(crate) severity: Option<Severity>,
    /// Details about this place, in addition to the rule's texts.
    pub(crate) note: String,
}

impl Hit {
    pub(crate) fn new(at: usize, note: impl Into<String>) -> Self {
        Self {
            at,
            severity: None,
            note: note.into(),
        }
    }

    pub(crate) fn with_severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }
}

/// Analyses one file of the project, given by its index.
pub(crate) type Analysis = fn(&Project, usize) -> Vec<Hit>;

/// All analyses by name.
pub(crate) const ANALYSES: &[(&str, Analysis)] = &[
    ("ack-before-work", acks::before_work),
    ("claim-that-is-not-atomic", claims::check_then_act),
    ("error-dropped", outcomes::dropped),
    ("error-kept", outcomes::kept),
    ("insert-without-conflict", insert::without_conflict),
    ("key-cut", cut::cut),
    ("key-from-clock", keys::from_clock),
    ("key-in-retry-loop", keys::in_retry_loop),
    ("key-of-nobody", scope::of_nobody),
    ("key-per-attempt", keys::per_attempt),
    ("mark-before-work", marks::before_work),
    ("money-without-key", money::without_key),
    ("publish-in-transaction", publish::in_transaction),
    ("resend-on-closed", resend::on_closed),
    ("retried-post", retries::without_key),
    ("ttl-and-retries", ttl::shorter),
    ("unlock-without-owner", locks::without_owner),
];

/// Analysis with this name.
pub(crate) fn named(name: &str) -> Option<Analysis> {
    let found = ANALYSES.iter().find(|(known, _)| *known == name);
    found.map(|(_, analysis)| *analysis)
}

/// Whether an item runs in a database transaction.
pub(crate) fn in_transaction(project: &Project, file: usize, item: usize) -> bool {
    publish::transaction(project, file, item).is_some()
}

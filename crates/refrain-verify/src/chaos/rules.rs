//! The active rules, and which of them hits a request.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::{
    dice,
    rule::{BadRule, Fault, Rule},
};

/// Maximum number of rules.
pub const RULES_MAX: usize = 1_000;

/// The active rules.
#[derive(Debug)]
pub struct Rules {
    seed: u64,
    inner: Mutex<RuleList>,
}

#[derive(Debug, Default)]
struct RuleList {
    rules: Vec<Listed>,
    /// Number of the last rule. Numbers are not reused, because the random choices depend on them.
    last: u64,
}

/// A rule with its number and counters.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// Number of the rule.
    pub number: u64,
    /// The rule itself.
    pub rule: Rule,
    /// Number of requests it matched.
    pub matched: u64,
    /// Number of matched requests that it hit.
    pub hit: u64,
}

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            inner: Mutex::default(),
        }
    }

    /// Returns the random seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Appends a rule; returns its number.
    ///
    /// # Errors
    /// [`BadRule`] when there are [`RULES_MAX`] rules already.
    pub fn add(&self, rule: Rule) -> Result<u64, BadRule> {
        let mut inner = self.lock();
        if inner.rules.len() >= RULES_MAX {
            return Err(BadRule::new(format!(
                "the limit of {RULES_MAX} rules is reached; delete some first"
            )));
        }
        inner.last += 1;
        let number = inner.last;
        inner.rules.push(Listed {
            number,
            rule,
            matched: 0,
            hit: 0,
        });
        Ok(number)
    }

    /// Returns all rules, in order.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        self.lock().rules.clone()
    }

    /// Removes a rule; returns `false` if no rule has this number.
    pub fn remove(&self, number: u64) -> bool {
        let mut inner = self.lock();
        let before = inner.rules.len();
        inner.rules.retain(|listed| listed.number != number);
        inner.rules.len() < before
    }

    /// Removes all rules; returns how many there were.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut self.lock().rules).len()
    }

    /// Returns the fault of the first rule that matches and that the random choice selects. Updates the counters.
    pub(super) fn judge(&self, method: &str, path: &str) -> Option<(u64, Fault)> {
        let mut inner = self.lock();
        for listed in &mut inner.rules {
            if !listed.rule.matches(method, path) {
                continue;
            }
            let n = listed.matched;
            listed.matched += 1;
            let is_spent = listed.rule.times.is_some_and(|times| listed.hit >= times);
            if !is_spent && dice::hits(self.seed, listed.number, n, listed.rule.share) {
                listed.hit += 1;
                return Some((listed.number, listed.rule.fault));
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, RuleList> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

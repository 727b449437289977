//! The rules in force, and which of them a request falls under.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::{
    dice,
    rule::{BadRule, Fault, Rule},
};

/// The most rules at a time.
pub const RULES_MAX: usize = 1_000;

/// The rules in force.
#[derive(Debug)]
pub struct Rules {
    seed: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    rules: Vec<Listed>,
    /// Numbers are not used again, so that a rule that came later does not fall as one that is gone.
    last: u64,
}

/// A rule, what it is called, and what it did so far.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// What it is called.
    pub number: u64,
    /// What it says.
    pub rule: Rule,
    /// How many requests it matched.
    pub matched: u64,
    /// To how many of them it was done.
    pub hit: u64,
}

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            inner: Mutex::default(),
        }
    }

    /// What the dice go by.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// One more rule, behind the others; answers what it is called.
    ///
    /// # Errors
    /// [`BadRule`] where there are too many.
    pub fn add(&self, rule: Rule) -> Result<u64, BadRule> {
        let mut inner = self.lock();
        if inner.rules.len() >= RULES_MAX {
            return Err(BadRule::new(format!(
                "there are {RULES_MAX} rules already; clear some first"
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

    /// All rules, in their order.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        self.lock().rules.clone()
    }

    /// Takes one away; `false` where there is none of this number.
    pub fn remove(&self, number: u64) -> bool {
        let mut inner = self.lock();
        let before = inner.rules.len();
        inner.rules.retain(|listed| listed.number != number);
        inner.rules.len() < before
    }

    /// Takes all away; answers how many there were.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut self.lock().rules).len()
    }

    /// What is done to this request: the first rule that matches and whose dice fall so. Counts.
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

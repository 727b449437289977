//! [`Audit`]: compares effects with what clients observed.

use std::{collections::BTreeMap, fmt};

use refrain::Guarantee;

use super::Effect;

/// The final answer that a client received for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    /// Success: the original response or a replay.
    Completed,
    /// Failure, and the failure is the stored outcome.
    Failed,
    /// No effect, and the key is free again.
    Released,
    /// Unknown outcome, or no answer at all.
    Unknown,
    /// Refused as a duplicate: in flight, key reused by another request, or past retention.
    Refused,
}

/// What clients observed, to be compared with a [`Ledger`](crate::Ledger).
///
/// ```
/// use refrain::Guarantee;
/// use refrain_testkit::{Audit, Ledger, Seen};
///
/// let ledger = Ledger::in_memory();
/// let mut audit = Audit::new(Guarantee::AtMostOnce);
/// ledger.record("order-7", "1.1.00000007")?;
/// ledger.record("order-7", "1.2.00000009")?;
/// audit.saw("order-7", Seen::Completed);
/// let violations = audit.check(&ledger.all()?);
/// assert_eq!(violations[0].invariant, "I1");
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Audit {
    guarantee: Guarantee,
    keys: BTreeMap<String, Answers>,
}

/// What all clients observed for one key.
#[derive(Debug, Clone, Default)]
struct Answers {
    seen: Vec<Seen>,
    /// Attempts that were reported as released without effect.
    released: Vec<String>,
}

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant: `I1`, `I9` or `I14`.
    pub invariant: &'static str,
    /// The idempotency key.
    pub key: String,
    /// Description of the violation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: key {:?}: {}", self.invariant, self.key, self.what)
    }
}

impl Audit {
    /// Returns an audit of operations with this guarantee.
    #[must_use]
    pub fn new(guarantee: Guarantee) -> Self {
        Self {
            guarantee,
            keys: BTreeMap::new(),
        }
    }

    /// Records an answer that a client received.
    pub fn saw(&mut self, key: &str, seen: Seen) {
        self.answers(key).seen.push(seen);
    }

    /// Records that this attempt was reported as released without effect.
    pub fn saw_released(&mut self, key: &str, attempt: impl ToString) {
        let answers = self.answers(key);
        answers.seen.push(Seen::Released);
        answers.released.push(attempt.to_string());
    }

    /// Returns the number of surplus effects: those after the first of each key. At-least-once allows them.
    #[must_use]
    pub fn duplicates(&self, effects: &[Effect]) -> usize {
        let surplus = |effects: Vec<&Effect>| effects.len().saturating_sub(1);
        by_key(effects).into_values().map(surplus).sum()
    }

    /// Compares `effects` with what clients observed; returns no violation if all invariants hold.
    ///
    /// Call it after every client has its last answer or has given up ([`Seen::Unknown`]).
    #[must_use]
    pub fn check(&self, effects: &[Effect]) -> Vec<Violation> {
        let mut by_key = by_key(effects);
        for key in self.keys.keys() {
            by_key.entry(key).or_default();
        }
        let nothing = Answers::default();
        let check_key = |(key, effects): (&str, Vec<&Effect>)| {
            let answers = self.keys.get(key).unwrap_or(&nothing);
            let found = [
                self.at_most_one(&effects),
                answers.released_without_effect(&effects),
                answers.none_swallowed(&effects),
                answers.balanced(&effects),
            ];
            let violation = |(invariant, what)| Violation {
                invariant,
                key: key.to_owned(),
                what,
            };
            found
                .into_iter()
                .flatten()
                .map(violation)
                .collect::<Vec<_>>()
        };
        by_key.into_iter().flat_map(check_key).collect()
    }

    fn answers(&mut self, key: &str) -> &mut Answers {
        self.keys.entry(key.to_owned()).or_default()
    }

    fn at_most_one(&self, effects: &[&Effect]) -> Option<(&'static str, String)> {
        let allowed = self.guarantee == Guarantee::AtLeastOnce || effects.len() <= 1;
        (!allowed).then(|| {
            let attempts: Vec<_> = effects.iter().map(|effect| &*effect.attempt).collect();
            let what = format!(
                "it took effect {} times, by the attempts {}",
                effects.len(),
                attempts.join(", ")
            );
            ("I1", what)
        })
    }
}

impl Answers {
    fn saw(&self, seen: Seen) -> bool {
        self.seen.contains(&seen)
    }

    fn released_without_effect(&self, effects: &[&Effect]) -> Option<(&'static str, String)> {
        let released = |effect: &&&Effect| self.released.contains(&effect.attempt);
        if let Some(effect) = effects.iter().find(released) {
            let attempt = &effect.attempt;
            let what = format!("attempt {attempt} was released, but took effect");
            return Some(("I9", what));
        }
        let only_released = self.saw(Seen::Released) && !self.may_have_effect();
        (only_released && !effects.is_empty()).then(|| {
            (
                "I9",
                "every attempt was released, but it took effect".into(),
            )
        })
    }

    /// I9: every request was refused as a duplicate, but no original ever ran.
    fn none_swallowed(&self, effects: &[&Effect]) -> Option<(&'static str, String)> {
        let only_refused = self.saw(Seen::Refused) && self.seen.iter().all(|s| *s == Seen::Refused);
        (only_refused && effects.is_empty()).then(|| {
            let what = "every request was rejected as a duplicate, but none was ever executed";
            ("I9", what.into())
        })
    }

    fn balanced(&self, effects: &[&Effect]) -> Option<(&'static str, String)> {
        let what = match effects.is_empty() {
            true if self.saw(Seen::Completed) => {
                "a client got a success response, but it never took effect"
            }
            false if self.saw(Seen::Failed) && !self.may_have_effect() => {
                "it failed, but took effect"
            }
            false if !self.saw(Seen::Released) && !self.may_have_effect() => {
                "it took effect, but no client got a success response or an unknown outcome"
            }
            _ => return None,
        };
        Some(("I14", what.into()))
    }

    /// Whether a client saw an answer that allows an effect.
    fn may_have_effect(&self) -> bool {
        self.saw(Seen::Completed) || self.saw(Seen::Unknown)
    }
}

fn by_key(effects: &[Effect]) -> BTreeMap<&str, Vec<&Effect>> {
    let mut keys: BTreeMap<&str, Vec<&Effect>> = BTreeMap::new();
    for effect in effects {
        keys.entry(&effect.key).or_default().push(effect);
    }
    keys
}

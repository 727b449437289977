//! Effects held against what clients were told.

use std::{collections::BTreeMap, fmt};

use refrain::Guarantee;

use super::Effect;

/// What a client was told about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    /// It succeeded: first-hand, or replayed.
    Completed,
    /// It ended without success, and that is the outcome that is kept.
    Failed,
    /// It had no effect, and the key is free again.
    Released,
    /// Whether it took effect is not known; also when no answer came at all.
    Unknown,
    /// It was refused as a duplicate: in flight, another request, past retention.
    Refused,
}

/// What clients saw, to be held against a [`Ledger`](crate::Ledger).
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

/// What all clients together saw of one key.
#[derive(Debug, Clone, Default)]
struct Answers {
    seen: Vec<Seen>,
    /// Attempts that were said to have had no effect.
    released: Vec<String>,
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which one: `I1`, `I9` or `I14`.
    pub invariant: &'static str,
    /// Under which key.
    pub key: String,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: key {:?}: {}", self.invariant, self.key, self.what)
    }
}

impl Audit {
    /// An audit of operations that promise this.
    #[must_use]
    pub fn new(guarantee: Guarantee) -> Self {
        Self {
            guarantee,
            keys: BTreeMap::new(),
        }
    }

    /// Notes what a client was told.
    pub fn saw(&mut self, key: &str, seen: Seen) {
        self.answers(key).seen.push(seen);
    }

    /// Notes that this very attempt was said to have had no effect.
    pub fn saw_released(&mut self, key: &str, attempt: impl ToString) {
        let answers = self.answers(key);
        answers.seen.push(Seen::Released);
        answers.released.push(attempt.to_string());
    }

    /// How many effects were one too many. Under at-least-once that is allowed, and counted.
    #[must_use]
    pub fn duplicates(&self, effects: &[Effect]) -> usize {
        let surplus = |effects: Vec<&Effect>| effects.len().saturating_sub(1);
        by_key(effects).into_values().map(surplus).sum()
    }

    /// Holds `effects` against what was seen; empty when all is well.
    ///
    /// To be called when every client has its last answer, or has given up (which is [`Seen::Unknown`]).
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
            let what = format!("the attempt {attempt} was released and took effect");
            return Some(("I9", what));
        }
        let only_released = self.saw(Seen::Released) && !self.may_have_effect();
        (only_released && !effects.is_empty()).then(|| {
            (
                "I9",
                "every attempt was released, and it took effect".into(),
            )
        })
    }

    /// Refused as a duplicate, though there is no original that anybody heard of.
    fn none_swallowed(&self, effects: &[&Effect]) -> Option<(&'static str, String)> {
        let only_refused = self.saw(Seen::Refused) && self.seen.iter().all(|s| *s == Seen::Refused);
        (only_refused && effects.is_empty()).then(|| {
            let what = "every request was refused as a duplicate, and none was ever run";
            ("I9", what.into())
        })
    }

    fn balanced(&self, effects: &[&Effect]) -> Option<(&'static str, String)> {
        let what = match effects.is_empty() {
            true if self.saw(Seen::Completed) => {
                "a client was told that it succeeded, and it never took effect"
            }
            false if self.saw(Seen::Failed) && !self.may_have_effect() => {
                "it ended without success, and it took effect"
            }
            false if !self.saw(Seen::Released) && !self.may_have_effect() => {
                "it took effect, and no client was told of a success or a doubt"
            }
            _ => return None,
        };
        Some(("I14", what.into()))
    }

    /// Whether anything was seen that an effect can stand behind.
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

//! A step and its settings.

use std::{fmt, pin::Pin, sync::Arc};

use serde::Serialize;

use super::{
    Failure, StepError,
    log::{EntryEnding, EntryKind, Log},
};
use crate::{
    Guarantee, Intent, Key,
    engine::{Finding, Probe},
    fingerprint::canonical,
    record::Doubt,
};

/// Maximum length of the name of a step or an operation, in bytes.
pub const NAME_BYTES_MAX: usize = 100;

/// One step of an operation. A name is enough: `steps.step("charge", …)`.
#[derive(Debug, Clone)]
pub struct Step {
    pub(super) name: String,
    pub(super) guarantee: Guarantee,
    pub(super) input: StepInput,
    ask: Option<ProbeCallback>,
}

/// Input: none, its canonical JSON, or the error of serialising it.
pub(super) type StepInput = Option<Result<String, String>>;

/// Callback that asks the downstream system for the result of the step, or whether there is none.
#[derive(Clone)]
struct ProbeCallback(Arc<dyn Fn(Key) -> ProbeFuture + Send + Sync>);

type ProbedResult = Result<Option<Vec<u8>>, Failure>;
type ProbeFuture = Pin<Box<dyn Future<Output = ProbedResult> + Send>>;

impl Step {
    /// Creates a step that is retried until it demonstrably succeeds, under the same key each time.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            guarantee: Guarantee::AtLeastOnce,
            input: None,
            ask: None,
        }
    }

    /// Makes the step at-most-once, for an effect in a system without idempotency keys.
    /// An unknown outcome stops the operation with [`StepError::Indeterminate`].
    #[must_use]
    pub fn at_most_once(self) -> Self {
        Self {
            guarantee: Guarantee::AtMostOnce,
            ..self
        }
    }

    /// Sets the input of the step. Another input under the same operation is a [mismatch](StepError::Mismatch), not a
    /// replay.
    #[must_use]
    pub fn with_input(self, input: &impl Serialize) -> Self {
        Self {
            input: Some(canonical_input(input)),
            ..self
        }
    }

    /// Sets a probe that resolves an unknown outcome: `Some` is the result, `None` means that it never happened,
    /// and an error that it is still unknown.
    ///
    /// The next run or a background task calls it, after the attempt can no longer take effect (`settle_after` of the
    /// terms).
    #[must_use]
    pub fn with_probe<T, F, A>(self, ask: F) -> Self
    where
        T: Serialize,
        F: Fn(Key) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<T>, Failure>> + Send + 'static,
    {
        let ask = move |key: Key| -> ProbeFuture {
            let asking = ask(key);
            Box::pin(async move {
                let found = asking.await?;
                Ok(found.map(|found| serde_json::to_vec(&found)).transpose()?)
            })
        };
        Self {
            ask: Some(ProbeCallback(Arc::new(ask))),
            ..self
        }
    }

    /// Returns the probe for this step's record in a place.
    pub(super) fn probe(&self, log: &Log, at: usize) -> Option<Arc<dyn Probe>> {
        let ask = self.ask.clone()?;
        Some(Arc::new(StepProbe {
            ask,
            log: log.clone(),
            at,
            name: self.name.clone(),
        }))
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Step {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl fmt::Debug for ProbeCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbeCallback")
    }
}

/// The probe of a step, as the engine expects it.
#[derive(Debug)]
struct StepProbe {
    ask: ProbeCallback,
    log: Log,
    at: usize,
    name: String,
}

impl Probe for StepProbe {
    fn probe<'a>(
        &'a self,
        _intent: &'a Intent,
        _doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(async move {
            let key = self.log.key(EntryKind::Step, &self.name);
            match (self.ask.0)(key).await {
                Ok(Some(body)) => {
                    let ending = EntryEnding::Done(&body);
                    Finding::Happened(self.log.pack(self.at, EntryKind::Step, &self.name, ending))
                }
                Ok(None) => Finding::NeverHappened,
                Err(failure) => {
                    tracing::warn!(step = self.name, %failure, "the probe of a step failed");
                    Finding::Unknown
                }
            }
        })
    }
}

/// Canonical JSON of an input: member order and white space do not matter.
pub(super) fn canonical_input(input: &impl Serialize) -> Result<String, String> {
    let json = serde_json::to_vec(input).map_err(|error| error.to_string())?;
    canonical(&json).ok_or_else(|| "it has no canonical form as JSON".into())
}

/// Checks a name, which is stored in records and shown to operators.
pub(super) fn check_name(name: &str) -> Result<(), StepError> {
    let is_plain = |char: char| char.is_ascii_graphic() || char == ' ';
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(StepError::Invalid(format!(
            "invalid name `{}`: use 1 to {NAME_BYTES_MAX} letters, digits and other visible ASCII",
            name.escape_debug()
        ))),
    }
}

/// Returns the input, or its error.
pub(super) fn check_input<'a>(
    what: &str,
    input: &'a StepInput,
) -> Result<Option<&'a str>, StepError> {
    match input {
        None => Ok(None),
        Some(Ok(input)) => Ok(Some(input)),
        Some(Err(why)) => Err(StepError::Invalid(format!("the input of {what}: {why}"))),
    }
}

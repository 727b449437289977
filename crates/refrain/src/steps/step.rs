//! One step, and how it differs from the others.

use std::{fmt, pin::Pin, sync::Arc};

use serde::Serialize;

use super::{
    Failure, StepError,
    log::{Ending, Kind, Log},
};
use crate::{
    Guarantee, Intent, Key,
    engine::{Finding, Probe},
    fingerprint::canonical,
    record::Doubt,
};

/// The longest name of a step or an operation, in bytes.
pub const NAME_BYTES_MAX: usize = 100;

/// One step of an operation. A name alone will do: `steps.step("charge", …)`.
#[derive(Debug, Clone)]
pub struct Step {
    pub(super) name: String,
    pub(super) guarantee: Guarantee,
    pub(super) input: Input,
    ask: Option<Ask>,
}

/// What something is begun with: none, its canonical form, or why it has none.
pub(super) type Input = Option<Result<String, String>>;

/// Asks the system that the step may have changed: the result, or that there is none.
#[derive(Clone)]
struct Ask(Arc<dyn Fn(Key) -> Asking + Send + Sync>);

type Found = Result<Option<Vec<u8>>, Failure>;
type Asking = Pin<Box<dyn Future<Output = Found> + Send>>;

impl Step {
    /// A step that is run again until it has demonstrably succeeded, under the same key each time.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            guarantee: Guarantee::AtLeastOnce,
            input: None,
            ask: None,
        }
    }

    /// For an effect in a system that takes no key: what may have happened is not run again.
    /// What could not be learnt stops the operation with [`StepError::Indeterminate`].
    #[must_use]
    pub fn at_most_once(self) -> Self {
        Self {
            guarantee: Guarantee::AtMostOnce,
            ..self
        }
    }

    /// What the step is done with. Another input under the same operation is a [mismatch](StepError::Mismatch), and no replay.
    #[must_use]
    pub fn with_input(self, input: &impl Serialize) -> Self {
        Self {
            input: Some(canonical_input(input)),
            ..self
        }
    }

    /// Asks what became of the step once that is in doubt: `Some` is its result, `None` says that it never happened,
    /// and an error that it is still not known.
    ///
    /// It is not asked before the attempt can no longer act (`settle_after` of the terms), by the next run or in the background.
    #[must_use]
    pub fn with_probe<T, F, A>(self, ask: F) -> Self
    where
        T: Serialize,
        F: Fn(Key) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<T>, Failure>> + Send + 'static,
    {
        let ask = move |key: Key| -> Asking {
            let asking = ask(key);
            Box::pin(async move {
                let found = asking.await?;
                Ok(found.map(|found| serde_json::to_vec(&found)).transpose()?)
            })
        };
        Self {
            ask: Some(Ask(Arc::new(ask))),
            ..self
        }
    }

    /// The probe for the record of this step in a place.
    pub(super) fn probe(&self, log: &Log, at: usize) -> Option<Arc<dyn Probe>> {
        let ask = self.ask.clone()?;
        Some(Arc::new(Asked {
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

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

/// The probe of a step, as the engine takes it.
#[derive(Debug)]
struct Asked {
    ask: Ask,
    log: Log,
    at: usize,
    name: String,
}

impl Probe for Asked {
    fn probe<'a>(
        &'a self,
        _intent: &'a Intent,
        _doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(async move {
            let key = self.log.key(Kind::Step, &self.name);
            match (self.ask.0)(key).await {
                Ok(Some(body)) => {
                    let ending = Ending::Done(&body);
                    Finding::Happened(self.log.pack(self.at, Kind::Step, &self.name, ending))
                }
                Ok(None) => Finding::NeverHappened,
                Err(failure) => {
                    tracing::warn!(step = self.name, %failure, "what became of a step could not be learnt");
                    Finding::Unknown
                }
            }
        })
    }
}

/// The order of members, and white space, do not make another input.
pub(super) fn canonical_input(input: &impl Serialize) -> Result<String, String> {
    let json = serde_json::to_vec(input).map_err(|error| error.to_string())?;
    canonical(&json).ok_or_else(|| "it has no canonical form as JSON".into())
}

/// Checks a name: it is kept in records and shown to people.
pub(super) fn check_name(name: &str) -> Result<(), StepError> {
    let is_plain = |char: char| char.is_ascii_graphic() || char == ' ';
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(StepError::Invalid(format!(
            "`{}` is no name: take 1 to {NAME_BYTES_MAX} letters, digits and other visible ASCII",
            name.escape_debug()
        ))),
    }
}

/// The input, or what is wrong with it.
pub(super) fn check_input<'a>(what: &str, input: &'a Input) -> Result<Option<&'a str>, StepError> {
    match input {
        None => Ok(None),
        Some(Ok(input)) => Ok(Some(input)),
        Some(Err(why)) => Err(StepError::Invalid(format!("the input of {what}: {why}"))),
    }
}

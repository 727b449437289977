//! Opens an operation: begins it, or continues after the last finished step.

use std::{collections::VecDeque, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    StepError, Steps,
    log::{self, EntryKind, Log, RecordedEntry},
    step::{StepInput, canonical_input, check_input, check_name},
};
use crate::{
    Engine, Guarantee, Key, Scope, Terms,
    backoff::Backoff,
    record::{Record, State},
    store::Store,
};

/// Default maximum number of steps of an operation.
pub const STEPS_MAX: usize = 100;
/// Default maximum size of a result, in bytes of JSON.
pub const RESULT_BYTES_MAX: usize = 1 << 20;
const DAY: Duration = Duration::from_hours(24);

/// An operation in several steps, with its terms.
///
/// ```
/// use refrain::{Key, steps::Opening};
/// let opening = Opening::new("book-ride", Key::new("order-7")?).with_input(&("Anna", 20));
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Opening {
    name: String,
    key: Key,
    scope: Scope,
    input: StepInput,
    settings: OperationSettings,
}

/// Settings shared by all steps of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct OperationSettings {
    pub(super) terms: Terms,
    pub(super) tries_max: u32,
    pub(super) backoff: Backoff,
    pub(super) steps_max: usize,
    pub(super) result_bytes_max: usize,
    lasts_max: Duration,
}

/// Result of opening an operation.
#[derive(Debug)]
pub enum Opened<'a, R> {
    /// The operation is not finished: run its steps.
    Open(Box<Steps<'a>>),
    /// The operation is finished, with this result.
    Finished(R),
}

impl Opening {
    /// Names an operation under a key.
    ///
    /// The key must be the same whenever the same effect is intended: for a request behind the layer, its `RecordId`;
    /// for a message, the key of its `Job`.
    pub fn new(name: impl Into<String>, key: impl Into<Key>) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            scope: Scope::none(),
            input: None,
            settings: OperationSettings::default(),
        }
    }

    /// Sets the scope of the key, such as a tenant.
    #[must_use]
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Sets the input of the operation. Another input under the same key is a [mismatch](StepError::Mismatch).
    #[must_use]
    pub fn with_input(self, input: &impl Serialize) -> Self {
        Self {
            input: Some(canonical_input(input)),
            ..self
        }
    }

    /// Sets lease, wait, retention and other terms. Default: [`Terms::default`] with an `attempts_max` of 100.
    /// The guarantee is set per step.
    #[must_use]
    pub fn with_terms(mut self, terms: Terms) -> Self {
        self.settings.terms = terms;
        self
    }

    /// Sets the maximum number of tries of a step in one run, and the backoff between them. Default: 3 tries.
    #[must_use]
    pub fn with_tries(mut self, tries_max: u32, backoff: Backoff) -> Self {
        self.settings.tries_max = tries_max.max(1);
        self.settings.backoff = backoff;
        self
    }

    /// Sets the maximum duration of the operation over all runs. Default: 7 days.
    /// Records of steps are kept longer than the operation's result by this time.
    #[must_use]
    pub fn with_lasts_max(mut self, lasts_max: Duration) -> Self {
        self.settings.lasts_max = lasts_max;
        self
    }

    /// Sets the maximum number of steps. Default: [`STEPS_MAX`].
    #[must_use]
    pub fn with_steps_max(mut self, steps_max: usize) -> Self {
        self.settings.steps_max = steps_max;
        self
    }

    /// Sets the maximum size of a result, of a step or the operation, in bytes of JSON. Default: [`RESULT_BYTES_MAX`].
    #[must_use]
    pub fn with_result_bytes_max(mut self, result_bytes_max: usize) -> Self {
        self.settings.result_bytes_max = result_bytes_max;
        self
    }

    /// Reads the entries of earlier runs. Nothing is claimed before the first step.
    ///
    /// # Errors
    /// [`StepError::Undone`] if it was undone, [`StepError::Mismatch`] if it was begun with another input,
    /// [`StepError::Expired`] if its records are past retention, and errors of the store.
    ///
    /// # Cancellation
    /// Safe to drop: it only reads.
    pub async fn open<'a, R: DeserializeOwned>(
        &self,
        engine: &Engine,
    ) -> Result<Opened<'a, R>, StepError> {
        check_name(&self.name)?;
        let input = check_input("the operation", &self.input)?;
        let mut log = Log::new(engine.secret(), &self.scope, &self.name, &self.key, input);
        let known = read(&mut log, engine, self.settings.places_max()).await?;
        if known
            .front()
            .is_some_and(|first| !log.is_same_operation(&first.outcome))
        {
            let what = "the operation".into();
            return Err(StepError::Mismatch { what });
        }
        let end = log.fingerprint(EntryKind::End, "", None);
        match known.iter().find(|entry| entry.fingerprint == end) {
            Some(entry) => finished(entry).map(Opened::Finished),
            None => Ok(Opened::Open(Box::new(Steps::new(
                engine.clone(),
                log,
                self.settings,
                self.name.clone(),
                known,
            )))),
        }
    }
}

/// Returns the result in the last entry.
fn finished<R: DeserializeOwned>(end: &RecordedEntry) -> Result<R, StepError> {
    if let Some(cause) = log::cause(&end.outcome) {
        return Err(StepError::Undone { cause });
    }
    super::value("the operation", &end.outcome.body())
}

/// Reads the finished places in order, and adopts the generation of the first.
async fn read(
    log: &mut Log,
    engine: &Engine,
    places_max: usize,
) -> Result<VecDeque<RecordedEntry>, StepError> {
    let mut known = VecDeque::new();
    while known.len() < places_max {
        let at = known.len();
        let Some(reading) = engine.store().read(log.id(at)).await? else {
            break;
        };
        let Record {
            fingerprint, state, ..
        } = reading.record;
        match state {
            State::Completed { outcome, .. } => {
                log.follow(at, &outcome);
                known.push_back(RecordedEntry {
                    fingerprint,
                    outcome,
                });
            }
            State::Tombstone { .. } => return Err(StepError::Expired),
            State::InFlight { .. } | State::Indeterminate { .. } => break,
        }
    }
    Ok(known)
}

impl Default for OperationSettings {
    fn default() -> Self {
        Self {
            terms: Terms {
                attempts_max: 100,
                ..Terms::default()
            },
            tries_max: 3,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
            steps_max: STEPS_MAX,
            result_bytes_max: RESULT_BYTES_MAX,
            lasts_max: 7 * DAY,
        }
    }
}

impl OperationSettings {
    /// Each step and its undo, the decision to abandon, and the end.
    fn places_max(&self) -> usize {
        self.steps_max.saturating_mul(2).saturating_add(2)
    }

    /// Returns the terms of one record.
    pub(super) fn terms(&self, guarantee: Guarantee) -> Terms {
        Terms {
            guarantee,
            // The first step ends long before the last one, and must be kept until then.
            retention: self.terms.retention.saturating_add(self.lasts_max),
            ..self.terms
        }
    }
}

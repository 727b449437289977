//! Operations in several steps: each step is recorded, a later run continues after the last finished step, and finished
//! steps can be undone.
//!
//! An [`Opening`] identifies the operation; opening it returns [`Steps`]. The code then runs step by step.
//! A finished step returns its recorded result without running. The first unfinished step is claimed and run,
//! with a key for the downstream system that is the same at every attempt.
//! If a step is rejected permanently, the undos of the steps before it run, last one first.
//!
//! This is not a workflow engine: it has no timers and no background execution; the caller must open the operation
//! again.
//!
//! ```
//! use refrain::{Engine, Key, store::Memory, steps::{Opened, Opening, StepError}};
//!
//! async fn book(engine: &Engine, order: &str) -> Result<String, StepError> {
//!     let mut steps = match Opening::new("book-ride", Key::new(order)?).open(engine).await? {
//!         Opened::Open(steps) => steps,
//!         Opened::Finished(receipt) => return Ok(receipt),
//!     };
//!     let ride: u64 = steps
//!         .step_or_undo("ride", async |_key| Ok(7), async |_key, _ride| Ok(()))
//!         .await?;
//!     let charge: String = steps.step("charge", async |key| Ok(format!("{ride} under {key:?}"))).await?;
//!     steps.finish(format!("ride {ride}: {charge}")).await
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let engine = Engine::new(Memory::new());
//! let receipt = book(&engine, "order-7").await?;
//! assert_eq!(book(&engine, "order-7").await?, receipt);
//! # Ok::<(), StepError>(())
//! # }).unwrap();
//! ```

use std::collections::{HashSet, VecDeque};

use serde::{Serialize, de::DeserializeOwned};

use crate::{Engine, Key, failure::brief};

pub use crate::failure::Failure;

mod error;
pub use error::{Cause, StepError};

mod log;
use log::{EntryEnding, EntryKind, Log, RecordedEntry};

mod opening;
use opening::OperationSettings;
pub use opening::{Opened, Opening, RESULT_BYTES_MAX, STEPS_MAX};

mod run;
use run::PassedEntry;

mod step;
use step::check_name;
pub use step::{NAME_BYTES_MAX, Step};

mod undo;
use undo::Undo;

/// One run of an operation.
///
/// # Cancellation
/// Dropped between two steps, nothing is lost: the next run continues there.
/// Dropped within a step, that step is as after a crash: it is taken over after its lease lapses, or becomes
/// indeterminate if it is at-most-once. It is never released silently.
#[derive(Debug)]
pub struct Steps<'a> {
    engine: Engine,
    log: Log,
    settings: OperationSettings,
    /// Name of the operation, for logs.
    name: String,
    /// Entries that earlier runs recorded, from the next place on.
    known: VecDeque<RecordedEntry>,
    /// Number of the next place.
    at: usize,
    /// Names of the steps of this run, which must be unique.
    names: HashSet<String>,
    /// Undos of the finished steps that have one.
    undos: Vec<Undo<'a>>,
    /// Whether the point of no return has been passed.
    is_past_return: bool,
    state: RunState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    /// The next step may run.
    Open,
    /// The next run must retry a step. This run can only abandon the operation,
    /// if the step certainly had no effect.
    Failed,
    /// No further step may run in this run.
    Over,
}

impl<'a> Steps<'a> {
    fn new(
        engine: Engine,
        log: Log,
        settings: OperationSettings,
        name: String,
        known: VecDeque<RecordedEntry>,
    ) -> Self {
        Self {
            engine,
            log,
            settings,
            name,
            known,
            at: 0,
            names: HashSet::new(),
            undos: Vec::new(),
            is_past_return: false,
            state: RunState::Open,
        }
    }

    /// Runs a step, or returns its recorded result if it is finished.
    ///
    /// `work` gets the key for the downstream system. Its error decides what happens:
    /// [`Failure::retry`], which `?` creates, retries the step. [`Failure::reject`] declares that no attempt of the
    /// step has or will have an effect, and undoes the operation.
    ///
    /// # Errors
    /// Each error ends this run: return it, and open the operation again if it [is retryable](StepError::is_retryable).
    ///
    /// # Cancellation
    /// Like a crash: see [`Steps`].
    pub async fn step<T, F, W>(&mut self, step: impl Into<Step>, work: F) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(Key) -> W,
        W: Future<Output = Result<T, Failure>>,
    {
        let step = step.into();
        let result = self.forward(&step, work).await?;
        value(&step.name, &result)
    }

    /// Like [`step`](Self::step), with an `undo` that runs if the operation is undone later.
    ///
    /// `undo` gets its own key, and the result of the step. It is retried until it succeeds. If it is rejected, the
    /// operation is [stuck](StepError::Stuck) until an operator resolves it. Values that `undo` borrows must outlive
    /// the steps.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    ///
    /// # Cancellation
    /// As for [`step`](Self::step).
    pub async fn step_or_undo<T, F, W, U, V>(
        &mut self,
        step: impl Into<Step>,
        work: F,
        undo: U,
    ) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(Key) -> W,
        W: Future<Output = Result<T, Failure>>,
        U: Fn(Key, T) -> V + Send + Sync + 'a,
        V: Future<Output = Result<(), Failure>> + Send + 'a,
    {
        let step = step.into();
        let result = self.forward(&step, work).await?;
        let value = value(&step.name, &result)?;
        if !self.is_past_return {
            self.undos.push(Undo::new(&step.name, result, undo));
        }
        Ok(value)
    }

    /// Marks the point of no return: finished steps are not undone any more, and later steps must succeed.
    /// A later step that is rejected leaves the operation [stuck](StepError::Stuck).
    pub fn point_of_no_return(&mut self) {
        self.is_past_return = true;
        self.undos.clear();
    }

    /// Abandons the operation, and undoes its finished steps. Always returns an error: [`StepError::Undone`] on
    /// success.
    ///
    /// A step that was started and may have taken effect must be completed first.
    ///
    /// # Cancellation
    /// Like a crash: after the decision is recorded, later runs continue to undo.
    pub async fn abandon(&mut self, reason: impl Into<String>) -> StepError {
        if self.state == RunState::Over {
            return over();
        }
        if self.is_past_return {
            return StepError::Invalid(
                "an operation cannot be abandoned after its point of no return".into(),
            );
        }
        self.state = RunState::Over;
        let reason = brief(&reason.into());
        let cause = Cause { step: None, reason };
        match self
            .mark(EntryKind::Abandon, EntryEnding::Undo(&cause))
            .await
        {
            Ok(PassedEntry::Undo(cause)) => self.walk_back(cause).await,
            Ok(PassedEntry::Done(_)) => {
                StepError::Changed("the operation was not abandoned".into())
            }
            Err(error) => error,
        }
    }

    /// Finishes the operation with its result, which later runs return.
    ///
    /// # Errors
    /// As for [`step`](Self::step). If this is not called, the operation stays open.
    ///
    /// # Cancellation
    /// If dropped, the operation may or may not be finished; the next run finds out.
    pub async fn finish<R>(mut self, result: R) -> Result<R, StepError>
    where
        R: Serialize + DeserializeOwned,
    {
        self.check_open()?;
        let unkept = |reason| StepError::Unkept {
            step: "the operation".into(),
            reason,
        };
        let json = serde_json::to_vec(&result).map_err(|error| unkept(error.to_string()))?;
        if json.len() > self.settings.result_bytes_max {
            return Err(unkept(too_long(json.len(), self.settings.result_bytes_max)));
        }
        match self.mark(EntryKind::End, EntryEnding::Done(&json)).await? {
            PassedEntry::Done(result) => value("the operation", &result),
            PassedEntry::Undo(cause) => Err(self.walk_back(cause).await),
        }
    }

    async fn forward<T, F, W>(&mut self, step: &Step, work: F) -> Result<bytes::Bytes, StepError>
    where
        T: Serialize,
        F: Fn(Key) -> W,
        W: Future<Output = Result<T, Failure>>,
    {
        self.check(step)?;
        // Reset after the step succeeds. If the step is dropped, this run is over.
        self.state = RunState::Over;
        let work = |key| {
            let working = work(key);
            async move { working.await.map(|result| serde_json::to_vec(&result)) }
        };
        match self.take(EntryKind::Step, step, work).await {
            Ok(PassedEntry::Done(result)) => {
                self.state = RunState::Open;
                Ok(result)
            }
            Ok(PassedEntry::Undo(cause)) => Err(self.walk_back(cause).await),
            Err(error) => {
                if let StepError::Failed { .. } = error {
                    self.state = RunState::Failed;
                }
                Err(error)
            }
        }
    }

    fn check(&mut self, step: &Step) -> Result<(), StepError> {
        self.check_open()?;
        check_name(&step.name)?;
        if self.names.len() >= self.settings.steps_max {
            let max = self.settings.steps_max;
            let message = format!("the operation has more than {max} steps; see with_steps_max");
            return Err(StepError::Invalid(message));
        }
        if !self.names.insert(step.name.clone()) {
            let name = &step.name;
            let message = format!("two steps are named `{name}`; rename one");
            return Err(StepError::Invalid(message));
        }
        Ok(())
    }

    fn check_open(&self) -> Result<(), StepError> {
        match self.state {
            RunState::Open => Ok(()),
            RunState::Failed | RunState::Over => Err(over()),
        }
    }
}

fn over() -> StepError {
    StepError::Invalid(
        "an earlier step failed: return its error, and open the operation again".into(),
    )
}

/// Deserialises a recorded result.
fn value<T: DeserializeOwned>(name: &str, result: &[u8]) -> Result<T, StepError> {
    serde_json::from_slice(result).map_err(|error| {
        StepError::Changed(format!(
            "the recorded result of `{name}` does not have the type that the code expects: {error}"
        ))
    })
}

fn too_long(len: usize, max: usize) -> String {
    format!(
        "it has {len} bytes, more than the maximum of {max}; return an identifier instead, or see with_result_bytes_max"
    )
}

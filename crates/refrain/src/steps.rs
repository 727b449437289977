//! Operations of several effects: each is recorded, a later run goes on behind the last one that is done, and what is done can be undone.
//!
//! An [`Opening`] names the operation; opened, it gives [`Steps`]. The code then walks from step to step.
//! A step that is done gives its recorded result without running; the first that is not is claimed and run,
//! and gets a key for the next system down that is the same for every attempt.
//! When a step is refused for good, the undos of those before it run, last one first.
//!
//! This is no workflow engine: nothing here waits for days, has timers, or runs without somebody who opens the operation again.
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

use crate::{Engine, Key, consume::brief};

pub use crate::consume::Failure;

mod error;
pub use error::{Cause, StepError};

mod log;
use log::{Ending, Entry, Kind, Log};

mod opening;
use opening::Settings;
pub use opening::{Opened, Opening, RESULT_BYTES_MAX, STEPS_MAX};

mod run;
use run::Passed;

mod step;
use step::check_name;
pub use step::{NAME_BYTES_MAX, Step};

mod tries;

mod undo;
use undo::Undo;

/// One run of an operation, on its way from step to step.
///
/// # Cancellation
/// Dropped between two steps, nothing is lost: the next run goes on there.
/// Dropped in the middle of a step, that step is as after a crash: it is taken over once its lease has lapsed,
/// or in doubt where it is at-most-once. It is never silently released.
#[derive(Debug)]
pub struct Steps<'a> {
    engine: Engine,
    log: Log,
    settings: Settings,
    /// The operation's, for logs.
    name: String,
    /// What earlier runs have recorded from the next place on.
    known: VecDeque<Entry>,
    /// Which place is next.
    at: usize,
    /// Steps of this run so far: no name twice.
    names: HashSet<String>,
    /// How to undo those of them that are done and can be.
    undos: Vec<Undo<'a>>,
    /// Behind the point of no return.
    is_past_return: bool,
    state: RunState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    /// The next step may come.
    Open,
    /// A step is to be tried again by the next run. All that this one can still do is to give up,
    /// if the step has provably left nothing behind.
    Failed,
    /// Nothing comes behind this in this run.
    Over,
}

impl<'a> Steps<'a> {
    fn new(
        engine: Engine,
        log: Log,
        settings: Settings,
        name: String,
        known: VecDeque<Entry>,
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

    /// Does a step, or gives its recorded result where it is done.
    ///
    /// `work` gets the key for the next system down. Its error says what is to come of it:
    /// [`Failure::retry`], as any `?` makes it, tries again; [`Failure::reject`] says that nothing of the step stands and never will,
    /// attempts before this one included, and undoes the operation.
    ///
    /// # Errors
    /// Each ends this run: hand it on, and open the operation again where it [is retryable](StepError::is_retryable).
    ///
    /// # Cancellation
    /// As a crash: see [`Steps`].
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

    /// As [`step`](Self::step), and `undo` takes it back should the operation be undone later.
    ///
    /// `undo` gets a key of its own, and the result of the step. It is tried until it succeeds; refused for good,
    /// it leaves the operation [stuck](StepError::Stuck) until somebody has looked. What it borrows has to outlive the steps.
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

    /// From here on nothing is undone any more: what comes behind has to be done.
    /// A step behind this that is refused for good leaves the operation [stuck](StepError::Stuck).
    pub fn point_of_no_return(&mut self) {
        self.is_past_return = true;
        self.undos.clear();
    }

    /// Gives the operation up, and undoes what is done. What comes of that is always an error: [`StepError::Undone`], if all went well.
    ///
    /// A step that was begun and may have taken effect has to be run to its end first.
    ///
    /// # Cancellation
    /// As a crash: once the decision is recorded, later runs go on with undoing.
    pub async fn abandon(&mut self, reason: impl Into<String>) -> StepError {
        if self.state == RunState::Over {
            return over();
        }
        if self.is_past_return {
            return StepError::Invalid("behind the point of no return nothing is given up".into());
        }
        self.state = RunState::Over;
        let reason = brief(&reason.into());
        let cause = Cause { step: None, reason };
        match self.mark(Kind::Abandon, Ending::Undo(&cause)).await {
            Ok(Passed::Undo(cause)) => self.walk_back(cause).await,
            Ok(Passed::Done(_)) => StepError::Changed("the operation was not given up".into()),
            Err(error) => error,
        }
    }

    /// Ends the operation with its result, which is what later runs get.
    ///
    /// # Errors
    /// As for [`step`](Self::step). Not called, the operation stays open.
    ///
    /// # Cancellation
    /// Dropped, it may have ended or not; the next run finds out.
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
        match self.mark(Kind::End, Ending::Done(&json)).await? {
            Passed::Done(result) => value("the operation", &result),
            Passed::Undo(cause) => Err(self.walk_back(cause).await),
        }
    }

    async fn forward<T, F, W>(&mut self, step: &Step, work: F) -> Result<bytes::Bytes, StepError>
    where
        T: Serialize,
        F: Fn(Key) -> W,
        W: Future<Output = Result<T, Failure>>,
    {
        self.check(step)?;
        // Until it has passed: also a step that is dropped in the middle ends this run.
        self.state = RunState::Over;
        let work = |key| {
            let working = work(key);
            async move { working.await.map(|result| serde_json::to_vec(&result)) }
        };
        match self.take(Kind::Step, step, work).await {
            Ok(Passed::Done(result)) => {
                self.state = RunState::Open;
                Ok(result)
            }
            Ok(Passed::Undo(cause)) => Err(self.walk_back(cause).await),
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
            let message = format!("an operation has {max} steps at most; see with_steps_max");
            return Err(StepError::Invalid(message));
        }
        if !self.names.insert(step.name.clone()) {
            let name = &step.name;
            let message = format!("there are two steps `{name}`; give each a name of its own");
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
        "a step before did not end: hand its error on, and open the operation again".into(),
    )
}

/// A recorded result, as the code wants it.
fn value<T: DeserializeOwned>(name: &str, result: &[u8]) -> Result<T, StepError> {
    serde_json::from_slice(result).map_err(|error| {
        StepError::Changed(format!(
            "what `{name}` came to cannot be read in the shape that the code wants: {error}"
        ))
    })
}

fn too_long(len: usize, max: usize) -> String {
    format!(
        "it takes {len} bytes, and {max} at most are kept; keep what names it, or see with_result_bytes_max"
    )
}

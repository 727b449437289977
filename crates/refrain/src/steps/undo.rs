//! Undo: runs the undos of finished steps, last one first. Each undo is itself a step.

use std::{fmt, pin::Pin};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{
    Cause, Failure, StepError, Steps,
    log::{EntryEnding, EntryKind},
    run::PassedEntry,
    step::Step,
};
use crate::Key;

type Undoing<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

type Work<'a> = dyn Fn(Key, &[u8]) -> Undoing<'a> + Send + Sync + 'a;

/// Undo of a finished step.
pub(super) struct Undo<'a> {
    step: Step,
    /// Recorded result of the step.
    result: Bytes,
    work: Box<Work<'a>>,
}

impl<'a> Undo<'a> {
    pub(super) fn new<T, U, V>(name: &str, result: Bytes, undo: U) -> Self
    where
        T: DeserializeOwned,
        U: Fn(Key, T) -> V + Send + Sync + 'a,
        V: Future<Output = Result<(), Failure>> + Send + 'a,
    {
        Self {
            step: Step::new(name),
            result,
            work: Box::new(move |key, result| match serde_json::from_slice(result) {
                Ok(result) => Box::pin(undo(key, result)),
                Err(error) => Box::pin(std::future::ready(Err(Failure::reject(error.to_string())))),
            }),
        }
    }
}

impl fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Undo({})", self.step.name)
    }
}

impl Steps<'_> {
    /// Undoes the finished steps, last one first. The decision is already recorded, so no run goes forward again.
    pub(super) async fn walk_back(&mut self, cause: Cause) -> StepError {
        tracing::warn!(operation = self.name, %cause, "undoing an operation");
        while let Some(Undo { step, result, work }) = self.undos.pop() {
            let undo = |key| {
                let undoing = work(key, &result);
                async move { undoing.await.map(|()| Ok(b"null".to_vec())) }
            };
            match self.take(EntryKind::Undo, &step, undo).await {
                Ok(PassedEntry::Done(_)) => {}
                Ok(PassedEntry::Undo(_)) => {
                    return StepError::Changed("an undo was abandoned".into());
                }
                Err(error) => return error,
            }
        }
        match self.mark(EntryKind::End, EntryEnding::Undo(&cause)).await {
            Ok(PassedEntry::Undo(cause)) => StepError::Undone { cause },
            Ok(PassedEntry::Done(_)) => StepError::Changed("the operation has ended".into()),
            Err(error) => error,
        }
    }
}

//! The state of a worker's redrive: at most one runs at a time, however it ends.

use std::sync::{Arc, Mutex, PoisonError};

use refrain::{Error, ErrorKind, Result};
use refrain_proxy::admin::RedriveStatus;

/// The latest redrive of a worker; `None` if there was none.
#[derive(Debug, Clone, Default)]
pub(super) struct RedriveState(Arc<Mutex<Option<RedriveStatus>>>);

impl RedriveState {
    pub(super) fn status(&self) -> Option<RedriveStatus> {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    /// Marks a redrive as running, until the result is dropped; fails if one runs.
    pub(super) fn begin(&self) -> Result<RunningRedrive> {
        let mut status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if status.as_ref().is_some_and(|it| it.is_running) {
            let message = "another redrive of this worker is running";
            return Err(Error::new(ErrorKind::Held, message));
        }
        *status = Some(RedriveStatus {
            is_running: true,
            ..RedriveStatus::default()
        });
        Ok(RunningRedrive(self.clone()))
    }

    fn set(&self, status: RedriveStatus) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}

/// A redrive that runs. Dropped without an end, for example by a panic, it has failed.
#[derive(Debug)]
pub(super) struct RunningRedrive(RedriveState);

impl RunningRedrive {
    pub(super) fn end(self, redriven: &Result<RedriveStatus>) {
        self.0.set(match redriven {
            Ok(status) => status.clone(),
            Err(error) => failed(error.to_string()),
        });
    }
}

impl Drop for RunningRedrive {
    fn drop(&mut self) {
        if self.0.status().is_some_and(|it| it.is_running) {
            self.0.set(failed("the redrive ended unexpectedly".into()));
        }
    }
}

fn failed(error: String) -> RedriveStatus {
    RedriveStatus {
        error: Some(error),
        ..RedriveStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_redrive_that_panics_does_not_stop_the_next_one() {
        let state = RedriveState::default();
        let running = state.begin().unwrap();
        assert_eq!(state.begin().unwrap_err().kind(), ErrorKind::Held);
        let panicked = tokio::spawn(async move {
            let _running = running;
            panic!("on purpose");
        });
        assert!(panicked.await.is_err());
        let status = state.status().unwrap();
        assert!(!status.is_running && status.error.is_some(), "{status:?}");
        state.begin().unwrap().end(&Ok(RedriveStatus::default()));
        assert_eq!(state.status().unwrap().error, None);
    }
}

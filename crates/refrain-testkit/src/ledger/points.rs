//! Crash points: named places in an operation where the harness injects a crash.

use std::{
    panic::resume_unwind,
    sync::{Mutex, MutexGuard, PoisonError},
};

use refrain::Result;
use tokio::{sync::Notify, task::yield_now};

use super::Ledger;

/// The kind of crash that the harness injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fall {
    /// The operation panics at the point.
    Panic,
    /// The operation never continues past the point: its process dies.
    Stop,
}

/// Counts the points that were reached, and holds the one to crash at.
#[derive(Debug, Default)]
pub(super) struct Points {
    state: Mutex<State>,
    fell: Notify,
}

#[derive(Debug, Default)]
struct State {
    reached: usize,
    armed: Option<(usize, Fall)>,
    /// Name of the point where the crash happened.
    fallen: Option<String>,
}

impl Ledger {
    /// A crash point, named for reports. Only the [crash harness](crate::crash) injects crashes.
    ///
    /// It yields once to the runtime, as a call to another system does.
    ///
    /// # Panics
    /// When the crash harness injects a panic here.
    ///
    /// # Cancellation
    /// Safe to drop: the harness drops it to simulate a crash.
    pub async fn point(&self, name: &str) {
        yield_now().await;
        match self.0.points.reach(name) {
            None => {}
            // `resume_unwind`, not `panic!`: it keeps deliberate panics out of the test output.
            Some(Fall::Panic) => resume_unwind(Box::new(format!("injected panic at `{name}`"))),
            Some(Fall::Stop) => {
                self.0.points.fell.notify_one();
                std::future::pending::<()>().await;
            }
        }
    }

    /// Records one effect like [`record`](Self::record), with a crash [`point`](Self::point) before and after it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let ledger = refrain_testkit::Ledger::in_memory();
    /// ledger.take_effect("order-7", "first attempt").await?;
    /// assert_eq!(ledger.count()?, 1);
    /// # Ok::<(), refrain::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`record`](Self::record).
    ///
    /// # Cancellation
    /// When dropped, the effect may or may not be recorded, as with a real effect.
    pub async fn take_effect(&self, key: &str, attempt: impl ToString) -> Result<()> {
        let attempt = attempt.to_string();
        self.point("before the effect").await;
        self.record(key, attempt)?;
        self.point("after the effect").await;
        Ok(())
    }

    /// Returns the number of effects under all keys.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn count(&self) -> Result<usize> {
        Ok(self.all()?.len())
    }

    /// Injects one crash at the `at`-th point from now; the first point is 1.
    pub(crate) fn arm(&self, at: usize, fall: Fall) {
        let mut state = self.0.points.lock();
        *state = State::default();
        state.armed = Some((at, fall));
    }

    /// The name of the point where the crash happened.
    pub(crate) fn fallen(&self) -> Option<String> {
        self.0.points.lock().fallen.clone()
    }

    /// Waits until the operation is stopped at a point.
    pub(crate) async fn fell(&self) {
        self.0.points.fell.notified().await;
    }
}

impl Points {
    fn reach(&self, name: &str) -> Option<Fall> {
        let mut state = self.lock();
        state.reached += 1;
        let (_, fall) = state.armed.filter(|(at, _)| *at == state.reached)?;
        state.armed = None;
        state.fallen = Some(name.to_owned());
        Some(fall)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

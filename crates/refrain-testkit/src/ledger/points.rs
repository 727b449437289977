//! Places where a crash may come.

use std::{
    panic::resume_unwind,
    sync::{Mutex, MutexGuard, PoisonError},
};

use refrain::Result;
use tokio::{sync::Notify, task::yield_now};

use super::Ledger;

/// How the harness strikes at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fall {
    /// The code that came there panics.
    Panic,
    /// It never gets further: whoever runs it dies meanwhile.
    Stop,
}

/// Which points were reached, and at which one to strike.
#[derive(Debug, Default)]
pub(super) struct Points {
    state: Mutex<State>,
    fell: Notify,
}

#[derive(Debug, Default)]
struct State {
    reached: usize,
    armed: Option<(usize, Fall)>,
    /// The name of the point at which it struck.
    fallen: Option<String>,
}

impl Ledger {
    /// A place where a crash may come, named for reports. The [crash harness](crate::crash) strikes at each; nothing else does.
    ///
    /// It suspends once, as whatever talks to another system does.
    ///
    /// # Panics
    /// When the harness wants it to.
    ///
    /// # Cancellation
    /// Safe to drop: that is what it is there for.
    pub async fn point(&self, name: &str) {
        yield_now().await;
        match self.0.points.reach(name) {
            None => {}
            // Not `panic!`: a panic on purpose does not belong among the messages of a test.
            Some(Fall::Panic) => resume_unwind(Box::new(format!("on purpose, at `{name}`"))),
            Some(Fall::Stop) => {
                self.0.points.fell.notify_one();
                std::future::pending::<()>().await;
            }
        }
    }

    /// Notes one effect as [`record`](Self::record) does, with a [`point`](Self::point) before and one behind it.
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
    /// Dropped, it may have been noted or not, as with a real effect.
    pub async fn take_effect(&self, key: &str, attempt: impl ToString) -> Result<()> {
        let attempt = attempt.to_string();
        self.point("before the effect").await;
        self.record(key, attempt)?;
        self.point("after the effect").await;
        Ok(())
    }

    /// How many effects there are, under whatever key.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn count(&self) -> Result<usize> {
        Ok(self.all()?.len())
    }

    /// Strikes at the `at`-th point from now on, the first being 1, once.
    pub(crate) fn arm(&self, at: usize, fall: Fall) {
        let mut state = self.0.points.lock();
        *state = State::default();
        state.armed = Some((at, fall));
    }

    /// Where it struck.
    pub(crate) fn fallen(&self) -> Option<String> {
        self.0.points.lock().fallen.clone()
    }

    /// Until somebody was stopped.
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

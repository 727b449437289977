//! Fetches messages in a separate task, so that a cancelled pull loses no message.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use refrain::{Error, ErrorKind, Result, consume::Delivery};
use tokio::{
    sync::{Mutex, Notify},
    task::JoinHandle,
    time::{Instant, timeout_at},
};

/// Buffer of deliveries that were fetched and not yet returned by a pull.
#[derive(Debug)]
pub(crate) struct DeliveryBuffer {
    state: Mutex<BufferState>,
    /// How long a buffered delivery stays ours; after that the broker may deliver it to another consumer.
    fresh_for: Duration,
    /// Whether a fetch may run longer than the pull that started it.
    outlasts: bool,
    is_closed: AtomicBool,
    closing: Notify,
}

#[derive(Debug, Default)]
struct BufferState {
    fetching: Option<JoinHandle<Fetched>>,
    held: VecDeque<(Instant, Delivery)>,
}

/// When the fetch ended, and its deliveries.
type Fetched = (Instant, Result<Vec<Delivery>>);

impl DeliveryBuffer {
    pub(crate) fn new(fresh_for: Duration) -> Self {
        Self {
            state: Mutex::default(),
            fresh_for,
            outlasts: false,
            is_closed: AtomicBool::new(false),
            closing: Notify::new(),
        }
    }

    /// Allows a fetch to run longer than the pull that started it; a later pull returns its messages.
    #[cfg(feature = "sqs")]
    pub(crate) fn with_long_fetches(mut self) -> Self {
        self.outlasts = true;
        self
    }

    /// Returns buffered deliveries; if there are none, fetches. If the future is dropped, the fetch
    /// continues, and the next pull returns its messages.
    pub(crate) async fn pull<F>(
        &self,
        at_most: usize,
        wait: Duration,
        fetch: impl FnOnce() -> F,
    ) -> Result<Vec<Delivery>>
    where
        F: Future<Output = Result<Vec<Delivery>>> + Send + 'static,
    {
        self.unless_closed(async {
            let deadline = Instant::now() + wait;
            let Ok(mut state) = timeout_at(deadline, self.state.lock()).await else {
                return Ok(Vec::new());
            };
            let ready = state.take(at_most, self.fresh_for);
            if !ready.is_empty() {
                return Ok(ready);
            }
            // Without an answer by the deadline, nothing is buffered.
            self.fetch(&mut state, deadline, fetch).await?;
            Ok(state.take(at_most, self.fresh_for))
        })
        .await
    }

    /// Waits for the answer to one fetch, whose deliveries the next pull returns; returns whether the answer
    /// arrived within `wait`. Does not fetch while deliveries are buffered.
    #[cfg(feature = "sqs")]
    pub(crate) async fn fill<F>(&self, wait: Duration, fetch: impl FnOnce() -> F) -> Result<bool>
    where
        F: Future<Output = Result<Vec<Delivery>>> + Send + 'static,
    {
        self.unless_closed(async {
            let deadline = Instant::now() + wait;
            let Ok(mut state) = timeout_at(deadline, self.state.lock()).await else {
                return Ok(false);
            };
            state.drop_stale(self.fresh_for);
            match state.held.is_empty() {
                true => self.fetch(&mut state, deadline, fetch).await,
                false => Ok(true),
            }
        })
        .await
    }

    async fn unless_closed<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut closing = pin!(self.closing.notified());
        closing.as_mut().enable();
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(closed());
        }
        tokio::select! {
            biased;
            () = closing => Err(closed()),
            done = work => done,
        }
    }

    /// Buffers the deliveries of the running fetch, or of a new one; returns false if it is still running at
    /// the deadline.
    async fn fetch<F>(
        &self,
        state: &mut BufferState,
        deadline: Instant,
        fetch: impl FnOnce() -> F,
    ) -> Result<bool>
    where
        F: Future<Output = Result<Vec<Delivery>>> + Send + 'static,
    {
        let is_left_over = state.fetching.is_some() || self.outlasts;
        let fetching = state.fetching.get_or_insert_with(|| start(fetch()));
        // A fetch that this pull started ends by its own deadline; an earlier one may run longer than this
        // pull may wait.
        let fetched = match is_left_over {
            false => fetching.await,
            true => match timeout_at(deadline, fetching).await {
                Ok(fetched) => fetched,
                Err(_) => return Ok(false),
            },
        };
        state.fetching = None;
        let (since, fetched) = fetched.map_err(|error| {
            let message = "the task that fetches messages stopped unexpectedly";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        let fetched = fetched?.into_iter().map(|delivery| (since, delivery));
        state.held.extend(fetched);
        Ok(true)
    }

    /// Stops fetching and returns the deliveries that no pull returned; the caller nacks them.
    pub(crate) async fn close(&self) -> Vec<Delivery> {
        self.is_closed.store(true, Ordering::SeqCst);
        self.closing.notify_waiters();
        let mut state = self.state.lock().await;
        if let Some(fetching) = state.fetching.take() {
            fetching.abort();
            // A fetch that had just finished also brought deliveries.
            if let Ok((since, Ok(fetched))) = fetching.await {
                state
                    .held
                    .extend(fetched.into_iter().map(|delivery| (since, delivery)));
            }
        }
        state.take(usize::MAX, self.fresh_for)
    }
}

fn closed() -> Error {
    let message = "this broker connection is closed; open a new one";
    Error::new(ErrorKind::Unavailable, message)
}

fn start<F>(fetch: F) -> JoinHandle<Fetched>
where
    F: Future<Output = Result<Vec<Delivery>>> + Send + 'static,
{
    tokio::spawn(async move {
        let fetched = fetch.await;
        (Instant::now(), fetched)
    })
}

impl BufferState {
    /// Drops messages that were buffered for too long: the broker redelivers them.
    fn drop_stale(&mut self, fresh_for: Duration) {
        self.held.retain(|(since, _)| since.elapsed() < fresh_for);
    }

    fn take(&mut self, at_most: usize, fresh_for: Duration) -> Vec<Delivery> {
        self.drop_stale(fresh_for);
        let count = at_most.min(self.held.len());
        self.held
            .drain(..count)
            .map(|(_, delivery)| delivery)
            .collect()
    }
}

impl Drop for DeliveryBuffer {
    fn drop(&mut self) {
        if let Some(fetching) = &self.state.get_mut().fetching {
            fetching.abort();
        }
    }
}

//! The queue between requests and the thread that writes the access log.

use std::{
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;

/// Maximum size of the queue: the lines of about 16,000 requests.
pub(super) const QUEUE_BYTES_MAX: usize = 4 << 20;
/// The writer collects lines for this long, so that it writes many at a time and requests rarely wake it.
const COLLECT: Duration = Duration::from_millis(50);
/// Maximum time that [`LineQueue::close`] waits for the writer.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Lines that wait to be written.
#[derive(Debug)]
pub(super) struct LineQueue {
    state: Mutex<QueueState>,
    /// Notified when the writer has something to do, and when it has ended.
    changed: Condvar,
    /// Lines that were dropped.
    dropped: Counter,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: Vec<u8>,
    is_closed: bool,
    /// Whether the writer has ended.
    is_over: bool,
}

impl LineQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn new(dropped: Counter) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::default(),
            dropped,
        }
    }

    pub(super) fn dropped(&self) -> &Counter {
        &self.dropped
    }

    /// Appends a line, or drops it if the queue is full.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        let len = state.lines.len();
        if state.is_closed || len + line.len() > QUEUE_BYTES_MAX {
            drop(state);
            self.drop_lines(1);
            return;
        }
        state.lines.extend_from_slice(line);
        let half = QUEUE_BYTES_MAX / 2;
        let wakes = len == 0 || (len < half && len + line.len() >= half);
        drop(state);
        if wakes {
            self.changed.notify_all();
        }
    }

    /// Counts dropped lines, and logs it now and then.
    pub(super) fn drop_lines(&self, count: u64) {
        self.dropped.inc_by(count);
        let dropped = self.dropped.get();
        refrain::log_rarely!(
            warn,
            dropped,
            "lines of the access log are dropped, because they cannot be written as fast as requests arrive; \
             check its disk or the reader of standard output"
        );
    }

    /// Moves the queued lines into `batch`, which is empty. Waits for the first one, and then for some more.
    /// Returns false if the queue is closed and empty.
    pub(super) fn take(&self, batch: &mut Vec<u8>) -> bool {
        let state = self.lock();
        let is_idle = |state: &mut QueueState| state.lines.is_empty() && !state.is_closed;
        let waiting = self.changed.wait_while(state, is_idle);
        let state = waiting.unwrap_or_else(PoisonError::into_inner);
        let is_collecting =
            |state: &mut QueueState| state.lines.len() < QUEUE_BYTES_MAX / 2 && !state.is_closed;
        let waiting = self
            .changed
            .wait_timeout_while(state, COLLECT, is_collecting);
        let (mut state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut state.lines, batch);
        !batch.is_empty()
    }

    /// Waits before the writer tries again; returns false if the queue was closed meanwhile.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let is_open = |state: &mut QueueState| !state.is_closed;
        let waiting = self.changed.wait_timeout_while(self.lock(), time, is_open);
        let (state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        !state.is_closed
    }

    /// Notes that the writer has ended.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Closes the queue, and waits until the writer has written it.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.changed.notify_all();
        let is_writing = |state: &mut QueueState| !state.is_over;
        let waiting = self
            .changed
            .wait_timeout_while(state, CLOSE_MAX, is_writing);
        drop(waiting);
    }
}

//! One call before it is sent.

use std::time::Duration;

use bytes::Bytes;
use http::Request;

use super::{
    Client, Ending, Stopped, Transport, Why,
    flights::Waiter,
    journal::codec::Intent,
    request,
    run::{CallRun, Deadline},
};
use crate::{Key, Result};

/// A call to be sent. Created by [`Client::call`].
#[must_use = "nothing happens until the call is sent"]
pub struct Call<'a, T> {
    client: &'a Client<T>,
    key: Key,
    deadline: Duration,
}

impl<T> std::fmt::Debug for Call<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("key", &self.key)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<'a, T: Transport> Call<'a, T> {
    pub(super) fn new(client: &'a Client<T>, key: Key) -> Self {
        Self {
            client,
            key,
            deadline: client.settings.deadline,
        }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Sets the time from now for which the call may be sent, by this process and by those that resume it.
    ///
    /// It must be shorter than the server's retention of keys, because a request sent after that is executed again.
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sends the request until there is a final answer, or retries are exhausted.
    ///
    /// The key and the request are durable before the first byte is sent, and the ending is durable before this
    /// returns. A call that is finished in the journal is answered from there. A call in flight in this process is
    /// awaited. An open call is continued, with this deadline.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) if the journal has the key with another request,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the request is invalid or too long, and errors of the
    /// journal. If the journal cannot store an answer, the answer is not returned, and the call stays open.
    ///
    /// # Cancellation
    /// Dropping it loses nothing: the call continues in its own task, and the next caller finds its ending in the
    /// journal. If the runtime ends too, the call stays open and can be [resumed](Client::resume).
    pub async fn send(self, request: Request<Bytes>) -> Result<Ending> {
        let (deadline, journal) = (self.deadline, &self.client.shared.journal);
        let now = journal.now();
        let waiter = self.start(request)?;
        // The task ends at its own deadline; a caller that joined it later may have less time.
        let left = Deadline::after(now, deadline).left(journal.now());
        match tokio::time::timeout(left.saturating_add(GRACE), waiter.wait()).await {
            Ok(landed) => landed,
            Err(_) => Ok(Ending::Unknown(Stopped {
                why: Why::DeadlinePassed,
                attempts: 0,
                answer: None,
                trouble: Some("another caller in this process still sends it".into()),
            })),
        }
    }

    fn start(self, mut request: Request<Bytes>) -> Result<Waiter> {
        let (shared, settings) = (&self.client.shared, &self.client.settings);
        let journal = &shared.journal;
        request::check(&request, journal.options().request_bytes_max)?;
        let (header, syntax) = (&settings.key_header, settings.key_syntax);
        request::put_key(request.headers_mut(), header, syntax, &self.key)?;
        let fingerprint = journal.fingerprint(&request);
        let now = journal.now();
        let (kept, left_out) = request::without_headers(&request, &settings.headers_not_kept);
        let intent = Intent {
            key: self.key.clone(),
            fingerprint,
            created: now,
            deadline: self.deadline,
            left_out,
            request: kept,
        };
        let run = CallRun {
            shared: shared.clone(),
            retry: settings.retry,
            key: self.key.clone(),
            fingerprint,
            request,
            deadline: Deadline::after(now, self.deadline),
            may_have_run: false,
            attempts: 0,
            counted: 0,
        };
        let start = || run.begin(intent);
        shared.flights.join_or_start(&self.key, fingerprint, start)
    }
}

/// Additional time for a task with the same deadline to journal its ending.
const GRACE: Duration = Duration::from_secs(5);

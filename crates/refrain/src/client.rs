//! HTTP client with durable calls: each call is journalled with its key before it is sent, and retried under that key
//! until its outcome is known.
//!
//! A key that is generated again for each attempt, or lost with its process, protects nothing.
//! This client writes a call to a [`Journal`], a file, before it sends the first byte, and writes the ending before it
//! returns it. After a crash, [`Client::resume`] continues the open calls under the same keys.
//!
//! This is not an HTTP library: a [`Transport`] sends each request once, and [`HyperTransport`] is an implementation.
//! It does not handle redirects, cookies or streams, and it cannot make a server safe that ignores keys.
//!
//! ```
//! # #[cfg(feature = "client-hyper")] {
//! use refrain::{Client, Key, client::{Ending, HyperTransport, Journal, Limits}};
//! use http::Request;
//!
//! # async fn pay(path: &std::path::Path) -> refrain::Result<()> {
//! let client = Client::new(HyperTransport::new(Limits::default()), Journal::open(path)?);
//! for resumed in client.resume().await?.all().await {
//!     println!("{:?}", resumed.ending);
//! }
//! let request = Request::post("http://127.0.0.1:3000/v1/payments").body("amount=20".into()).unwrap();
//! match client.call(Key::new("order-7")?).send(request).await? {
//!     Ending::Answered(answer) => println!("{}", answer.response.status()),
//!     other => println!("no final answer: {other:?}"),
//! }
//! # Ok(())
//! # }
//! # }
//! ```

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Request, header};

use crate::{
    Error, ErrorKind, Key, Result,
    key::{KEY_HEADER, Syntax},
};

mod answer;
pub use answer::{Advice, Problem};

mod call;
pub use call::Call;

mod ending;
pub use ending::{CallResponse, Ending, Stopped, Why};

mod flights;

#[cfg(feature = "client-hyper")]
mod hyper;
#[cfg(feature = "client-hyper")]
pub use hyper::{HyperTransport, Limits};

pub mod journal;
pub use journal::Journal;

mod moment;
mod request;

mod resume;
pub use resume::{OpenCall, Resume, Resumed};

mod retry;
pub use retry::{Budget, Retry};

mod run;

mod transport;
pub use transport::{Sent, Transport, TransportError};

/// Sends requests under keys that survive the process. Clones share the journal. See [the module](self).
pub struct Client<T> {
    shared: Arc<ClientState<T>>,
    settings: Arc<ClientSettings>,
}

impl<T> Clone for Client<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<T> fmt::Debug for Client<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// State shared by all clones of a client.
struct ClientState<T> {
    transport: T,
    journal: Journal,
    /// Calls in flight in this process.
    flights: flights::CallFlights,
    /// Remaining retry budget.
    purse: retry::Purse,
}

/// Settings of a client.
#[derive(Debug, Clone)]
struct ClientSettings {
    key_header: HeaderName,
    key_syntax: Syntax,
    headers_not_kept: Vec<HeaderName>,
    retry: Retry,
    deadline: Duration,
    resumed_at_once_max: usize,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            key_header: HeaderName::from_static(KEY_HEADER),
            key_syntax: Syntax::default(),
            headers_not_kept: vec![
                header::AUTHORIZATION,
                header::PROXY_AUTHORIZATION,
                header::COOKIE,
            ],
            retry: Retry::default(),
            // Well below the 24 h for which most servers keep keys.
            deadline: Duration::from_secs(60 * 60),
            resumed_at_once_max: 16,
        }
    }
}

impl<T: Transport> Client<T> {
    /// Creates a client that sends over this transport and records its calls in this journal.
    #[must_use]
    pub fn new(transport: T, journal: Journal) -> Self {
        let shared = ClientState {
            transport,
            journal,
            flights: flights::CallFlights::default(),
            purse: retry::Purse::default(),
        };
        Self {
            shared: Arc::new(shared),
            settings: Arc::default(),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut ClientSettings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets the header that carries the key, such as `PayPal-Request-Id`. Default: `Idempotency-Key`.
    #[must_use]
    pub fn with_key_header(self, name: HeaderName) -> Self {
        self.with(|settings| settings.key_header = name)
    }

    /// Sets the syntax of the key header: plain, or quoted with [`Syntax::Strict`].
    #[must_use]
    pub fn with_key_syntax(self, syntax: Syntax) -> Self {
        self.with(|settings| settings.key_syntax = syntax)
    }

    /// Sets the headers that are not journalled. Default: `Authorization`, `Proxy-Authorization` and `Cookie`.
    /// [`resume_with`](Self::resume_with) adds them again.
    #[must_use]
    pub fn with_headers_not_kept(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| settings.headers_not_kept = names.into_iter().collect())
    }

    /// Sets the number and the pace of retries.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        self.with(|settings| settings.retry = retry)
    }

    /// Sets the deadline of calls without [their own](Call::with_deadline). Default: 1 h.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = deadline)
    }

    /// Sets the maximum number of calls that [`resume`](Self::resume) continues at a time. Default: 16.
    #[must_use]
    pub fn with_resumed_at_once_max(self, calls: usize) -> Self {
        self.with(|settings| settings.resumed_at_once_max = calls)
    }

    /// Creates a call under the caller's key, which must identify the intent and be the same at every retry.
    pub fn call(&self, key: Key) -> Call<'_, T> {
        Call::new(self, key)
    }

    /// Creates a call under a random key, which is journalled before the call is sent.
    ///
    /// For intents without a business identifier. The caller loses the [key](Call::key) with the process,
    /// but not the call: [`resume`](Self::resume) finds it.
    pub fn call_new(&self) -> Call<'_, T> {
        self.call(Key::random())
    }

    /// Continues every call that is open in the journal and not in flight in this process.
    ///
    /// Each is sent again under its key, whether or not earlier attempts reached the server. A call past its deadline
    /// is not sent: its ending is [`Unknown`](Ending::Unknown), and it stays open until it is
    /// [forgotten](Self::forget). Requests with headers that are [not kept](Self::with_headers_not_kept) need
    /// [`resume_with`](Self::resume_with).
    ///
    /// # Errors
    /// If the journal cannot be read.
    ///
    /// # Cancellation
    /// Dropping the future or its [`Resume`] loses nothing: started calls continue in their own tasks, the others stay
    /// open.
    pub async fn resume(&self) -> Result<Resume> {
        self.resume_with(|_, _| {}).await
    }

    /// Like [`resume`](Self::resume); `renew` adds headers to each request before it is sent, such as a fresh
    /// credential.
    ///
    /// # Errors
    /// As for [`resume`](Self::resume).
    pub async fn resume_with(
        &self,
        renew: impl Fn(&Key, &mut Request<Bytes>) + Send + Sync + 'static,
    ) -> Result<Resume> {
        let mut open = self.shared.journal.list().await?;
        open.retain(|intent| !self.shared.flights.has(&intent.key));
        Ok(resume::start(self.clone(), open, renew))
    }

    /// Returns every call without an ending, the oldest first, including those in flight in this process.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn open_calls(&self) -> Result<Vec<OpenCall>> {
        let now = self.shared.journal.now();
        let open = self.shared.journal.list().await?.into_iter();
        let call = |intent| {
            let left = run::Deadline::of(&intent, now).left(now);
            OpenCall::of(intent, left)
        };
        Ok(open.map(call).collect())
    }

    /// Closes an open call after an operator has resolved it. The journal keeps the reason until it is rewritten.
    /// Returns whether the call was open.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] while the call is in flight in this process, and errors of the journal.
    ///
    /// # Cancellation
    /// If dropped, the call may or may not be forgotten.
    pub async fn forget(&self, key: &Key, reason: &str) -> Result<bool> {
        if self.shared.flights.has(key) {
            let message = "the call is in flight; wait until it ends, then forget it";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.shared.drop_call(key, reason).await
    }
}

impl<T> ClientState<T> {
    /// Records that a call without an answer is closed; returns whether it was open.
    async fn drop_call(&self, key: &Key, reason: &str) -> Result<bool> {
        let record = journal::codec::Record::Dropped {
            key: key.clone(),
            at: self.journal.now(),
            reason: reason.into(),
        };
        let done = self.journal.end(key, record).await?;
        Ok(matches!(done, journal::Done::Written))
    }
}

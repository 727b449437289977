//! A client whose calls outlive it: each is written down with its key before it is sent, and sent under that key until its end is known.
//!
//! A key that is made anew for each attempt, or lost with the process that made it, protects nothing.
//! Here a call is in a [`Journal`], a file, before its first byte leaves; and its ending is in it before anybody is told.
//! After a crash [`Client::resume`] goes on with what was open, under the same keys.
//!
//! It is no HTTP library: a [`Transport`] carries each request once, and [`HyperTransport`] is one.
//! Redirects, cookies and streams are not its business, and a server that ignores keys is not made safe by it.
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
//!     other => println!("somebody has to look: {other:?}"),
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
pub use ending::{Answer, Ending, Stopped, Why};

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

/// Sends requests under keys that outlive the process. Clones share the journal. See [the module](self).
pub struct Client<T> {
    shared: Arc<Shared<T>>,
    settings: Arc<Settings>,
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

/// What all clones of a client share.
struct Shared<T> {
    transport: T,
    journal: Journal,
    /// The calls under way in this process.
    flights: flights::Flights,
    /// What is left for retries.
    purse: retry::Purse,
}

/// How a client goes about it.
#[derive(Debug, Clone)]
struct Settings {
    key_header: HeaderName,
    key_syntax: Syntax,
    headers_not_kept: Vec<HeaderName>,
    retry: Retry,
    deadline: Duration,
    resumed_at_once_max: usize,
}

impl Default for Settings {
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
            // Well below the day for which most servers keep keys.
            deadline: Duration::from_secs(60 * 60),
            resumed_at_once_max: 16,
        }
    }
}

impl<T: Transport> Client<T> {
    /// A client that sends over this transport and keeps its calls in this journal.
    #[must_use]
    pub fn new(transport: T, journal: Journal) -> Self {
        let shared = Shared {
            transport,
            journal,
            flights: flights::Flights::default(),
            purse: retry::Purse::default(),
        };
        Self {
            shared: Arc::new(shared),
            settings: Arc::default(),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Which header carries the key; `Idempotency-Key` unless told otherwise, `PayPal-Request-Id` for example.
    #[must_use]
    pub fn with_key_header(self, name: HeaderName) -> Self {
        self.with(|settings| settings.key_header = name)
    }

    /// How the key is written: as it is, or in quotes with [`Syntax::Strict`].
    #[must_use]
    pub fn with_key_syntax(self, syntax: Syntax) -> Self {
        self.with(|settings| settings.key_syntax = syntax)
    }

    /// Which headers the journal does not keep: `Authorization`, `Proxy-Authorization` and `Cookie` unless told otherwise.
    /// [`resume_with`](Self::resume_with) puts them in again.
    #[must_use]
    pub fn with_headers_not_kept(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| settings.headers_not_kept = names.into_iter().collect())
    }

    /// How often and how fast calls are tried again.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        self.with(|settings| settings.retry = retry)
    }

    /// How long calls may be sent that do not [say so](Call::with_deadline) themselves; an hour unless told otherwise.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = deadline)
    }

    /// How many calls are gone on with at once by [`resume`](Self::resume); 16 unless told otherwise.
    #[must_use]
    pub fn with_resumed_at_once_max(self, calls: usize) -> Self {
        self.with(|settings| settings.resumed_at_once_max = calls)
    }

    /// A call under a key of the caller's: one that names the intent, and is the same whenever the caller comes back to it.
    pub fn call(&self, key: Key) -> Call<'_, T> {
        Call::new(self, key)
    }

    /// A call under a key that is made now, and in the journal before it is sent.
    ///
    /// For intents that nothing in the business names. Its [key](Call::key) is lost to the caller with the process;
    /// the call is not: [`resume`](Self::resume) finds it.
    pub fn call_new(&self) -> Call<'_, T> {
        self.call(Key::random())
    }

    /// Goes on with every call that is open in the journal and not in flight in this process.
    ///
    /// Each is sent again under its key, whatever came of earlier attempts. One past its deadline is not sent:
    /// its ending is [`Unknown`](Ending::Unknown), and it stays open until it is [forgotten](Self::forget).
    /// A request that had headers which are [not kept](Self::with_headers_not_kept) wants [`resume_with`](Self::resume_with).
    ///
    /// # Errors
    /// When the journal cannot be read.
    ///
    /// # Cancellation
    /// Dropping the future or its [`Resume`] loses nothing: what was begun goes on in tasks of its own, the rest stays open.
    pub async fn resume(&self) -> Result<Resume> {
        self.resume_with(|_, _| {}).await
    }

    /// As [`resume`](Self::resume); `renew` puts headers into each request before it is sent, such as a credential of today.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub async fn resume_with(
        &self,
        renew: impl Fn(&Key, &mut Request<Bytes>) + Send + Sync + 'static,
    ) -> Result<Resume> {
        let mut open = self.shared.journal.list().await?;
        open.retain(|intent| !self.shared.flights.has(&intent.key));
        Ok(resume::start(self.clone(), open, renew))
    }

    /// Every call that has no end yet, the oldest first; those in flight in this process included.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub async fn open_calls(&self) -> Result<Vec<OpenCall>> {
        let now = self.shared.journal.now();
        let open = self.shared.journal.list().await?.into_iter();
        let call = |intent| {
            let left = run::Deadline::of(&intent, now).left(now);
            OpenCall::of(intent, left)
        };
        Ok(open.map(call).collect())
    }

    /// Lets go of an open call that somebody has looked into; the journal keeps the reason until it is written anew.
    /// Answers whether there was one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] while it is in flight in this process, and the journal's own trouble.
    ///
    /// # Cancellation
    /// Dropped, it may or may not be forgotten.
    pub async fn forget(&self, key: &Key, reason: &str) -> Result<bool> {
        if self.shared.flights.has(key) {
            let message = "the call is in flight; wait for its ending before it is forgotten";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.shared.drop_call(key, reason).await
    }
}

impl<T> Shared<T> {
    /// Writes down that a call is not open any more, though there is no answer to keep; answers whether it was.
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

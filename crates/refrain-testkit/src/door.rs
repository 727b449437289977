//! Type-erased tower service: takes a request with a body in memory, returns the response or the error as text.

use std::{
    fmt::Debug,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use refrain::consume::caught;
use tower_service::Service;

use crate::Ledger;

/// Bounds on a service under test: a tower service that is `Clone` and `Send`, as hyper and axum require.
pub trait Tried<B, R>:
    Service<Request<B>, Response = Response<R>, Error: Debug + Send, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S, B, R> Tried<B, R> for S where
    S: Service<Request<B>, Response = Response<R>, Error: Debug + Send, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// Bounds on a request body: `Full<Bytes>`, axum's `Body`, and similar types satisfy them.
pub trait Sent: Body<Data = Bytes, Error: Debug> + From<Bytes> + Send + 'static {}

impl<B> Sent for B where B: Body<Data = Bytes, Error: Debug> + From<Bytes> + Send + 'static {}

/// Bounds on a response body.
pub trait Answered: Body<Data = Bytes, Error: Debug + Send> + Send + 'static {}

impl<R> Answered for R where R: Body<Data = Bytes, Error: Debug + Send> + Send + 'static {}

/// A service's response: status and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceResponse {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

/// A response, or the reason why there is none: an error of the service, or a panic.
pub(crate) type Got = Result<ServiceResponse, String>;
pub(crate) type Going<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Whether to read the response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    All,
    /// Drop the response without reading its body.
    Nothing,
}

type Call = dyn Fn(Request<Bytes>, Reading) -> Going<Got> + Send + Sync;

/// Type-erased handle to a service under test.
#[derive(Clone)]
pub(crate) struct Door(Arc<Call>);

impl Door {
    fn new<S, B, R>(service: S) -> Self
    where
        S: Tried<B, R>,
        B: Sent,
        R: Answered,
    {
        let service = Mutex::new(service);
        Self(Arc::new(move |request, reading| {
            let service = service.lock().unwrap_or_else(PoisonError::into_inner);
            Box::pin(call(service.clone(), request.map(B::from), reading))
        }))
    }

    /// Sends a request. A panic of the service is returned as an error.
    pub(crate) fn send(&self, request: Request<Bytes>, reading: Reading) -> Going<Got> {
        let going = (self.0)(request, reading);
        Box::pin(async { caught(going).await? })
    }
}

async fn call<S, B, R>(mut service: S, request: Request<B>, reading: Reading) -> Got
where
    S: Tried<B, R>,
    R: Answered,
{
    let erred = |error: S::Error| format!("the service returned an error: {error:?}");
    poll_fn(|context| service.poll_ready(context))
        .await
        .map_err(erred)?;
    let response = service.call(request).await.map_err(erred)?;
    let status = response.status().as_u16();
    let body = match reading {
        Reading::Nothing => Bytes::new(),
        Reading::All => {
            let body = response.into_body().collect().await;
            body.map_err(|error| format!("the response was truncated: {error:?}"))?
                .to_bytes()
        }
    };
    Ok(ServiceResponse { status, body })
}

type MakeDoor = dyn Fn(Ledger) -> Door + Send + Sync;
type MakeRequest = dyn Fn(&str) -> Going<Request<Bytes>> + Send + Sync;

/// Factories for services and requests.
#[derive(Clone)]
pub(crate) struct Makers {
    service: Arc<MakeDoor>,
    request: Arc<MakeRequest>,
}

impl Makers {
    pub(crate) fn new<S, B, R>(
        service: impl Fn(Ledger) -> S + Send + Sync + 'static,
        request: impl Fn(&str) -> Request<B> + Send + Sync + 'static,
    ) -> Self
    where
        S: Tried<B, R>,
        B: Sent,
        R: Answered,
    {
        let request = move |key: &str| -> Going<Request<Bytes>> {
            let (head, body) = request(key).into_parts();
            Box::pin(async {
                let body = body.collect().await;
                let body = body.unwrap_or_else(|error| {
                    panic!("cannot read the body of the test request: {error:?}")
                });
                Request::from_parts(head, body.to_bytes())
            })
        };
        Self {
            service: Arc::new(move |ledger| Door::new(service(ledger))),
            request: Arc::new(request),
        }
    }

    pub(crate) fn door(&self, ledger: &Ledger) -> Door {
        (self.service)(ledger.clone())
    }

    pub(crate) async fn request(&self, key: &str) -> Request<Bytes> {
        (self.request)(key).await
    }
}

impl ServiceResponse {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the response asks the client to retry later, and does not report an unknown outcome.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.status, 409 | 423 | 425 | 429 | 503) && !self.is_doubt()
    }

    /// Whether the response reports an unknown outcome.
    pub(crate) fn is_doubt(&self) -> bool {
        let text = String::from_utf8_lossy(&self.body).to_ascii_lowercase();
        let words = ["unknown", "indeterminate", "in doubt"];
        self.status >= 400 && words.iter().any(|word| text.contains(word))
    }
}

/// Formats a response, or its absence, for a report.
pub(crate) fn describe_response(got: &Got) -> String {
    const SHOWN_BYTES_MAX: usize = 120;
    match got {
        Ok(ServiceResponse { status, body }) => {
            let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES_MAX)]);
            format!("{status} `{shown}`")
        }
        Err(why) => format!("no response ({why})"),
    }
}

/// Returns a key that no other trial uses.
pub(crate) fn fresh_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    format!("trial-{number}-{:08x}", rand::random::<u32>())
}

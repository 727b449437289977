//! The fast path of the layer: on a memory store, a request whose body is already complete is answered or running
//! when `call` returns. A wait in between would cost a task switch for each request.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use refrain::{
    Engine, Operation, Policy,
    http::{Body, DecidedRequest, Decision, Observer, RefrainLayer, RefrainService},
    store::Memory,
};
use refrain_testkit::wait;
use tokio::sync::mpsc;
use tower_layer::Layer as _;
use tower_service::Service;

/// Responds after one yield to the runtime, as the header `do` says, and counts its calls.
#[derive(Debug, Clone, Default)]
struct Shop {
    calls: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
}

type Answer = Response<Full<Bytes>>;

impl<B: HttpBody + Send + Unpin + 'static> Service<Request<B>> for Shop {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let done = self.done.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            let mut answer = Response::new(Full::from(format!("number {number}")));
            *answer.status_mut() = StatusCode::CREATED;
            let headers = answer.headers_mut();
            headers.insert("location", HeaderValue::from_static("/v1/payments/7"));
            headers.append("x-part", HeaderValue::from_static("one"));
            headers.append("x-part", HeaderValue::from_static("two"));
            done.fetch_add(1, Ordering::SeqCst);
            Ok(answer)
        })
    }
}

#[derive(Debug, Default)]
struct Book(Mutex<Vec<Decision>>);

impl Observer for Book {
    fn decided(&self, request: &DecidedRequest<'_>) {
        self.0.lock().unwrap().push(request.decision);
    }
}

fn guarded(book: &Arc<Book>) -> (Shop, RefrainService<Shop>) {
    let shop = Shop::default();
    let operation = Operation {
        replay_headers: vec!["x-part".into()],
        request_bytes_max: 8,
        ..Operation::default()
    };
    let policy = Policy::new(vec![operation]).unwrap();
    let layer = RefrainLayer::new(Engine::new(Memory::new()), policy);
    let service = layer.with_observer(book.clone()).layer(shop.clone());
    (shop, service)
}

fn request<B>(key: &str, body: B) -> Request<B> {
    let request = Request::post("/v1/payments").header("idempotency-key", key);
    request.body(body).unwrap()
}

fn whole(text: &'static str) -> Full<Bytes> {
    Full::from(text)
}

/// The response of a future that needs no wait.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

async fn text<R>(response: Response<Body<R>>) -> (StatusCode, HeaderMap, Bytes)
where
    R: HttpBody<Data = Bytes> + Unpin,
    R::Error: Into<refrain::http::BodyError>,
{
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, body)
}

#[tokio::test]
async fn a_stored_outcome_is_replayed_at_once() {
    let book = Arc::<Book>::default();
    let (shop, mut service) = guarded(&book);
    let ask = || request("k", whole("5"));
    let first = service.call(ask()).await.unwrap();
    assert_eq!(first.status(), StatusCode::CREATED);
    let record = first.headers()["refrain-record"].as_bytes();
    let replay = at_once(service.call(ask())).unwrap();
    let (status, headers, body) = text(replay).await;
    assert_eq!((status, &body[..]), (StatusCode::CREATED, &b"number 1"[..]));
    let fields = headers.iter();
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    fields.sort_unstable();
    let expected: [(&str, &[u8]); 6] = [
        ("cache-control", b"no-store"),
        ("idempotent-replayed", b"true"),
        ("location", b"/v1/payments/7"),
        ("refrain-record", record),
        ("x-part", b"one"),
        ("x-part", b"two"),
    ];
    assert_eq!(fields, expected);
    assert_eq!(shop.calls.load(Ordering::SeqCst), 1);
    let told = [Decision::FreshKept, Decision::Replayed];
    assert_eq!(*book.0.lock().unwrap(), told);
}

#[tokio::test]
async fn called_service_runs_without_a_polling_caller() {
    let book = Arc::<Book>::default();
    let (shop, mut service) = guarded(&book);
    drop(service.call(request("k", whole("5"))));
    let again = service.call(request("k", whole("5"))).await.unwrap();
    let (status, headers, body) = text(again).await;
    assert_eq!((status, &body[..]), (StatusCode::CREATED, &b"number 1"[..]));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!(shop.done.load(Ordering::SeqCst), 1);
    assert_eq!(
        *book.0.lock().unwrap(),
        [Decision::HungUp, Decision::Replayed]
    );
}

/// A body whose chunks arrive while it is read.
struct Pieces(mpsc::Receiver<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = self.0.poll_recv(context);
        polled.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }

    /// The full length even after a part was read: some bodies report it that way.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(6)
    }
}

#[tokio::test]
async fn a_body_that_is_still_to_come_is_waited_for() {
    let book = Arc::<Book>::default();
    let (shop, mut service) = guarded(&book);
    let (pieces, body) = mpsc::channel(1);
    pieces.send(Bytes::from_static(b"fif")).await.unwrap();
    let mut answering = service.call(request("k", Pieces(body)));
    let mut is_answered = async || {
        poll_fn(|context| Poll::Ready(Pin::new(&mut answering).poll(context).is_ready())).await
    };
    assert!(!is_answered().await, "half of the body is still missing");
    assert_eq!(shop.calls.load(Ordering::SeqCst), 0);
    let answered = tokio::spawn(answering);
    tokio::task::yield_now().await;
    pieces.send(Bytes::from_static(b"ths")).await.unwrap();
    drop(pieces);
    let waited = tokio::time::timeout(wait::PATIENCE, answered);
    let (_, _, body) = text(waited.await.unwrap().unwrap().unwrap()).await;
    assert_eq!(body, "number 1");
    // The same request as a whole: both fingerprints must match.
    let (pieces, body) = mpsc::channel(1);
    pieces.send(Bytes::from_static(b"fifths")).await.unwrap();
    drop(pieces);
    let replay = at_once(service.call(request("k", Pieces(body)))).unwrap();
    let (_, _, body) = text(replay).await;
    assert_eq!(body, "number 1");
}

#[tokio::test]
async fn immediate_rejection_is_reported_once() {
    let book = Arc::<Book>::default();
    let (shop, mut service) = guarded(&book);
    let refused = service
        .call(request("two words", whole("5")))
        .await
        .unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    service.call(request("k", whole("5"))).await.unwrap();
    let other = service.call(request("k", whole("6"))).await.unwrap();
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(shop.calls.load(Ordering::SeqCst), 1);
    let told = [
        Decision::KeyInvalid,
        Decision::FreshKept,
        Decision::KeyReused,
    ];
    assert_eq!(*book.0.lock().unwrap(), told);
}

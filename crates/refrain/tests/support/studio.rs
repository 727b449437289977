//! A service behind the layer whose responses the test produces chunk by chunk, and the clients that read them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response, routing::post};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use refrain::{
    Engine, Operation, Policy,
    http::RefrainLayer,
    policy::Reply,
    record::{Reason, State},
    store::{Query, Store},
};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tower_service::Service;

use super::scripted::Scripted;

/// A service whose responses the test produces.
#[derive(Clone)]
pub(crate) struct Studio {
    pub(crate) store: Scripted,
    pub(crate) engine: Engine,
    pub(crate) app: Router,
    /// Requests with `hold` wait for a permit before they are answered.
    pub(crate) gate: Arc<Semaphore>,
    calls: Arc<AtomicUsize>,
    feeds: Arc<Mutex<mpsc::UnboundedReceiver<Feed>>>,
}

/// The next part of a response.
enum Piece {
    Frame(Frame<Bytes>),
    Cut,
    Panic,
}

/// Produces one response; dropping it ends the response.
pub(crate) struct Feed {
    pieces: mpsc::UnboundedSender<Piece>,
    /// Number of bytes that were read from it.
    pub(crate) taken: Arc<AtomicUsize>,
}

struct Fed {
    pieces: mpsc::UnboundedReceiver<Piece>,
    taken: Arc<AtomicUsize>,
}

impl Feed {
    pub(crate) fn say(&self, text: impl Into<Bytes>) {
        let _ = self.pieces.send(Piece::Frame(Frame::data(text.into())));
    }

    pub(crate) fn end_with(self, name: &'static str, value: &str) {
        let mut trailers = HeaderMap::new();
        trailers.insert(name, value.parse().unwrap());
        let _ = self.pieces.send(Piece::Frame(Frame::trailers(trailers)));
    }

    pub(crate) fn cut(self) {
        let _ = self.pieces.send(Piece::Cut);
    }

    pub(crate) fn panic(self) {
        let _ = self.pieces.send(Piece::Panic);
    }

    /// Whether the reader of the response is gone.
    pub(crate) fn is_dropped(&self) -> bool {
        self.pieces.is_closed()
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.pieces.poll_recv(context).map(|piece| match piece? {
            Piece::Frame(frame) => {
                let len = frame.data_ref().map_or(0, Bytes::len);
                self.taken.fetch_add(len, Ordering::SeqCst);
                Some(Ok(frame))
            }
            Piece::Cut => Some(Err(std::io::Error::other("cut"))),
            Piece::Panic => panic!("a body that fails"),
        })
    }
}

pub(crate) fn studio(change: impl FnOnce(&mut Operation)) -> Studio {
    studio_on(Scripted::on_runtime_clock(), change)
}

pub(crate) fn studio_on(store: Scripted, change: impl FnOnce(&mut Operation)) -> Studio {
    let mut operation = Operation {
        reply: Reply::Streamed,
        ..Operation::default()
    };
    change(&mut operation);
    let policy = Policy::new(vec![operation]).unwrap();
    let engine = Engine::new(store.clone());
    let gate = Arc::new(Semaphore::new(0));
    let calls = Arc::new(AtomicUsize::new(0));
    let (feeds, fed) = mpsc::unbounded_channel();
    let speak = {
        let (gate, calls) = (gate.clone(), calls.clone());
        async move |request: Request| {
            calls.fetch_add(1, Ordering::SeqCst);
            if request.headers().contains_key("hold") {
                gate.acquire().await.unwrap().forget();
            }
            speak(&feeds, request.headers())
        }
    };
    let layer = RefrainLayer::new(engine.clone(), policy);
    Studio {
        store,
        engine,
        app: Router::new().route("/say", post(speak)).layer(layer),
        gate,
        calls,
        feeds: Arc::new(Mutex::new(fed)),
    }
}

fn speak(feeds: &mpsc::UnboundedSender<Feed>, headers: &HeaderMap) -> Response {
    let (pieces, receiver) = mpsc::unbounded_channel();
    let taken = Arc::new(AtomicUsize::new(0));
    let fed = Fed {
        pieces: receiver,
        taken: taken.clone(),
    };
    let _ = feeds.send(Feed { pieces, taken });
    let mut response = Response::new(Body::new(fed));
    let replies = response.headers_mut();
    replies.insert("content-type", "text/event-stream".parse().unwrap());
    replies.insert("set-cookie", "session=secret".parse().unwrap());
    replies.insert("trailer", "x-sum".parse().unwrap());
    if let Some(said) = headers.get("say") {
        replies.insert("refrain-outcome", said.clone());
    }
    if let Some(want) = headers.get("want") {
        *response.status_mut() = StatusCode::from_bytes(want.as_bytes()).unwrap();
    }
    response
}

pub(crate) const KEY: (&str, &str) = ("idempotency-key", "k-1");

/// A response that is being read.
pub(crate) struct Heard {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    body: Body,
}

impl Heard {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// The next chunk.
    pub(crate) async fn next(&mut self) -> String {
        self.maybe_next().await.expect("a piece")
    }

    /// The next chunk, if there is one.
    pub(crate) async fn maybe_next(&mut self) -> Option<String> {
        let frame = tokio::time::timeout(Duration::from_secs(3_600), self.body.frame()).await;
        let frame = frame.expect("a piece in time")?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    }

    /// Whether no chunk is available for now.
    pub(crate) async fn is_silent(&mut self) -> bool {
        let soon = Duration::from_millis(10);
        tokio::time::timeout(soon, self.body.frame()).await.is_err()
    }

    /// Whether the response was cut off before its end.
    pub(crate) async fn is_cut(&mut self) -> bool {
        matches!(self.body.frame().await, Some(Err(_)))
    }

    /// The rest of the response, and how it ends: with `.`, with trailers, or with a cut.
    pub(crate) async fn rest(mut self) -> String {
        let (mut bytes, mut end) = (Vec::new(), ".".to_owned());
        while let Some(frame) = self.body.frame().await {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => bytes.extend(data),
                Ok(Err(frame)) => {
                    let trailers = frame.into_trailers().unwrap();
                    end = format!(" sum {}.", trailers["x-sum"].to_str().unwrap());
                }
                Err(_) => end = " CUT".to_owned(),
            }
        }
        format!("{}{end}", String::from_utf8(bytes).unwrap())
    }
}

impl Studio {
    pub(crate) async fn send(&self, headers: &[(&str, &str)], body: &'static str) -> Heard {
        let mut request = Request::builder().method("POST").uri("/say");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body)).unwrap();
        let (head, body) = self.app.clone().call(request).await.unwrap().into_parts();
        Heard {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        }
    }

    /// Sends the usual request.
    pub(crate) async fn ask(&self) -> Heard {
        self.send(&[KEY], "x").await
    }

    /// Starts the next response.
    pub(crate) async fn feed(&self) -> Feed {
        self.feeds.lock().await.recv().await.unwrap()
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// The reason why the only record is indeterminate, if it is.
    pub(crate) async fn doubt(&self) -> Option<Reason> {
        let page = self.store.list(&Query::default()).await.unwrap();
        match page.readings.first()?.record.state {
            State::Indeterminate { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

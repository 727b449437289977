//! One client's connection: requests go on to the upstream one after another, and something may happen to each.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpStream,
    sync::{Mutex as AsyncMutex, oneshot, watch},
    time::{sleep, timeout},
};

use super::{
    Chaos, Peer,
    body::{Sent, Shown},
    rule::Fault,
    socket::{End, Socket},
};
use crate::place::Place;

/// How large a request may be to be sent twice.
const TWICE_BYTES_MAX: usize = 16 << 20;
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an answer that nobody will see is listened to.
const UNSEEN_MAX: Duration = Duration::from_secs(60);

/// What concerns one connection alone.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
];

/// Requests that are held back until another one has overtaken them, by rule.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<HashMap<u64, oneshot::Sender<()>>>);

impl Waiting {
    /// The one that waits for somebody to overtake it; else the caller is that one, and has this to wait for.
    fn meet(&self, rule: u64) -> Result<oneshot::Sender<()>, oneshot::Receiver<()>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who has gone away meanwhile cannot be overtaken.
        if let Some(other) = waiting.remove(&rule).filter(|other| !other.is_closed()) {
            return Ok(other);
        }
        let (told, tells) = oneshot::channel();
        waiting.insert(rule, told);
        Err(tells)
    }
}

/// The client's connection is to end without an answer.
#[derive(Debug)]
struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ended on purpose")
    }
}

impl std::error::Error for Ended {}

type Answer = Result<Response<Shown>, Ended>;

/// One client's connection.
struct Line {
    chaos: Chaos,
    client: End,
    /// The connection to the upstream, while it stands.
    upstream: AsyncMutex<Option<SendRequest<Sent>>>,
}

pub(super) async fn serve(
    chaos: Chaos,
    stream: TcpStream,
    peer: Peer,
    mut ended: watch::Receiver<()>,
) {
    let client = End::default();
    let socket = Socket::new(stream, client.clone());
    let line = Arc::new(Line {
        chaos,
        client,
        upstream: AsyncMutex::new(None),
    });
    let service = service_fn(move |request| {
        let line = line.clone();
        async move { line.answer(request).await }
    });
    let mut builder = server::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(None);
    builder.half_close(true).preserve_header_case(true);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(socket), service));
    let served = tokio::select! {
        served = &mut serving => served,
        _ = ended.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a client's connection ended");
    }
}

impl Line {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let judged = self
            .chaos
            .rules()
            .judge(request.method().as_str(), request.uri().path());
        let Some((rule, fault)) = judged else {
            self.chaos
                .0
                .passed
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return self.pass(request).await;
        };
        let named = (
            request.method().to_string(),
            request.uri().path().to_owned(),
        );
        let (answer, note) = self.harm(rule, fault, request).await;
        let status = answer.upstream;
        let said = (named.0.as_str(), named.1.as_str());
        self.chaos.journal().note((rule, fault), said, status, note);
        answer.shown
    }

    async fn pass(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let response = self.send(head, Sent::Through(body)).await?;
        Ok(response)
    }

    /// Does to this request what the rule says.
    async fn harm(
        &self,
        rule: u64,
        fault: Fault,
        request: Request<Incoming>,
    ) -> (Harmed, Option<String>) {
        match fault {
            Fault::ResetBefore => {
                self.client.reset_when_closed();
                (Harmed::ended(None), None)
            }
            Fault::Delay(time) => {
                sleep(time).await;
                (Harmed::shown(self.pass(request).await), None)
            }
            Fault::DelayAnswer(time) => {
                let answer = self.pass(request).await;
                sleep(time).await;
                (Harmed::shown(answer), None)
            }
            Fault::Cut(at) => {
                let cut = |body| match body {
                    Shown::Through(body) => Shown::cut(body, at),
                    other => other,
                };
                let answer = self.pass(request).await;
                (
                    Harmed::shown(answer.map(|response| response.map(cut))),
                    None,
                )
            }
            Fault::Slow(rate) => {
                let slow = |body| match body {
                    Shown::Through(body) => Shown::slow(body, rate),
                    other => other,
                };
                let answer = self.pass(request).await;
                (
                    Harmed::shown(answer.map(|response| response.map(slow))),
                    None,
                )
            }
            Fault::DropAnswer => (self.drop_answer(request).await, None),
            Fault::Reorder(patience) => self.reorder(rule, patience, request).await,
            Fault::Twice(later) => self.twice(later, request).await,
            Fault::ResetAfter => self.reset_after(request).await,
        }
    }

    /// The upstream answers to the end, and nobody hears it.
    async fn drop_answer(&self, request: Request<Incoming>) -> Harmed {
        let status = match self.pass(request).await {
            Ok(response) => {
                let status = response.status().as_u16();
                let _ = timeout(UNSEEN_MAX, unheard(response.into_body())).await;
                Some(status)
            }
            Err(Ended) => None,
        };
        // The connection to the upstream goes with the client's.
        self.upstream.lock().await.take();
        Harmed::ended(status)
    }

    async fn reorder(
        &self,
        rule: u64,
        patience: Duration,
        request: Request<Incoming>,
    ) -> (Harmed, Option<String>) {
        match self.chaos.0.reorder.meet(rule) {
            Ok(other) => {
                let answer = self.pass(request).await;
                // It may have waited long enough meanwhile.
                let _ = other.send(());
                (Harmed::shown(answer), Some("overtook another".into()))
            }
            Err(overtaken) => {
                let note = match timeout(patience, overtaken).await {
                    Ok(Ok(())) => "was overtaken",
                    _ => "nobody came to overtake it",
                };
                (Harmed::shown(self.pass(request).await), Some(note.into()))
            }
        }
    }

    async fn twice(&self, later: Duration, request: Request<Incoming>) -> (Harmed, Option<String>) {
        let (head, body) = match whole(request).await {
            Ok(read) => read,
            Err(note) => return (Harmed::ended(None), Some(note)),
        };
        let (again, copy) = (head.clone(), body.clone());
        let upstream = self.chaos.0.upstream.clone();
        let second = tokio::spawn(async move {
            sleep(later).await;
            let sent = send_alone(&upstream, again, Sent::whole(copy));
            timeout(UNSEEN_MAX, sent).await.ok().flatten()
        });
        let answer = self.send(head, Sent::whole(body)).await;
        let note = match later {
            // At once: what the second one got is worth knowing.
            Duration::ZERO => match second.await {
                Ok(Some(status)) => format!("the second one got {status}"),
                _ => "the second one got no answer".into(),
            },
            later => format!("comes again {later:?} later"),
        };
        (Harmed::shown(answer), Some(note))
    }

    /// The request goes out whole on a connection of its own, which outlives the client's.
    async fn reset_after(&self, request: Request<Incoming>) -> (Harmed, Option<String>) {
        let (head, body) = match whole(request).await {
            Ok(read) => read,
            Err(note) => return (Harmed::ended(None), Some(note)),
        };
        let (taken, sent) = oneshot::channel();
        let bytes = Some(body).filter(|body| !body.is_empty());
        let upstream = self.chaos.0.upstream.clone();
        tokio::spawn(async move {
            let body = Sent::Whole(bytes, Some(taken));
            let _ = timeout(UNSEEN_MAX, send_alone(&upstream, head, body)).await;
        });
        let note = sent
            .await
            .err()
            .map(|_| "the upstream could not be reached".to_owned());
        self.client.reset_when_closed();
        (Harmed::ended(None), note)
    }

    /// Over this client's own connection to the upstream, which is made when it is needed.
    async fn send(&self, head: request::Parts, body: Sent) -> Answer {
        let mut held = self.upstream.lock().await;
        let mut request = Request::from_parts(onward(head), body);
        if let Some(mut sender) = held.take()
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    *held = Some(sender);
                    return Ok(shown(response));
                }
                Err(mut error) => match error.take_message() {
                    // Nothing of it was sent: the upstream had closed the connection meanwhile.
                    Some(unsent) => request = unsent,
                    // As without us in between, the client sees its connection end.
                    None => return Err(Ended),
                },
            }
        }
        let Some(mut sender) = connect(&self.chaos.0.upstream).await else {
            return Ok(unreachable(&self.chaos.0.upstream.address));
        };
        let response = sender.send_request(request).await.map_err(|_| Ended)?;
        *held = Some(sender);
        Ok(shown(response))
    }
}

/// What became of a request, and what the upstream said to it.
struct Harmed {
    shown: Answer,
    upstream: Option<u16>,
}

impl Harmed {
    fn shown(shown: Answer) -> Self {
        let upstream = shown
            .as_ref()
            .ok()
            .map(|response| response.status().as_u16());
        Self { shown, upstream }
    }

    fn ended(upstream: Option<u16>) -> Self {
        Self {
            shown: Err(Ended),
            upstream,
        }
    }
}

async fn whole(request: Request<Incoming>) -> Result<(request::Parts, Bytes), String> {
    let (head, body) = request.into_parts();
    let read = Limited::new(body, TWICE_BYTES_MAX).collect().await;
    match read {
        Ok(read) => Ok((head, read.to_bytes())),
        Err(error) => Err(format!("its body could not be read whole: {error}")),
    }
}

async fn connect(upstream: &Place) -> Option<SendRequest<Sent>> {
    let connecting = timeout(CONNECT_MAX, upstream.connect());
    let stream = connecting.await.ok()?.ok()?;
    let mut builder = http1::Builder::new();
    builder.preserve_header_case(true);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the upstream ended");
        }
    });
    Some(sender)
}

/// Sends over a connection of its own and hears the answer out; answers its status.
async fn send_alone(upstream: &Place, head: request::Parts, body: Sent) -> Option<u16> {
    let mut sender = connect(upstream).await?;
    let request = Request::from_parts(onward(head), body);
    let response = sender.send_request(request).await.ok()?;
    let status = response.status().as_u16();
    unheard(Shown::Through(response.into_body())).await;
    Some(status)
}

async fn unheard(mut body: Shown) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Takes away what belongs to the connection that a message came over; most bring nothing of it.
fn without_hop_by_hop(headers: &mut HeaderMap) {
    if headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        for name in &HOP_BY_HOP {
            headers.remove(name);
        }
    }
}

/// The head as it goes on: without what belongs to the connection that it came over.
fn onward(mut head: request::Parts) -> request::Parts {
    without_hop_by_hop(&mut head.headers);
    // A whole body has a length of its own; hyper says it.
    head.version = http::Version::HTTP_11;
    head
}

fn shown(response: Response<Incoming>) -> Response<Shown> {
    let mut response = response.map(Shown::Through);
    without_hop_by_hop(response.headers_mut());
    *response.version_mut() = http::Version::HTTP_11;
    response
}

fn unreachable(upstream: &str) -> Response<Shown> {
    let text = format!("refrain chaos: {upstream} cannot be reached; nothing was sent\n");
    let mut response = Response::new(Shown::Own(Some(text.into())));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

//! One client connection: forwards its requests to the upstream one after another, with faults.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::watch, time::timeout};

use super::{
    Chaos, Peer,
    answer::UnreadResponse,
    exchange::{Failed, Upstream, connect, finish, relay, send_request},
    flow::{Flow, Manner},
    head::Refused,
    request::Request,
    side::Side,
};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Drain limits, in time and bytes, after our write side is closed.
const LINGER_MAX: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 256 << 10;

/// The client's connection must close at once, without a response or in the middle of one.
#[derive(Debug)]
pub(super) struct Ended;

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// A client connection with its upstream connection.
#[derive(Debug)]
pub(super) struct ProxiedConnection {
    pub(super) chaos: Chaos,
    pub(super) client: Side<TcpStream>,
    /// The upstream connection, while it is open.
    pub(super) upstream: Option<Upstream>,
    /// Closes when the proxy shuts down.
    ended: watch::Receiver<()>,
}

/// The next event on the client's connection.
enum ClientEvent {
    Request(Request),
    Refused(Refused),
    /// The client closed the connection, or the proxy shuts down.
    End,
}

pub(super) async fn serve(chaos: Chaos, stream: TcpStream, peer: Peer, ended: watch::Receiver<()>) {
    // No Nagle delay: cuts and delays must come from the rules, not from the TCP stack.
    let _ = stream.set_nodelay(true);
    let line = ProxiedConnection {
        chaos,
        client: Side::new(stream),
        upstream: None,
        ended,
    };
    if line.serve().await.is_err() {
        tracing::debug!(%peer, "a client connection ended");
    }
}

impl ProxiedConnection {
    /// Serves requests until the connection ends.
    async fn serve(mut self) -> Result<(), Ended> {
        let mut ended = self.ended.clone();
        // Only wakes the task at shutdown, and then stays pending because it is polled again.
        let mut ending = pin!(async move {
            let _ = ended.changed().await;
            std::future::pending::<()>().await;
        });
        loop {
            let next = poll_fn(|context| self.poll_next(ending.as_mut(), context));
            let keeps_alive = match next.await? {
                ClientEvent::End => return Ok(()),
                ClientEvent::Request(request) => self.answer(request).await?,
                ClientEvent::Refused(refused) => {
                    self.send_own_response(refused.answer()).await?;
                    false
                }
            };
            if !keeps_alive {
                return self.close().await;
            }
            self.client.input.rest();
        }
    }

    fn poll_next(
        &mut self,
        ending: Pin<&mut impl Future<Output = ()>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<ClientEvent>> {
        // A connection that closed, or sent bytes without a request, is not reused.
        if let Some(upstream) = &mut self.upstream
            && upstream.poll_read(context).is_ready()
        {
            self.upstream = None;
        }
        loop {
            let Side { input, heads, .. } = &mut self.client;
            match heads.request(&mut input.bytes) {
                Ok(None) => {}
                Ok(Some(request)) => return Poll::Ready(Ok(ClientEvent::Request(request))),
                Err(refused) => return Poll::Ready(Ok(ClientEvent::Refused(refused))),
            }
            let is_begun = !input.bytes.is_empty();
            let polled = self.client.poll_read(context);
            if polled.is_pending() && !is_begun {
                let _ = ending.poll(context);
                return match self.is_ending() {
                    true => Poll::Ready(Ok(ClientEvent::End)),
                    false => Poll::Pending,
                };
            }
            if ready!(polled)? == 0 {
                return Poll::Ready(Ok(ClientEvent::End));
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.ended.has_changed().is_err()
    }

    /// Serves a request; returns whether another may follow on the connection.
    async fn answer(&mut self, mut request: Request) -> Result<bool, Ended> {
        let (method, path) = (request.method.as_str(), request.uri.path());
        let Some((rule, fault)) = self.chaos.rules().judge(method, path) else {
            self.chaos.0.passed.fetch_add(1, Relaxed);
            let answer = self.pass(&mut request).await?;
            return self
                .send_response(answer, Manner::AsItComes, &mut request.onward)
                .await;
        };
        let (harmed, note) = self.harm(rule, fault, &mut request).await;
        let named = (request.method.as_str(), request.uri.path());
        let journal = self.chaos.journal();
        journal.note((rule, fault), named, harmed.upstream, note);
        let (answer, manner) = harmed.shown?;
        self.send_response(answer, manner, &mut request.onward)
            .await
    }

    /// Sends a request over this client's own upstream connection; connects if there is none.
    pub(super) async fn pass(&mut self, request: &mut Request) -> Result<UnreadResponse, Ended> {
        if self.upstream.is_some() {
            match self.request_upstream(request).await {
                // With TLS a part may have been sent even if the write failed, so do not send it again.
                Err(Failed::Unsent) if self.chaos.0.upstream.is_plain() => {}
                // Close the client's connection, as the upstream would without this proxy.
                answer => return answer.map_err(|_| Ended),
            }
        }
        self.upstream = connect(&self.chaos.0.upstream).await;
        if self.upstream.is_none() {
            return Ok(self.unreachable(request));
        }
        self.request_upstream(request).await.map_err(|_| Ended)
    }

    async fn request_upstream(&mut self, request: &mut Request) -> Result<UnreadResponse, Failed> {
        self.send_continue(request)
            .await
            .map_err(|_| Failed::Lost)?;
        let Some(upstream) = &mut self.upstream else {
            return Err(Failed::Unsent);
        };
        send_request(
            &mut self.client,
            upstream,
            &mut request.onward,
            request.asked,
        )
        .await
    }

    /// Sends `100 Continue` if the client waits for it.
    pub(super) async fn send_continue(&mut self, request: &mut Request) -> io::Result<()> {
        let is_expected = std::mem::take(&mut request.asked.expects_continue);
        if is_expected && !request.onward.is_read() && self.client.input.bytes.is_empty() {
            self.client.io.write_all(CONTINUE).await?;
        }
        Ok(())
    }

    fn unreachable(&self, request: &Request) -> UnreadResponse {
        let upstream = &self.chaos.0.upstream.address;
        let text = format!("{upstream} is unreachable; the request was not sent");
        UnreadResponse::own(StatusCode::BAD_GATEWAY, &text, request.asked)
    }

    /// Sends a response to the client and the rest of its request to the upstream; returns whether another may follow.
    async fn send_response(
        &mut self,
        answer: UnreadResponse,
        manner: Manner,
        request: &mut Flow,
    ) -> Result<bool, Ended> {
        // If the response came before the end of the request, do not reuse the connections.
        let keeps_alive = answer.keeps_alive() && request.is_sent() && !self.is_ending();
        let stays_open = answer.stays_open && request.is_sent();
        let Some(upstream) = &mut self.upstream else {
            return self.send_own_response(answer).await.map(|()| false);
        };
        let mut flow = answer.into_flow(keeps_alive, manner);
        relay(&mut self.client, upstream, request, &mut flow)
            .await
            .map_err(|_| Ended)?;
        finish(&mut self.client, upstream, request).await;
        match stays_open && upstream.input.bytes.is_empty() {
            true => upstream.input.rest(),
            false => self.upstream = None,
        }
        Ok(keeps_alive)
    }

    /// Sends a response made by this proxy.
    async fn send_own_response(&mut self, answer: UnreadResponse) -> Result<(), Ended> {
        let mut flow = answer.into_flow(false, Manner::AsItComes);
        let mut nobody = Side::new(tokio::io::empty());
        let said = poll_fn(|context| flow.poll(&mut nobody, &mut self.client.io, context));
        said.await.map_err(|_| Ended)
    }

    /// Closes the write side, then drains client data for a moment: a close with unread data would be a reset, and the
    /// client might lose the response.
    async fn close(mut self) -> Result<(), Ended> {
        self.upstream = None;
        self.client.io.shutdown().await?;
        let rest = async {
            let mut heard = 0;
            while heard <= LINGER_BYTES_MAX {
                self.client.input.bytes.clear();
                match self.client.read().await {
                    Ok(read @ 1..) => heard += read,
                    _ => break,
                }
            }
        };
        let _ = timeout(LINGER_MAX, rest).await;
        Ok(())
    }
}

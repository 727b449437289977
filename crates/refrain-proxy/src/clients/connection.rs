//! An HTTP/1 client connection: serves one request after the other, each in the task of the connection.
//!
//! One system call reads a request and another writes its response; nothing is passed between tasks.
//! A client that disconnects before its response is sent ends the connection, which drops every future that waits for the response.
//! The layer makes sure that this does not cancel guarded requests.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body as _;
use refrain::http::Replay;
use tokio::{
    io::{AsyncWrite as _, AsyncWriteExt as _, Interest},
    net::{TcpStream, tcp::OwnedWriteHalf},
    sync::oneshot,
    task::coop,
};

use super::{
    ClientBody,
    front::{Front, FrontResponse, Fronted, Fronting},
    head::{self, RefusedHead, RequestHead, RequestTraits},
    inlet::{GoOn, Inlet, Serving},
    linger::linger,
    reply::{self, Reply},
};
use crate::{
    http1::{COPIED_MAX, Input, Length, Limits, SendError, Sending},
    tunnel::{self, OpenedTunnel},
    watch::{Active, Client, Date, WatchedStream},
};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Largest capacity of a buffer that is kept for the next response.
const SPARE_BYTES_MAX: usize = 32 << 10;

/// A client's connection.
pub(super) struct Connection {
    inlet: Inlet,
    serving: Serving,
    write: WatchedStream<OwnedWriteHalf>,
    front: Front,
    client: Arc<Client>,
    limits: Limits,
    /// Date of the last response, and the time it was taken.
    date: (u64, Date),
    /// Whether the body of the current request was not read completely when its handling began.
    is_lent: bool,
    /// Whether a waker is registered for input from the client.
    is_listening: bool,
    /// Rest of the interim response that must be sent before the response.
    interim: &'static [u8],
    /// Buffer for the next head.
    spare: Vec<u8>,
}

/// Result of waiting for the next request of a client.
enum ConnectionStep {
    Request(RequestHead, ClientBody),
    BadHead(RefusedHead),
    /// No more requests: the client closed the connection, or the proxy is draining.
    End,
}

/// A response that is being sent.
struct Leaving {
    sending: Sending<FrontResponse>,
    /// Whether it is a `101`, after which the connection is a tunnel.
    switches: bool,
    keeps_alive: bool,
    /// Hands the connection to the tunnel after a `101`.
    opened: Option<oneshot::Sender<OpenedTunnel>>,
}

/// Lets all other tasks run first that are ready now.
///
/// The system call that sends takes most of the time of a replay, and runs far more code than anything else here.
/// So all ready connections read and decide first, and then all of them send: the code of each phase stays in the processor's cache.
async fn yield_to_others() {
    let mut is_last = false;
    poll_fn(|context| match std::mem::replace(&mut is_last, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// How much of a replay was sent at once.
enum SendProgress {
    All(After),
    /// Boxed, because most replays are sent completely.
    Leaving(Box<Leaving>),
}

/// What happens to a connection after a response.
enum After {
    Next,
    Close,
    /// Hand it over to a tunnel.
    Over(oneshot::Sender<OpenedTunnel>),
}

impl After {
    fn of(keeps_alive: bool) -> Self {
        match keeps_alive {
            true => Self::Next,
            false => Self::Close,
        }
    }
}

impl Connection {
    /// A connection from which `input` was already read.
    pub(super) fn new(stream: TcpStream, input: Input, front: Front, limits: Limits) -> Self {
        let (read, write) = stream.into_split();
        let client = front.client.clone();
        let inlet = Inlet::new(read, input);
        Self {
            serving: Serving(inlet.clone()),
            inlet,
            write: WatchedStream {
                stream: write,
                client: client.clone(),
            },
            front,
            client,
            limits,
            date: (0, Date::none()),
            is_lent: false,
            is_listening: false,
            interim: &[],
            spare: Vec::new(),
        }
    }

    /// Serves requests until the last one.
    ///
    /// # Errors
    /// When the client disconnects, or a response fails midway.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    pub(super) fn serve(mut self) -> impl Future<Output = io::Result<()>> + Send {
        async move {
            loop {
                let after = match poll_fn(|context| self.poll_next(context)).await? {
                    ConnectionStep::End => return Ok(()),
                    ConnectionStep::Request(head, body) => self.request(head, body).await?,
                    ConnectionStep::BadHead(refused) => Box::pin(self.refuse(refused)).await?,
                };
                match after {
                    After::Next if self.drain_for_reuse().await => {}
                    After::Next | After::Close => return Box::pin(self.close()).await,
                    After::Over(opened) => return self.hand_over(opened),
                }
            }
        }
    }

    async fn refuse(&mut self, refused: RefusedHead) -> io::Result<After> {
        let answer = self.front.refuse(refused.code, refused.why);
        let mut leaving = self.encode_response(answer, RequestTraits::nothing());
        poll_fn(|context| self.poll_send(&mut leaving, context)).await?;
        Ok(self.finish_response(leaving))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<ConnectionStep>> {
        let mut reading = self.inlet.lock();
        loop {
            match reading.take_head(self.limits) {
                Ok(None) => {}
                Ok(Some(head)) => {
                    // Most bodies have already been read completely.
                    let whole = reading.take_whole(head.framing);
                    self.is_lent = whole.is_none();
                    let body = match whole {
                        Some(whole) => ClientBody::whole(whole),
                        None => {
                            reading.lend(head.framing, head.asked.expects_continue);
                            ClientBody::inlet(self.inlet.clone(), &self.client)
                        }
                    };
                    return Poll::Ready(Ok(ConnectionStep::Request(head, body)));
                }
                Err(refused) => return Poll::Ready(Ok(ConnectionStep::BadHead(refused))),
            }
            let is_begun = !reading.input.bytes.is_empty();
            if is_begun && self.client.has_timed_out() {
                return Poll::Ready(Ok(ConnectionStep::BadHead(RefusedHead::timed_out())));
            }
            match is_begun {
                true => self.client.note_head(),
                false => reading.input.rest(),
            }
            let polled = reading.poll_read(context);
            if polled.is_pending() && !is_begun && self.client.is_draining() {
                return Poll::Ready(Ok(ConnectionStep::End));
            }
            if ready!(polled)? == 0 {
                return Poll::Ready(Ok(ConnectionStep::End));
            }
        }
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    fn request(
        &mut self,
        head: RequestHead,
        body: ClientBody,
    ) -> impl Future<Output = io::Result<After>> + Send {
        async move {
            self.is_listening = false;
            let (mut parts, asked) = (head.parts, head.asked);
            let opened = asked.upgrades.then(|| tunnel::offer(&mut parts));
            let mut leaving = match self.front.replay_or_call(parts, body) {
                Fronted::Replay(replay, parts) => {
                    head::reuse(parts);
                    // Restarts the idle timeout, because the request waits here.
                    self.client.note_answered();
                    yield_to_others().await;
                    let sent = poll_fn(|context| Poll::Ready(self.replay(&replay, asked, context)));
                    match sent.await? {
                        SendProgress::All(after) => return Ok(after),
                        SendProgress::Leaving(leaving) => *leaving,
                    }
                }
                Fronted::Making(mut fronting) => {
                    poll_fn(|context| self.poll_answer(&mut fronting, asked, context)).await?
                }
            };
            leaving.opened = opened.filter(|_| leaving.switches);
            poll_fn(|context| self.poll_send(&mut leaving, context)).await?;
            Ok(self.finish_response(leaving))
        }
    }

    fn poll_answer(
        &mut self,
        fronting: &mut Fronting,
        asked: RequestTraits,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Leaving>> {
        if let Poll::Ready(answer) = Pin::new(fronting).poll(context) {
            let Ok(answer) = answer;
            return Poll::Ready(Ok(self.encode_response(answer, asked)));
        }
        self.send_continue(context)?;
        self.poll_gone(context).map(Err)
    }

    /// Sends `100 Continue` once the handler wants the body.
    fn send_continue(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.is_lent {
            return Ok(());
        }
        let mut reading = self.inlet.lock();
        if reading.go_on == GoOn::Wanted {
            reading.go_on = GoOn::Said;
            self.interim = CONTINUE;
        }
        drop(reading);
        while !self.interim.is_empty() {
            let polled = Pin::new(&mut self.write).poll_write(context, self.interim);
            let Poll::Ready(written) = polled else {
                break;
            };
            self.interim = &self.interim[written?..];
        }
        Ok(())
    }

    /// Ready when the client has disconnected. Reads only after the end of the current request, where the next one would start.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        // Other events wake this task, too. The waker is still registered then, so no further read is needed.
        if self.is_listening && !self.has_input() {
            return Poll::Pending;
        }
        let mut reading = self.inlet.lock();
        if !reading.is_quiet() {
            return Poll::Pending;
        }
        let polled = reading.poll_read(context);
        // Out of cooperative budget, the read registers no waker and the task is scheduled again at once.
        self.is_listening = polled.is_pending() && coop::has_budget_remaining();
        match ready!(polled) {
            Ok(0) => Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    /// Whether the client may have sent bytes or disconnected.
    fn has_input(&self) -> bool {
        let stream = self.write.stream.as_ref();
        stream.try_io(Interest::READABLE, || Ok(())).is_ok()
    }

    /// Encodes the head of a response, which is then ready to be sent.
    fn encode_response(
        &mut self,
        answer: Response<FrontResponse>,
        asked: RequestTraits,
    ) -> Leaving {
        let (head, body) = answer.into_parts();
        let size = match body.is_end_stream() {
            true => Some(0),
            false => body.size_hint().exact(),
        };
        let reply = reply::from_head(&head, size, asked, self.can_go_on(asked));
        let mut out = self.outgoing();
        let (length, keeps_alive) = reply.write(&mut out, self.client.date(&mut self.date));
        Leaving {
            sending: Sending::new(out, length, body),
            switches: head.status == StatusCode::SWITCHING_PROTOCOLS,
            keeps_alive,
            opened: None,
        }
    }

    /// Sends a replay directly from the stored bytes. Most are sent completely.
    fn replay(
        &mut self,
        replay: &Replay,
        asked: RequestTraits,
        context: &mut Context<'_>,
    ) -> io::Result<SendProgress> {
        let content = replay.content();
        let reply = Reply {
            status: replay.status(),
            reason: None,
            fields: replay.fields(),
            size: Some(content.len() as u64),
            asked,
            keeps_alive: self.can_go_on(asked),
        };
        let mut out = self.outgoing();
        let (mut length, keeps_alive) = reply.write(&mut out, self.client.date(&mut self.date));
        if let Length::Left(1..) = length
            && content.len() <= COPIED_MAX
        {
            out.extend_from_slice(content);
            length = Length::Left(0);
        }
        if let Length::Left(0) = length
            && let Poll::Ready(written) = Pin::new(&mut self.write).poll_write(context, &out)
        {
            let written = written?;
            if written == out.len() {
                self.client.note_answered();
                self.keep_buffer(out);
                return Ok(SendProgress::All(After::of(keeps_alive)));
            }
            out.drain(..written);
        }
        let body = match length {
            Length::Left(0) => Bytes::new(),
            _ => replay.body(),
        };
        let answer = FrontResponse::of(body, Active::start(&self.client));
        Ok(SendProgress::Leaving(Box::new(Leaving {
            sending: Sending::new(out, length, answer),
            switches: false,
            keeps_alive,
            opened: None,
        })))
    }

    /// Whether another request may follow the current one, as far as is known.
    fn can_go_on(&self, asked: RequestTraits) -> bool {
        asked.keeps_alive
            && !self.client.is_draining()
            && (!self.is_lent || self.inlet.lock().can_go_on())
    }

    /// The buffer for a response, starting with the rest of the interim response.
    fn outgoing(&mut self) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.spare);
        out.extend_from_slice(std::mem::take(&mut self.interim));
        out
    }

    fn poll_send(
        &mut self,
        leaving: &mut Leaving,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match leaving.sending.poll(&mut self.write, context) {
            Poll::Pending => self.poll_gone(context).map(Err),
            Poll::Ready(sent) => Poll::Ready(sent.map_err(|stuck| match stuck {
                SendError::Io(error) => error,
                SendError::Body(error) => io::Error::other(error),
            })),
        }
    }

    fn finish_response(&mut self, leaving: Leaving) -> After {
        self.keep_buffer(leaving.sending.into_buffer());
        match leaving.opened {
            Some(opened) => After::Over(opened),
            None => After::of(leaving.keeps_alive),
        }
    }

    /// Keeps the buffer of a response for the next one.
    fn keep_buffer(&mut self, mut spare: Vec<u8>) {
        if spare.capacity() <= SPARE_BYTES_MAX {
            spare.clear();
            self.spare = spare;
        }
    }

    /// Prepares the connection for its next request; returns whether it can be reused.
    async fn drain_for_reuse(&mut self) -> bool {
        let is_over = !self.is_lent || self.inlet.lock().is_over();
        is_over || self.drain().await
    }

    /// Discards the rest of a body once its handler no longer wants it.
    async fn drain(&mut self) -> bool {
        poll_fn(|context| self.inlet.lock().poll_let_go(context)).await;
        let mut drained = 0;
        poll_fn(|context| {
            let before = drained;
            let polled = self.inlet.lock().poll_drain(&mut drained, context);
            if drained > before {
                self.client.note_body(false);
            }
            self.client.note_body(polled.is_pending());
            polled
        })
        .await
    }

    /// Closes the connection. A client that still sends is read for a while, because a reset could destroy the response.
    async fn close(mut self) -> io::Result<()> {
        self.write.shutdown().await?;
        poll_fn(|context| self.inlet.lock().poll_let_go(context)).await;
        if self.inlet.lock().is_quiet() {
            return Ok(());
        }
        // Keeps the idle timeout from closing the connection meanwhile.
        let _active = Active::start(&self.client);
        linger(|context| {
            let mut reading = self.inlet.lock();
            reading.input.bytes.clear();
            reading.poll_read(context).map(|read| read.unwrap_or(0))
        })
        .await;
        Ok(())
    }

    /// Hands the connection to the tunnel after a `101`.
    fn hand_over(self, opened: oneshot::Sender<OpenedTunnel>) -> io::Result<()> {
        let Self {
            inlet,
            serving,
            write,
            ..
        } = self;
        drop(serving);
        let parts = inlet.into_parts();
        let (read, input) = parts.ok_or(io::ErrorKind::ResourceBusy)?;
        let stream = read.reunite(write.stream).map_err(io::Error::other)?;
        // If the receiver is gone, the connection is just closed.
        let _ = opened.send(OpenedTunnel {
            stream,
            read: input.bytes,
        });
        Ok(())
    }
}

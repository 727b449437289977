//! A client that speaks HTTP/1: one request after the other, each answered in the task of its connection.
//!
//! A request is read with one call to the system and its answer written with another; nothing is handed about.
//! A client that hangs up while it is answered ends the connection, and with it whatever waits for the answer:
//! what must not be cut off is not cut off by that, for the layer sees to it.

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
    front::{Answer, Front, Fronted, Fronting},
    head::{self, Asked, Head, Refused},
    inlet::{GoOn, Inlet, Serving},
    linger::linger,
    reply::{self, Reply},
};
use crate::{
    http1::{COPIED_MAX, Input, Length, Limits, Sending, Stuck},
    tunnel::{self, Opened},
    watch::{Active, Client, Date, WatchedStream},
};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// A buffer that was larger than this is not kept for the next answer.
const SPARE_BYTES_MAX: usize = 32 << 10;

/// A client's connection.
pub(super) struct Connection {
    inlet: Inlet,
    serving: Serving,
    write: WatchedStream<OwnedWriteHalf>,
    front: Front,
    client: Arc<Client>,
    limits: Limits,
    /// The date of the last answer, and when that was.
    date: (u64, Date),
    /// Whether the body of the request that is being answered was still on its way when that began.
    is_lent: bool,
    /// Whether the task of this connection is woken when anything comes from the client.
    is_listening: bool,
    /// What is left to say before the answer.
    interim: &'static [u8],
    /// What the next head is written into.
    spare: Vec<u8>,
}

/// What a client says next.
enum Next {
    Request(Head, ClientBody),
    Refused(Refused),
    /// Nothing.
    End,
}

/// An answer on its way.
struct Leaving {
    sending: Sending<Answer>,
    /// Whether it says that the connection is used for something else from now on.
    switches: bool,
    keeps_alive: bool,
    /// Who gets the connection then.
    opened: Option<oneshot::Sender<Opened>>,
}

/// Lets everybody go first who is ready now.
///
/// To send takes the system most of the time of a replay, and far more code than anything else here.
/// So each of a crowd reads and decides first, and then each of them sends: the processor's cache keeps what it needs for the next one.
async fn others_first() {
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

/// How far an answer that is there comes at once.
enum Sent {
    All(After),
    /// Boxed, because most leave as a whole.
    Leaving(Box<Leaving>),
}

/// What becomes of a connection behind an answer.
enum After {
    Next,
    Close,
    /// It is not ours any more.
    Over(oneshot::Sender<Opened>),
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
    /// A connection of which `input` was read.
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

    /// Answers requests until the last one.
    ///
    /// # Errors
    /// When the client hangs up, or an answer breaks off.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    pub(super) fn serve(mut self) -> impl Future<Output = io::Result<()>> + Send {
        async move {
            loop {
                let after = match poll_fn(|context| self.poll_next(context)).await? {
                    Next::End => return Ok(()),
                    Next::Request(head, body) => self.request(head, body).await?,
                    Next::Refused(refused) => Box::pin(self.refuse(refused)).await?,
                };
                match after {
                    After::Next if self.drained().await => {}
                    After::Next | After::Close => return Box::pin(self.close()).await,
                    After::Over(opened) => return self.hand_over(opened),
                }
            }
        }
    }

    async fn refuse(&mut self, refused: Refused) -> io::Result<After> {
        let answer = self.front.refuse(refused.code, refused.why);
        let mut leaving = self.leaving(answer, Asked::nothing());
        poll_fn(|context| self.poll_send(&mut leaving, context)).await?;
        Ok(self.left(leaving))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Next>> {
        let mut reading = self.inlet.lock();
        loop {
            match reading.take_head(self.limits) {
                Ok(None) => {}
                Ok(Some(head)) => {
                    // Most bodies are there as a whole.
                    let whole = reading.take_whole(head.framing);
                    self.is_lent = whole.is_none();
                    let body = match whole {
                        Some(whole) => ClientBody::whole(whole),
                        None => {
                            reading.lend(head.framing, head.asked.expects_continue);
                            ClientBody::inlet(self.inlet.clone(), &self.client)
                        }
                    };
                    return Poll::Ready(Ok(Next::Request(head, body)));
                }
                Err(refused) => return Poll::Ready(Ok(Next::Refused(refused))),
            }
            let is_begun = !reading.input.bytes.is_empty();
            if is_begun && self.client.has_timed_out() {
                return Poll::Ready(Ok(Next::Refused(Refused::late())));
            }
            match is_begun {
                true => self.client.note_head(),
                false => reading.input.rest(),
            }
            let polled = reading.poll_read(context);
            if polled.is_pending() && !is_begun && self.client.is_draining() {
                return Poll::Ready(Ok(Next::End));
            }
            if ready!(polled)? == 0 {
                return Poll::Ready(Ok(Next::End));
            }
        }
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    fn request(
        &mut self,
        head: Head,
        body: ClientBody,
    ) -> impl Future<Output = io::Result<After>> + Send {
        async move {
            self.is_listening = false;
            let (mut parts, asked) = (head.parts, head.asked);
            let opened = asked.upgrades.then(|| tunnel::offer(&mut parts));
            let mut leaving = match self.front.replay_or_call(parts, body) {
                Fronted::Replay(replay, parts) => {
                    head::reuse(parts);
                    // It is not idle while it waits.
                    self.client.note_answered();
                    others_first().await;
                    let sent = poll_fn(|context| Poll::Ready(self.replay(&replay, asked, context)));
                    match sent.await? {
                        Sent::All(after) => return Ok(after),
                        Sent::Leaving(leaving) => *leaving,
                    }
                }
                Fronted::Making(mut fronting) => {
                    poll_fn(|context| self.poll_answer(&mut fronting, asked, context)).await?
                }
            };
            leaving.opened = opened.filter(|_| leaving.switches);
            poll_fn(|context| self.poll_send(&mut leaving, context)).await?;
            Ok(self.left(leaving))
        }
    }

    fn poll_answer(
        &mut self,
        fronting: &mut Fronting,
        asked: Asked,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Leaving>> {
        if let Poll::Ready(answer) = Pin::new(fronting).poll(context) {
            let Ok(answer) = answer;
            return Poll::Ready(Ok(self.leaving(answer, asked)));
        }
        self.say_go_on(context)?;
        self.poll_gone(context).map(Err)
    }

    /// Tells the client to send its body, once somebody wants that.
    fn say_go_on(&mut self, context: &mut Context<'_>) -> io::Result<()> {
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

    /// Ready when the client has hung up. Nothing is read but where the next request would be.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        // Whoever waits is woken by much else, and is still told of this then.
        if self.is_listening && !self.has_heard() {
            return Poll::Pending;
        }
        let mut reading = self.inlet.lock();
        if !reading.is_quiet() {
            return Poll::Pending;
        }
        let polled = reading.poll_read(context);
        // Who has done much lately is sent away unheard, to come again at once.
        self.is_listening = polled.is_pending() && coop::has_budget_remaining();
        match ready!(polled) {
            Ok(0) => Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    /// Whether anything may have come from the client, or its end.
    fn has_heard(&self) -> bool {
        let stream = self.write.stream.as_ref();
        stream.try_io(Interest::READABLE, || Ok(())).is_ok()
    }

    /// Makes an answer ready to leave.
    fn leaving(&mut self, answer: Response<Answer>, asked: Asked) -> Leaving {
        let (head, body) = answer.into_parts();
        let size = match body.is_end_stream() {
            true => Some(0),
            false => body.size_hint().exact(),
        };
        let reply = reply::of(&head, size, asked, self.can_go_on(asked));
        let mut out = self.outgoing();
        let (length, keeps_alive) = reply.write(&mut out, self.client.date(&mut self.date));
        Leaving {
            sending: Sending::new(out, length, body),
            switches: head.status == StatusCode::SWITCHING_PROTOCOLS,
            keeps_alive,
            opened: None,
        }
    }

    /// Sends a stored outcome, straight from where it is stored. Most leave as a whole.
    fn replay(
        &mut self,
        replay: &Replay,
        asked: Asked,
        context: &mut Context<'_>,
    ) -> io::Result<Sent> {
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
                self.keep(out);
                return Ok(Sent::All(After::of(keeps_alive)));
            }
            out.drain(..written);
        }
        let body = match length {
            Length::Left(0) => Bytes::new(),
            _ => replay.body(),
        };
        let answer = Answer::of(body, Active::start(&self.client));
        Ok(Sent::Leaving(Box::new(Leaving {
            sending: Sending::new(out, length, answer),
            switches: false,
            keeps_alive,
            opened: None,
        })))
    }

    /// Whether another request may follow the one that is answered, as far as can be told.
    fn can_go_on(&self, asked: Asked) -> bool {
        asked.keeps_alive
            && !self.client.is_draining()
            && (!self.is_lent || self.inlet.lock().can_go_on())
    }

    /// What an answer is written into, behind what is left to say before it.
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
                Stuck::Io(error) => error,
                Stuck::Body(error) => io::Error::other(error),
            })),
        }
    }

    fn left(&mut self, leaving: Leaving) -> After {
        self.keep(leaving.sending.into_buffer());
        match leaving.opened {
            Some(opened) => After::Over(opened),
            None => After::of(leaving.keeps_alive),
        }
    }

    /// Keeps for the next answer what one was written into.
    fn keep(&mut self, mut spare: Vec<u8>) {
        if spare.capacity() <= SPARE_BYTES_MAX {
            spare.clear();
            self.spare = spare;
        }
    }

    /// Makes the connection ready for its next request, if it can be.
    async fn drained(&mut self) -> bool {
        let is_over = !self.is_lent || self.inlet.lock().is_over();
        is_over || self.drain().await
    }

    /// Takes away the rest of a body once nobody wants it.
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

    /// Ends the connection. A client that still sends is read for a while, or it might lose the answer to a reset.
    async fn close(mut self) -> io::Result<()> {
        self.write.shutdown().await?;
        poll_fn(|context| self.inlet.lock().poll_let_go(context)).await;
        if self.inlet.lock().is_quiet() {
            return Ok(());
        }
        // It is not idle meanwhile.
        let _active = Active::start(&self.client);
        linger(|context| {
            let mut reading = self.inlet.lock();
            reading.input.bytes.clear();
            reading.poll_read(context).map(|read| read.unwrap_or(0))
        })
        .await;
        Ok(())
    }

    /// Gives the connection to who answered with `101`.
    fn hand_over(self, opened: oneshot::Sender<Opened>) -> io::Result<()> {
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
        // Nobody takes it where the upstream is gone again.
        let _ = opened.send(Opened {
            stream,
            read: input.bytes,
        });
        Ok(())
    }
}

//! Bodies on their way: as they come, whole from memory, cut, or trickling.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{sync::oneshot, time::Sleep};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long what is before a cut has to leave.
const BEFORE_THE_CUT: Duration = Duration::from_millis(50);
/// How often a trickling body gives out a piece.
const TRICKLES_PER_SECOND: u64 = 20;

/// A request's body on its way to the upstream.
#[derive(Debug)]
pub(super) enum Sent {
    Through(Incoming),
    /// From memory; tells when it has been taken.
    Whole(Option<Bytes>, Option<oneshot::Sender<()>>),
}

impl Sent {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes).filter(|bytes| !bytes.is_empty()), None)
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut *self {
            Self::Through(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Self::Whole(bytes, taken) => {
                if let Some(taken) = taken.take() {
                    let _ = taken.send(());
                }
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Through(body) => body.is_end_stream(),
            Self::Whole(bytes, taken) => bytes.is_none() && taken.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Through(body) => body.size_hint(),
            Self::Whole(bytes, _) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

/// An answer's body on its way to the client.
#[derive(Debug)]
pub(super) enum Shown {
    Through(Incoming),
    Cut(Box<Cutting>),
    Slow(Box<Trickle>),
    Own(Option<Bytes>),
}

/// A body that breaks off behind so many bytes.
#[derive(Debug)]
pub(super) struct Cutting {
    body: Incoming,
    left: u64,
    /// Set once nothing is left: what is before the cut has to leave first.
    pause: Option<Pin<Box<Sleep>>>,
}

/// A body that trickles.
#[derive(Debug)]
pub(super) struct Trickle {
    body: Incoming,
    held: Bytes,
    piece: usize,
    pause: Pin<Box<Sleep>>,
}

impl Shown {
    pub(super) fn cut(body: Incoming, at: u64) -> Self {
        Self::Cut(Box::new(Cutting {
            body,
            left: at,
            pause: None,
        }))
    }

    pub(super) fn slow(body: Incoming, bytes_per_second: u64) -> Self {
        let piece = (bytes_per_second / TRICKLES_PER_SECOND).max(1);
        Self::Slow(Box::new(Trickle {
            body,
            held: Bytes::new(),
            piece: usize::try_from(piece).unwrap_or(usize::MAX),
            pause: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }))
    }
}

impl Cutting {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.left > 0 {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let Some(Ok(frame)) = frame else {
                return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
            };
            if let Ok(mut data) = frame.into_data() {
                data.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= data.len() as u64;
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
        let pause = self
            .pause
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(BEFORE_THE_CUT)));
        ready!(pause.as_mut().poll(context));
        Poll::Ready(Some(Err("cut on purpose".into())))
    }
}

impl Trickle {
    /// Each piece is followed by the pause that makes up the rate.
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        ready!(self.pause.as_mut().poll(context));
        if self.held.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.held = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.held.split_to(self.piece.min(self.held.len()));
        let pause = Duration::from_millis(1_000 / TRICKLES_PER_SECOND);
        let next = tokio::time::Instant::now() + pause;
        self.pause.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl Body for Shown {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut *self {
            Self::Through(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Self::Slow(trickle) => trickle.poll_frame(context),
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Cut(cutting) => cutting.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Through(body) => body.is_end_stream(),
            // Asked once more, so that it breaks off.
            Self::Cut(_) => false,
            Self::Slow(trickle) => trickle.held.is_empty() && trickle.body.is_end_stream(),
            Self::Own(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Through(body) => body.size_hint(),
            Self::Cut(cutting) => cutting.body.size_hint(),
            Self::Slow(trickle) => {
                let (rest, held) = (trickle.body.size_hint(), trickle.held.len() as u64);
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower() + held);
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper + held);
                }
                hint
            }
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

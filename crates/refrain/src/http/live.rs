//! `Running` and `Replied`: a streamed body, one buffer that the recorder fills and that each reader reads at its own pace.
//!
//! Up to the cap the whole body is kept, to be recorded, and a slow reader delays no other reader.
//! Above the cap only a window is kept. The first caller sets the pace there; after it has gone, the reader that is furthest
//! ahead. A reader that falls out of the window is cut off.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::{BodyError, body::Share};

/// Maximum number of readers of one body.
const FOLLOWERS_MAX: usize = 1_024;
/// Bytes kept for the readers above the cap.
const WINDOW_MAX: usize = 256 << 10;
/// Maximum size of a frame for a reader that lags behind.
const PIECE_MAX: usize = 64 << 10;

/// Error of a body that was cut off.
#[derive(Debug, thiserror::Error)]
#[error("the response was cut off")]
struct Cut;

/// A body that is read while the recorder fills it.
pub(super) struct LiveBody {
    /// Size hint of the body before its first byte.
    hint: SizeHint,
    bytes_max: usize,
    state: Mutex<LiveState>,
}

#[derive(Default)]
struct LiveState {
    /// Bytes that readers can still read.
    kept: BytesMut,
    /// Their share of the memory budget for bodies.
    share: Share,
    /// Number of bytes dropped before `kept`.
    gone: u64,
    /// The last piece as it arrived, so that readers that are up to date get it without a copy.
    last: Bytes,
    /// Whether the body is over the cap.
    is_over: bool,
    end: Option<End>,
    readers: Vec<Option<Reader>>,
    /// Waker of the recorder while it waits for room.
    recorder: Option<Waker>,
}

enum End {
    Whole(Option<Box<HeaderMap>>),
    Cut,
}

/// State of one reader.
#[derive(Default)]
struct Reader {
    /// Number of bytes that it has read.
    read: u64,
    is_first: bool,
    is_cut: bool,
    waker: Option<Waker>,
}

impl LiveBody {
    /// Starts a body; returns its recorder and the reader of the first caller.
    pub(super) fn begin(hint: SizeHint, bytes_max: usize, share: Share) -> (Recorder, Follower) {
        let first = Reader {
            is_first: true,
            ..Reader::default()
        };
        let over = usize::try_from(hint.lower()).map_or(true, |lower| lower > bytes_max);
        let state = LiveState {
            share,
            is_over: over,
            readers: vec![Some(first)],
            ..LiveState::default()
        };
        let body = Arc::new(Self {
            hint,
            bytes_max,
            state: Mutex::new(state),
        });
        let recorder = Recorder { body: body.clone() };
        (recorder, Follower::new(body, 0))
    }

    /// Reads the body from its beginning; `None` if the beginning was dropped, or if it has too many readers.
    pub(super) fn follow(self: &Arc<Self>) -> Option<Follower> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        let free = state.readers.iter().position(Option::is_none);
        let place = free.unwrap_or(state.readers.len());
        if place == FOLLOWERS_MAX {
            return None;
        }
        let reader = Some(Reader::default());
        match free {
            Some(free) => state.readers[free] = reader,
            None => state.readers.push(reader),
        }
        drop(state);
        Some(Follower::new(self.clone(), place))
    }

    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then wakes all readers.
    fn change(&self, change: impl FnOnce(&mut LiveState)) {
        let mut state = self.state();
        change(&mut state);
        let readers = state.readers.iter_mut().flatten();
        let wakers: Vec<_> = readers.filter_map(|reader| reader.waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl LiveState {
    fn total(&self) -> u64 {
        self.gone + self.kept.len() as u64
    }

    /// The next piece for the reader in this slot, if there is one.
    fn take_piece(&mut self, place: usize) -> Option<Bytes> {
        let total = self.total();
        let reader = self.readers.get_mut(place)?.as_mut()?;
        let left = total - reader.read;
        if reader.is_cut || left == 0 {
            return None;
        }
        let piece = match left == self.last.len() as u64 {
            true => self.last.clone(),
            false => {
                let from = usize::try_from(reader.read - self.gone).ok()?;
                let rest = self.kept.get(from..)?;
                Bytes::copy_from_slice(&rest[..rest.len().min(PIECE_MAX)])
            }
        };
        reader.read += piece.len() as u64;
        Some(piece)
    }

    /// The end of the body for the reader in this slot, once it is known.
    fn poll_end(&mut self, place: usize, context: &Context<'_>) -> Polled {
        let Some(Some(reader)) = self.readers.get_mut(place) else {
            return Poll::Ready(None);
        };
        if reader.is_cut {
            return Poll::Ready(Some(Err(Cut.into())));
        }
        Poll::Ready(match &self.end {
            Some(End::Cut) => Some(Err(Cut.into())),
            Some(End::Whole(None)) => None,
            Some(End::Whole(Some(trailers))) => Some(Ok(Frame::trailers((**trailers).clone()))),
            None => {
                reader.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        })
    }

    /// Above the cap: drops the bytes that all readers have read.
    fn trim(&mut self) {
        let reading = self.readers.iter().flatten().filter(|it| !it.is_cut);
        let read = reading.map(|it| it.read).min().unwrap_or(self.total());
        let past = usize::try_from(read - self.gone).unwrap_or(usize::MAX);
        let past = past.min(self.kept.len());
        self.kept.advance(past);
        self.gone += past as u64;
        self.share.shrink(self.kept.len());
        if self.kept.is_empty() {
            // Frees the buffer, which was large enough for the whole body up to the cap.
            self.kept = BytesMut::new();
        }
    }

    fn has_room(&self, len: usize) -> bool {
        self.kept.is_empty() || self.kept.len() + len <= WINDOW_MAX
    }

    /// The reader that sets the pace: the first caller; after it has gone, the one furthest ahead.
    fn pacer(&self) -> Option<usize> {
        let readers = self.readers.iter().enumerate();
        let reading = readers.filter_map(|(place, reader)| {
            let reader = reader.as_ref().filter(|it| !it.is_cut)?;
            Some((place, reader))
        });
        let ahead = reading.max_by_key(|(_, it)| (it.is_first, it.read));
        ahead.map(|(place, _)| place)
    }

    /// The reader furthest behind the one that sets the pace.
    fn laggard(&mut self) -> Option<&mut Reader> {
        let pace = self.readers.get(self.pacer()?)?.as_ref()?.read;
        let readers = self.readers.iter_mut().flatten();
        let behind = readers.filter(|it| !it.is_cut && it.read < pace);
        behind.min_by_key(|it| it.read)
    }
}

/// Fills a body. If it is dropped before the end, the body is cut.
pub(super) struct Recorder {
    body: Arc<LiveBody>,
}

impl Recorder {
    /// The body that duplicates can follow.
    pub(super) fn body(&self) -> &Arc<LiveBody> {
        &self.body
    }

    pub(super) fn is_over(&self) -> bool {
        self.body.state().is_over
    }

    /// Whether `len` more bytes take the body over the cap, or it already was over; remembers that.
    pub(super) fn goes_over(&self, len: usize) -> bool {
        let mut state = self.body.state();
        state.is_over |= state.kept.len() + len > self.body.bytes_max;
        state.is_over
    }

    /// Above the cap: waits until there is room for `len` more bytes. Cuts off readers that are too far behind.
    pub(super) fn poll_room(&self, len: usize, context: &Context<'_>) -> Poll<()> {
        let mut is_ready = false;
        self.body.change(|state| {
            loop {
                state.trim();
                is_ready = state.has_room(len);
                if is_ready {
                    return;
                }
                match state.laggard() {
                    Some(reader) => reader.is_cut = true,
                    None => break,
                }
            }
            state.recorder = Some(context.waker().clone());
        });
        match is_ready {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Cuts off the reader that sets the pace, because it does not read.
    pub(super) fn cut_pacer(&self) {
        self.body.change(|state| {
            if let Some(place) = state.pacer()
                && let Some(reader) = &mut state.readers[place]
            {
                reader.is_cut = true;
            }
        });
    }

    /// Adds a piece.
    pub(super) fn push(&self, piece: Bytes) {
        self.body.change(|state| {
            state.share.take(piece.len());
            state.kept.extend_from_slice(&piece);
            state.last = piece;
        });
    }

    /// Passes the whole body to `look`; `None` if it was over the cap.
    pub(super) fn whole<T>(&self, look: impl FnOnce(Option<&[u8]>) -> T) -> T {
        let state = self.body.state();
        look(Some(&state.kept[..]).filter(|_| !state.is_over))
    }

    /// Marks the body as complete.
    pub(super) fn end(self, trailers: Option<Box<HeaderMap>>) {
        self.body
            .change(|state| state.end = Some(End::Whole(trailers)));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.body.change(|state| {
            state.end.get_or_insert(End::Cut);
        });
    }
}

/// Reads a body from its beginning while it is recorded.
pub(super) struct Follower {
    body: Arc<LiveBody>,
    /// Its slot in the list of readers.
    place: usize,
    read: u64,
    is_done: bool,
}

type Polled = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

impl Follower {
    fn new(body: Arc<LiveBody>, place: usize) -> Self {
        Self {
            body,
            place,
            read: 0,
            is_done: false,
        }
    }

    pub(super) fn poll_frame(&mut self, context: &Context<'_>) -> Polled {
        if self.is_done {
            return Poll::Ready(None);
        }
        let mut state = self.body.state();
        if let Some(piece) = state.take_piece(self.place) {
            self.read += piece.len() as u64;
            // Above the cap, the recorder may have room now.
            let recorder = state.recorder.take();
            drop(state);
            recorder.into_iter().for_each(Waker::wake);
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let polled = state.poll_end(self.place, context);
        self.is_done = polled.is_ready();
        polled
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// The rest of the body's size hint.
    pub(super) fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.body.hint.lower().saturating_sub(self.read));
        if let Some(upper) = self.body.hint.upper() {
            hint.set_upper(upper.saturating_sub(self.read));
        }
        hint
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut state = self.body.state();
        let gone = state.readers[self.place].take();
        let recorder = state.recorder.take();
        drop(state);
        // Outside the lock, because woken tasks may take it.
        drop(gone);
        recorder.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Follower({} read)", self.read)
    }
}

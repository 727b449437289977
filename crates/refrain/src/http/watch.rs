//! Copies a request body while it is passed through, unless it is over the cap or cut off.

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::oneshot;

use super::{budget::Share, capture::Gathered};

/// Collects the frames that pass, and sends the whole body at the end.
#[derive(Debug)]
pub(super) struct Watch {
    gathered: Gathered,
    share: Share,
    bytes_max: usize,
    /// `None` after the body was sent or given up.
    whole: Option<oneshot::Sender<Bytes>>,
}

impl Watch {
    /// The receiver gets the body after it has passed; it gets nothing if the body is not read to its end, is longer than
    /// `bytes_max`, or `share` has no room for it.
    pub(super) fn new(bytes_max: usize, share: Share) -> (Self, oneshot::Receiver<Bytes>) {
        let (whole, receiver) = oneshot::channel();
        let watch = Self {
            gathered: Gathered::default(),
            share,
            bytes_max,
            whole: Some(whole),
        };
        (watch, receiver)
    }

    /// Takes the next frame: `None` at the end, `Some(None)` if the body failed.
    pub(super) fn see(&mut self, frame: Option<Option<&Frame<Bytes>>>) {
        match frame {
            Some(Some(frame)) => {
                let data = frame.data_ref().filter(|_| self.whole.is_some());
                let Some(data) = data else { return };
                if !self.share.take(data.len()) {
                    return self.give_up();
                }
                self.gathered.push(data.clone());
                if self.gathered.len() > self.bytes_max {
                    self.give_up();
                }
            }
            Some(None) => self.give_up(),
            None => {
                if let Some(whole) = self.whole.take() {
                    let gathered = std::mem::take(&mut self.gathered);
                    let _ = whole.send(gathered.into_bytes());
                }
            }
        }
    }

    fn give_up(&mut self) {
        self.whole = None;
        self.gathered = Gathered::default();
        self.share.shrink(0);
    }
}

//! Looks on while a request body passes through: a copy of it, unless it is over the cap or broken off.

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::oneshot;

use super::{budget::Share, capture::Gathered};

/// Gathers what passes by, and hands it over at the end.
#[derive(Debug)]
pub(super) struct Watch {
    gathered: Gathered,
    share: Share,
    bytes_max: usize,
    /// `None` once there is nothing more to tell.
    whole: Option<oneshot::Sender<Bytes>>,
}

impl Watch {
    /// What is received comes once the body has passed, and never if it was not read to its end or `share` has no room for it.
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

    /// One more frame: `None` at the end, `Some(None)` where it broke off.
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

//! Who waits for a record that another process holds, and how they are woken.
//!
//! A store that hears of settlements elsewhere keeps a [`Watches`] and tells it; [`Store::watch`](super::Store::watch) hands out a [`Watch`].
//! A wake-up is a hint to ask again, never an answer: one too many costs a question, one that got lost is made up for by polling.
//!
//! ```
//! use refrain::{RecordId, store::Watches};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let watches = Watches::new();
//! let mut watch = watches.watch(RecordId([7; 16]));
//! watches.settled(RecordId([7; 16]));
//! watch.settled().await; // at once: it is remembered
//! # });
//! ```

use std::sync::Arc;

use tokio::sync::watch;

use super::Table;
use crate::key::RecordId;

/// Everybody in this process who waits for a record. Clones share it.
#[derive(Debug, Clone)]
pub struct Watches {
    waiting: Arc<Table<watch::Sender<()>>>,
}

impl Default for Watches {
    fn default() -> Self {
        Self::new()
    }
}

impl Watches {
    /// Nobody waits yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            waiting: Arc::new(Table::small()),
        }
    }

    /// Waits for this record from now on.
    #[must_use]
    pub fn watch(&self, id: RecordId) -> Watch {
        let receiver = self.waiting.with(id, |entry| match entry.get() {
            Some(sender) => sender.subscribe(),
            None => {
                let (sender, receiver) = watch::channel(());
                entry.put(sender);
                receiver
            }
        });
        Watch {
            watches: self.clone(),
            id,
            receiver: Some(receiver),
        }
    }

    /// This record was settled: wakes who waits for it.
    pub fn settled(&self, id: RecordId) {
        self.waiting.with(id, |entry| {
            if let Some(sender) = entry.get() {
                sender.send_replace(());
            }
        });
    }

    /// Any record may have been settled: wakes everybody. For a store that was cut off and may have missed something.
    pub fn all_settled(&self) {
        self.waiting.each(|sender| {
            sender.send_replace(());
        });
    }

    /// Whether anybody waits for this record.
    #[must_use]
    pub fn is_watched(&self, id: RecordId) -> bool {
        self.waiting.with(id, |entry| entry.get().is_some())
    }

    /// How many records are waited for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Somebody who waits for a record, as long as this lives.
#[derive(Debug)]
pub struct Watch {
    watches: Watches,
    id: RecordId,
    /// `None` only while it is dropped.
    receiver: Option<watch::Receiver<()>>,
}

impl Watch {
    /// Waits until the record may have been settled since this was made, or since it was last told so.
    ///
    /// # Cancellation
    /// May be dropped, and nothing is missed.
    pub async fn settled(&mut self) {
        let told = match &mut self.receiver {
            Some(receiver) => receiver.changed().await.is_ok(),
            None => false,
        };
        if !told {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let receiver = self.receiver.take();
        self.watches.waiting.with(self.id, |entry| {
            // Under the lock, so that the last one to go sees that it is the last.
            drop(receiver);
            if entry
                .get()
                .is_some_and(|sender| sender.receiver_count() == 0)
            {
                entry.take();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    //! A wake-up that comes between two looks must not get lost, and nobody is left behind in the table.

    use super::*;

    const ID: RecordId = RecordId([1; 16]);

    fn is_told(watch: &mut Watch) -> bool {
        let receiver = watch.receiver.as_mut().unwrap();
        let is_told = receiver.has_changed().unwrap();
        receiver.mark_unchanged();
        is_told
    }

    #[tokio::test]
    async fn everybody_who_waits_for_it_is_told_once_and_nobody_else() {
        let watches = Watches::new();
        let (mut one, mut two) = (watches.watch(ID), watches.watch(ID));
        let mut other = watches.watch(RecordId([2; 16]));
        watches.settled(ID);
        one.settled().await;
        assert!(!is_told(&mut one) && is_told(&mut two) && !is_told(&mut other));
        watches.all_settled();
        assert!(is_told(&mut one) && is_told(&mut two) && is_told(&mut other));
        // Who comes later waits for what comes later.
        assert!(!is_told(&mut watches.watch(ID)));
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let watches = Watches::new();
        let (one, two) = (watches.watch(ID), watches.watch(ID));
        drop(one);
        assert!(watches.len() == 1 && watches.is_watched(ID));
        drop(two);
        assert!(!watches.is_watched(ID));
        assert!(watches.is_empty());
        watches.settled(ID);
    }
}

//! Wake-ups for callers that wait for a record held by another process.
//!
//! A store that is notified of settlements by other processes keeps a [`Watches`] and reports them to it;
//! [`Store::watch`](super::Store::watch) hands out a [`Watch`].
//! A wake-up is only a hint to claim again. A spurious one costs one more claim, and polling makes up for a lost one.
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

/// All waiting callers in this process. Clones share them.
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
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            waiting: Arc::new(Table::small()),
        }
    }

    /// Starts to wait for this record.
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

    /// Wakes the callers that wait for this record, because it was settled.
    pub fn settled(&self, id: RecordId) {
        self.waiting.with(id, |entry| {
            if let Some(sender) = entry.get() {
                sender.send_replace(());
            }
        });
    }

    /// Wakes all callers. For a store that lost its connection and may have missed settlements.
    pub fn all_settled(&self) {
        self.waiting.each(|_, sender| {
            sender.send_replace(());
        });
    }

    /// Returns whether a caller waits for this record.
    #[must_use]
    pub fn is_watched(&self, id: RecordId) -> bool {
        self.waiting.with(id, |entry| entry.get().is_some())
    }

    /// The number of records with waiting callers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no caller waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A caller waiting for a record; dropping it ends the wait.
#[derive(Debug)]
pub struct Watch {
    watches: Watches,
    id: RecordId,
    /// `None` only during the drop.
    receiver: Option<watch::Receiver<()>>,
}

impl Watch {
    /// Waits until the record may have been settled since this watch was created, or since the last wake-up.
    ///
    /// # Cancellation
    /// May be dropped; no wake-up is lost.
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
            // Drop it under the lock, so that the last watch sees that it is the last.
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
    //! A wake-up between two checks must not get lost, and the table must not keep entries of dropped watches.

    use super::*;

    const ID: RecordId = RecordId([1; 16]);

    fn is_told(watch: &mut Watch) -> bool {
        let receiver = watch.receiver.as_mut().unwrap();
        let is_told = receiver.has_changed().unwrap();
        receiver.mark_unchanged();
        is_told
    }

    #[tokio::test]
    async fn all_waiters_of_a_record_are_notified_once() {
        let watches = Watches::new();
        let (mut one, mut two) = (watches.watch(ID), watches.watch(ID));
        let mut other = watches.watch(RecordId([2; 16]));
        watches.settled(ID);
        one.settled().await;
        assert!(!is_told(&mut one) && is_told(&mut two) && !is_told(&mut other));
        watches.all_settled();
        assert!(is_told(&mut one) && is_told(&mut two) && is_told(&mut other));
        // A new watch does not see earlier settlements.
        assert!(!is_told(&mut watches.watch(ID)));
    }

    #[test]
    fn dropped_waiters_are_removed() {
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

//! Sequential processing within a group, concurrent processing of different groups.

use std::collections::HashMap;

use tokio::sync::oneshot;

/// Tail of each group's queue. A delivery waits only for its predecessor in the group.
#[derive(Debug, Default)]
pub(super) struct GroupLanes {
    last: HashMap<String, oneshot::Receiver<()>>,
    /// Number of groups at which empty ones are removed.
    pruned_at: usize,
}

/// Position in a group's queue. Dropping it lets the next delivery proceed.
#[derive(Debug)]
pub(super) struct LanePosition {
    before: Option<oneshot::Receiver<()>>,
    _after: oneshot::Sender<()>,
}

const LANES_FEW: usize = 1_024;

impl GroupLanes {
    /// Adds a position at the end of the group's queue.
    pub(super) fn enter(&mut self, group: &str) -> LanePosition {
        self.prune();
        let (after, behind) = oneshot::channel();
        let before = self.last.insert(group.into(), behind);
        LanePosition {
            before,
            _after: after,
        }
    }

    fn prune(&mut self) {
        if self.last.len() >= self.pruned_at.max(LANES_FEW) {
            self.last.retain(|_, last| !is_over(last));
            self.pruned_at = self.last.len() * 2;
        }
    }
}

fn is_over(last: &mut oneshot::Receiver<()>) -> bool {
    matches!(last.try_recv(), Err(oneshot::error::TryRecvError::Closed))
}

impl LanePosition {
    /// Waits until the predecessor has finished.
    pub(super) async fn wait_turn(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: the predecessor drops its sender when it finishes.
            let _ = before.await;
            self.before = None;
        }
    }
}

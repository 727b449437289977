//! One after another within a group, side by side between groups.

use std::collections::HashMap;

use tokio::sync::oneshot;

/// The end of each group's queue. Each who comes waits for who came before, and for nobody else.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    last: HashMap<String, oneshot::Receiver<()>>,
    /// How many groups may be listed before those without anybody in them are taken off.
    pruned_at: usize,
}

/// A place in a group's queue. Dropped, the next one may go.
#[derive(Debug)]
pub(super) struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _after: oneshot::Sender<()>,
}

const LANES_FEW: usize = 1_024;

impl Lanes {
    /// A place behind everybody who is in the group now.
    pub(super) fn enter(&mut self, group: &str) -> Turn {
        self.prune();
        let (after, behind) = oneshot::channel();
        let before = self.last.insert(group.into(), behind);
        Turn {
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

impl Turn {
    /// Waits until everybody who came before is through.
    pub(super) async fn come(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: who is through drops the other end.
            let _ = before.await;
            self.before = None;
        }
    }
}

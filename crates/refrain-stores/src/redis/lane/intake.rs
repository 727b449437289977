//! Queued jobs of a lane.

use tokio::sync::mpsc;

use super::{Load, QueuedCall, TOGETHER_MAX};

/// Maximum bytes of outcomes per call; a single larger outcome is still sent.
const TOGETHER_BYTES_MAX: usize = 1 << 20;
/// Maximum yields to other tasks while further jobs arrive.
const GATHER_MAX: u32 = 64;
/// Maximum yields without a new job while more are expected: about 30 µs, much less than a disk sync.
const IDLE_MAX: u32 = 16;

pub(super) struct Intake<L> {
    jobs: mpsc::Receiver<QueuedCall<L>>,
    waiting: Vec<QueuedCall<L>>,
    /// Number of jobs answered last, whose callers may send the next job soon.
    expected: usize,
}

impl<L: Load> Intake<L> {
    pub(super) fn new(jobs: mpsc::Receiver<QueuedCall<L>>) -> Self {
        Self {
            jobs,
            waiting: Vec::new(),
            expected: 0,
        }
    }

    /// Waits until a job is queued; `false` if all senders are gone. Safe to drop.
    pub(super) async fn wait(&mut self) -> bool {
        !self.waiting.is_empty() || self.jobs.recv_many(&mut self.waiting, TOGETHER_MAX).await > 0
    }

    /// Sets the number of jobs that were answered.
    pub(super) fn expect(&mut self, answered: usize) {
        self.expected = answered;
    }

    fn receive_queued(&mut self) {
        while self.waiting.len() < TOGETHER_MAX
            && let Ok(job) = self.jobs.try_recv()
        {
            self.waiting.push(job);
        }
    }

    /// Takes the first jobs that fit into one call.
    pub(super) fn take_batch(&mut self) -> Vec<QueuedCall<L>> {
        self.waiting
            .retain(|job| job.load.outlives_caller() || !job.answer.is_closed());
        let mut bytes = 0;
        let fits = |job: &&QueuedCall<L>| {
            bytes += job.load.bytes();
            bytes <= TOGETHER_BYTES_MAX
        };
        let count = self.waiting.iter().take_while(fits).count();
        let rest = self.waiting.split_off(count.max(1).min(self.waiting.len()));
        std::mem::replace(&mut self.waiting, rest)
    }

    /// Takes all queued jobs.
    pub(super) fn take_all(&mut self) -> Vec<QueuedCall<L>> {
        while let Ok(job) = self.jobs.try_recv() {
            self.waiting.push(job);
        }
        std::mem::take(&mut self.waiting)
    }
}

/// Lets other tasks run first: an answer wakes many callers at once, and their next jobs can join the batch. A single
/// job is hardly delayed.
pub(super) async fn gather<L: Load>(one: &mut Intake<L>) {
    for _ in 0..GATHER_MAX {
        tokio::task::yield_now().await;
        let before = one.waiting.len();
        one.receive_queued();
        if one.waiting.len() == before {
            return;
        }
    }
}

/// As [`gather`], for both lanes: a caller whose claim was answered comes back with a settlement.
pub(super) async fn gather_both<A: Load, B: Load>(one: &mut Intake<A>, two: &mut Intake<B>) {
    let expected = one.expected + two.expected;
    let mut idle = 0;
    for _ in 0..GATHER_MAX {
        tokio::task::yield_now().await;
        let before = one.waiting.len() + two.waiting.len();
        one.receive_queued();
        two.receive_queued();
        let now = one.waiting.len() + two.waiting.len();
        idle = if now == before { idle + 1 } else { 0 };
        if idle > 0 && (now >= expected || idle >= IDLE_MAX) {
            return;
        }
    }
}

//! What has come to a lane and is not under way.

use tokio::sync::mpsc;

use super::{Job, Load, TOGETHER_MAX};

/// How many bytes of outcomes travel in one call, if it is more than one.
const TOGETHER_BYTES_MAX: usize = 1 << 20;
/// How often those who can go on are let go first while ever more come along.
const GATHER_MAX: u32 = 64;
/// How often in a row nobody may come while some are expected: about 30 µs, a fraction of what a disk takes.
const IDLE_MAX: u32 = 16;

pub(super) struct Intake<L> {
    jobs: mpsc::Receiver<Job<L>>,
    waiting: Vec<Job<L>>,
    /// How many were answered last, who may all be about to come back.
    expected: usize,
}

impl<L: Load> Intake<L> {
    pub(super) fn new(jobs: mpsc::Receiver<Job<L>>) -> Self {
        Self {
            jobs,
            waiting: Vec::new(),
            expected: 0,
        }
    }

    /// Until somebody waits; `false` when nobody can come any more. May be dropped.
    pub(super) async fn wait(&mut self) -> bool {
        !self.waiting.is_empty() || self.jobs.recv_many(&mut self.waiting, TOGETHER_MAX).await > 0
    }

    /// So many have been answered.
    pub(super) fn expect(&mut self, answered: usize) {
        self.expected = answered;
    }

    fn draw(&mut self) {
        while self.waiting.len() < TOGETHER_MAX
            && let Ok(job) = self.jobs.try_recv()
        {
            self.waiting.push(job);
        }
    }

    /// The first of those that wait, as many as one call takes.
    pub(super) fn fitting(&mut self) -> Vec<Job<L>> {
        self.waiting
            .retain(|job| job.load.is_wanted_by_nobody() || !job.answer.is_closed());
        let mut bytes = 0;
        let fits = |job: &&Job<L>| {
            bytes += job.load.bytes();
            bytes <= TOGETHER_BYTES_MAX
        };
        let count = self.waiting.iter().take_while(fits).count();
        let rest = self.waiting.split_off(count.max(1).min(self.waiting.len()));
        std::mem::replace(&mut self.waiting, rest)
    }

    /// Everybody who waits.
    pub(super) fn all(&mut self) -> Vec<Job<L>> {
        while let Ok(job) = self.jobs.try_recv() {
            self.waiting.push(job);
        }
        std::mem::take(&mut self.waiting)
    }
}

/// An answer lets many go on at once: they do so first, and may want to come along. Who comes alone loses no time.
pub(super) async fn gather<L: Load>(one: &mut Intake<L>) {
    for _ in 0..GATHER_MAX {
        tokio::task::yield_now().await;
        let before = one.waiting.len();
        one.draw();
        if one.waiting.len() == before {
            return;
        }
    }
}

/// As [`gather`], for both kinds: who was answered in one lane comes back in the other.
pub(super) async fn gather_both<A: Load, B: Load>(one: &mut Intake<A>, two: &mut Intake<B>) {
    let expected = one.expected + two.expected;
    let mut idle = 0;
    for _ in 0..GATHER_MAX {
        tokio::task::yield_now().await;
        let before = one.waiting.len() + two.waiting.len();
        one.draw();
        two.draw();
        let now = one.waiting.len() + two.waiting.len();
        idle = if now == before { idle + 1 } else { 0 };
        if idle > 0 && (now >= expected || idle >= IDLE_MAX) {
            return;
        }
    }
}

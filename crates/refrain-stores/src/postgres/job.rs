//! What callers ask for, on its way through the store's own thread.

use std::time::Duration;

use refrain::{
    Claim, Error, ErrorKind, Fence, RecordId, Result, Settlement,
    record::{Command, Reply},
};
use tokio::{sync::oneshot, time::Instant};

/// One thing that is asked of one record.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ask: Ask,
    answer: oneshot::Sender<Result<Reply>>,
    asked: Instant,
    /// It was asked before, over a connection that broke: it may have been done.
    pub(super) is_repeated: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Ask {
    Claim(Claim),
    /// Sealed.
    Settle(RecordId, Fence, Settlement),
    Renew(RecordId, Fence, Duration),
    Erase(RecordId),
}

impl Job {
    pub(super) fn new(ask: Ask) -> (Self, oneshot::Receiver<Result<Reply>>) {
        let (answer, answered) = oneshot::channel();
        let job = Self {
            ask,
            answer,
            asked: tokio::time::Instant::now(),
            is_repeated: false,
        };
        (job, answered)
    }

    pub(super) fn id(&self) -> RecordId {
        match &self.ask {
            Ask::Claim(claim) => claim.id,
            Ask::Settle(id, ..) | Ask::Renew(id, ..) | Ask::Erase(id) => *id,
        }
    }

    /// Whether it is worth doing: a claim is not if nobody waits for it any more, or it waited too long in line.
    /// What ends or renews a claim is always done.
    pub(super) fn is_wanted(&self, at_most: Duration) -> bool {
        let is_claim = matches!(self.ask, Ask::Claim(_));
        !is_claim || (!self.answer.is_closed() && self.asked.elapsed() < at_most)
    }

    /// How much it brings along.
    pub(super) fn bytes(&self) -> usize {
        match &self.ask {
            Ask::Settle(_, _, Settlement::Complete { outcome, .. }) => outcome.encoded().len(),
            _ => 0,
        }
    }

    /// As [`step`](refrain::step) takes it; `fence` is granted if it is a claim that is granted.
    pub(super) fn command(&self, fence: Fence) -> Command {
        match &self.ask {
            Ask::Claim(claim) => Command::Claim(claim.clone(), fence),
            Ask::Settle(_, fence, end) => Command::Settle(*fence, end.clone()),
            Ask::Renew(_, fence, lease) => Command::Renew(*fence, *lease),
            Ask::Erase(_) => Command::Erase,
        }
    }

    /// Whether doing it twice takes a record away that is gone after the first time.
    pub(super) fn frees(&self) -> bool {
        matches!(
            self.ask,
            Ask::Settle(_, _, Settlement::Release | Settlement::NeverHappened)
        )
    }

    /// Who does not wait any more is not told.
    pub(super) fn answer(self, answer: Result<Reply>) {
        let _ = self.answer.send(answer);
    }

    pub(super) fn refuse(self, why: &str) {
        let error = Error::new(ErrorKind::Unavailable, why);
        self.fail(&error);
    }

    /// Answers that it was not done now. If it was not asked before, over a connection that broke, it was not done at all.
    fn fail(self, error: &Error) {
        let error = error.repeated();
        let error = match self.is_repeated {
            true => error,
            false => error.unapplied(),
        };
        self.answer(Err(error));
    }
}

/// Tells the same trouble to everybody. None of them was done now.
pub(super) fn refuse_all(jobs: impl IntoIterator<Item = Job>, error: &Error) {
    jobs.into_iter().for_each(|job| job.fail(error));
}

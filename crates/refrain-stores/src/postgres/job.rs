//! Commands of callers, queued for the store's thread.

use std::time::Duration;

use refrain::{
    Claim, Error, ErrorKind, Fence, RecordId, Result, Settlement,
    record::{Command, Reply},
};
use tokio::{sync::oneshot, time::Instant};

/// One command for one record, with the channel for its reply.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ask: Ask,
    answer: oneshot::Sender<Result<Reply>>,
    asked: Instant,
    /// Sent before over a connection that broke: the command may have been applied.
    pub(super) is_repeated: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Ask {
    Claim(Claim),
    /// The outcome is sealed.
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

    /// Whether to run the job. A claim is dropped if its caller is gone or it was queued for too long.
    /// Settlements, renewals and erasures always run.
    pub(super) fn is_wanted(&self, at_most: Duration) -> bool {
        let is_claim = matches!(self.ask, Ask::Claim(_));
        !is_claim || (!self.answer.is_closed() && self.asked.elapsed() < at_most)
    }

    /// Size of the outcome in bytes.
    pub(super) fn bytes(&self) -> usize {
        match &self.ask {
            Ask::Settle(_, _, Settlement::Complete { outcome, .. }) => outcome.encoded().len(),
            _ => 0,
        }
    }

    /// Converts the job for [`step`](refrain::step). `fence` is the fence for a granted claim.
    pub(super) fn command(&self, fence: Fence) -> Command {
        match &self.ask {
            Ask::Claim(claim) => Command::Claim(claim.clone(), fence),
            Ask::Settle(_, fence, end) => Command::Settle(*fence, end.clone()),
            Ask::Renew(_, fence, lease) => Command::Renew(*fence, *lease),
            Ask::Erase(_) => Command::Erase,
        }
    }

    /// Whether the command removes the record, so that a retry finds it absent.
    pub(super) fn frees(&self) -> bool {
        matches!(
            self.ask,
            Ask::Settle(_, _, Settlement::Release | Settlement::NeverHappened)
        )
    }

    /// Sends the reply; ignored if the caller is gone.
    pub(super) fn answer(self, answer: Result<Reply>) {
        let _ = self.answer.send(answer);
    }

    pub(super) fn refuse(self, why: &str) {
        let error = Error::new(ErrorKind::Unavailable, why);
        self.fail(&error);
    }

    /// Replies with an error. Marks it as unapplied, unless an earlier try may have been applied.
    fn fail(self, error: &Error) {
        let error = error.repeated();
        let error = match self.is_repeated {
            true => error,
            false => error.unapplied(),
        };
        self.answer(Err(error));
    }
}

/// Replies to all jobs with the same error.
pub(super) fn refuse_all(jobs: impl IntoIterator<Item = Job>, error: &Error) {
    jobs.into_iter().for_each(|job| job.fail(error));
}

//! Batches concurrent claims and settlements into one script call.
//!
//! The next batch collects while one call is in progress. A single job is sent immediately, without waiting for others.
//! The script decides each record separately, and returns an answer for each.
//!
//! Calls run in a task of the store, so a caller that is cancelled does not affect the others.

use std::{collections::HashSet, sync::Arc};

use ::redis::Value;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use super::{
    calls::{Asking, Call, Calls, SettleCall},
    connection::{RedisCallError, SharedConnection},
    errors,
};

mod intake;

use intake::Intake;

/// Maximum jobs per call: a server does nothing else while a script runs, and each record takes about 10 µs.
const TOGETHER_MAX: usize = 128;
/// Maximum jobs queued for the next call; further callers wait for capacity.
const WAITING_MAX: usize = 1_024;

/// Item of a batch: a claim or a settlement.
pub(super) trait Load: Send + Sync + Sized + 'static {
    /// Size of the outcome in bytes.
    fn bytes(&self) -> usize;

    /// Whether to send it even if the caller is gone.
    fn outlives_caller(&self) -> bool;

    /// Builds one call for all items; it returns one answer for each, or one for all.
    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Call;

    /// Builds the call after the server rejected the transaction of [`call`](Self::call), so that nothing ran.
    fn call_again<'a>(
        calls: &Calls,
        loads: impl ExactSizeIterator<Item = &'a Self> + Clone,
    ) -> Call;
}

impl Load for Asking {
    fn bytes(&self) -> usize {
        0
    }

    fn outlives_caller(&self) -> bool {
        false
    }

    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Call {
        calls.claims(loads).into()
    }

    fn call_again<'a>(
        calls: &Calls,
        loads: impl ExactSizeIterator<Item = &'a Self> + Clone,
    ) -> Call {
        Self::call(calls, loads)
    }
}

impl Load for SettleCall {
    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn outlives_caller(&self) -> bool {
        true
    }

    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Call {
        let mut ids = HashSet::with_capacity(loads.len());
        let mut is_first = |ending: &SettleCall| ids.insert(ending.id);
        match loads.clone().all(&mut is_first) {
            true => calls.settlement_transaction(loads),
            false => Self::call_again(calls, loads),
        }
    }

    fn call_again<'a>(
        calls: &Calls,
        loads: impl ExactSizeIterator<Item = &'a Self> + Clone,
    ) -> Call {
        calls.settlements(loads).into()
    }
}

struct QueuedCall<L> {
    load: L,
    answer: oneshot::Sender<Result<Value, RedisCallError>>,
}

/// Connection with the lanes for claims and settlements.
pub(super) struct Lanes {
    pub(super) line: SharedConnection,
    pub(super) claims: Lane<Asking>,
    pub(super) settlements: Lane<SettleCall>,
}

impl Lanes {
    /// Calls run on `runtime` until this is dropped.
    pub(super) fn new(line: SharedConnection, calls: &Arc<Calls>, runtime: &Handle) -> Self {
        let (claims, asked) = Lane::new(&line);
        let (settlements, ended) = Lane::new(&line);
        let carrier = Carrier {
            line: line.clone(),
            calls: calls.clone(),
        };
        if calls.known.is_lossy() {
            runtime.spawn(carrier.clone().run(asked));
            runtime.spawn(carrier.run(ended));
        } else {
            runtime.spawn(carrier.run_together(ended, asked));
        }
        Self {
            line,
            claims,
            settlements,
        }
    }
}

/// Queue for one kind of item.
pub(super) struct Lane<L> {
    jobs: mpsc::Sender<QueuedCall<L>>,
    line: SharedConnection,
}

impl<L: Load> Lane<L> {
    fn new(line: &SharedConnection) -> (Self, Intake<L>) {
        let (jobs, taken) = mpsc::channel(WAITING_MAX);
        let line = line.clone();
        (Self { jobs, line }, Intake::new(taken))
    }

    /// Queues an item, and returns the script's answer.
    pub(super) async fn request(&self, load: L) -> Result<Value, RedisCallError> {
        let (answer, answered) = oneshot::channel();
        let ended = || RedisCallError::Told(errors::runtime_stopped(self.line.shown()));
        let sent = self.jobs.send(QueuedCall { load, answer }).await;
        sent.map_err(|_| {
            RedisCallError::Told(errors::runtime_stopped(self.line.shown()).unapplied())
        })?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Sends one call after the other.
#[derive(Clone)]
struct Carrier {
    line: SharedConnection,
    calls: Arc<Calls>,
}

impl Carrier {
    /// Sends claims and settlements independently: one kind collects while the server is busy with the other.
    async fn run<L: Load>(self, mut intake: Intake<L>) {
        while intake.wait().await {
            intake::gather(&mut intake).await;
            self.send_batch(&mut intake).await;
        }
    }

    /// Sends both kinds at the same time, for a server with `appendfsync always`: it syncs once for all commands that
    /// have arrived.
    async fn run_together(self, mut ended: Intake<SettleCall>, mut asked: Intake<Asking>) {
        loop {
            let is_open = tokio::select! {
                is_open = ended.wait() => is_open,
                is_open = asked.wait() => is_open,
            };
            if !is_open {
                break;
            }
            intake::gather_both(&mut ended, &mut asked).await;
            // Settlements first, because they are longer: they are not read completely before the claims arrive, so the
            // server runs both in one turn.
            tokio::join!(self.send_batch(&mut ended), self.send_batch(&mut asked));
        }
        // The store was dropped; send the jobs that are still queued.
        tokio::join!(self.clone().run(ended), self.clone().run(asked));
    }

    /// Sends the jobs that fit into one call; does nothing if the queue is empty.
    async fn send_batch<L: Load>(&self, intake: &mut Intake<L>) {
        let jobs = intake.take_batch();
        intake.expect(jobs.len());
        if jobs.is_empty() {
            return;
        }
        let call = L::call(&self.calls, jobs.iter().map(|job| &job.load));
        let mut answers = self.send_call(&call).await;
        // Nothing ran. Or the user just lost the right to transactions, and the commands ran alone: now a no-op.
        if call.is_transaction && answers.as_ref().is_err_and(RedisCallError::is_refusal) {
            let call = L::call_again(&self.calls, jobs.iter().map(|job| &job.load));
            answers = self.send_call(&call).await;
        }
        match answers {
            Ok(answers) if answers.len() == jobs.len() => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    // Ignored if the caller is gone.
                    let _ = job.answer.send(answer);
                }
            }
            Ok(answers) => match &answers[..] {
                [answer] => answer_all(jobs, answer),
                _ => answer_all(
                    jobs,
                    &Err(RedisCallError::Told(errors::wrong_reply_count())),
                ),
            },
            Err(trouble) => {
                let is_silence = trouble.is_silence();
                let refused = Err(trouble);
                answer_all(jobs, &refused);
                // Queued jobs have already waited as long as the server was silent. They were not sent.
                if is_silence {
                    let timed_out = errors::timed_out(self.line.shown());
                    answer_all(
                        intake.take_all(),
                        &Err(RedisCallError::Told(timed_out.unapplied())),
                    );
                }
            }
        }
    }

    /// Runs a script. If the server does not have the script, nothing ran: load it and try again.
    async fn send_call(
        &self,
        call: &Call,
    ) -> Result<Vec<Result<Value, RedisCallError>>, RedisCallError> {
        let answers = self.line.send_call(call).await;
        if !answers.as_ref().is_err_and(RedisCallError::is_no_script) {
            return answers;
        }
        for script in self.calls.known.scripts.load() {
            self.line.send_command(&script).await?;
        }
        self.line.send_call(call).await
    }
}

/// Sends the same answer to all jobs.
fn answer_all<L>(jobs: Vec<QueuedCall<L>>, answer: &Result<Value, RedisCallError>) {
    for job in jobs {
        let answer = match answer {
            Ok(value) => Ok(value.clone()),
            Err(trouble) => Err(trouble.repeated()),
        };
        let _ = job.answer.send(answer);
    }
}

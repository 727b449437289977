//! What waits at the same time travels in one call of a script.
//!
//! While one call is under way the next gathers, and nobody waits for company: who comes alone goes at once.
//! Every record is decided about on its own, and its answer is its own, too.
//!
//! A call goes on in a task of the store. Who asked may go, and nobody else notices.

use std::{collections::HashSet, sync::Arc};

use ::redis::Value;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use super::{
    calls::{Asking, Call, Calls, Ending},
    line::{Line, Trouble},
    trouble,
};

mod intake;

use intake::Intake;

/// How many travel in one call: a server does nothing else while a script runs, and one takes about 10 µs.
const TOGETHER_MAX: usize = 128;
/// How many may wait for the next call; who comes then waits for room.
const WAITING_MAX: usize = 1_024;

/// What travels.
pub(super) trait Load: Send + Sync + Sized + 'static {
    /// How much it brings along.
    fn bytes(&self) -> usize;

    /// Whether it is worth carrying where nobody waits for the answer any more.
    fn is_wanted_by_nobody(&self) -> bool;

    /// The call for all of these; as many answers come, or one that stands for all.
    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Call;

    /// The same where the server refused what went ahead of the call, and so ran nothing.
    fn call_again<'a>(
        calls: &Calls,
        loads: impl ExactSizeIterator<Item = &'a Self> + Clone,
    ) -> Call;
}

impl Load for Asking {
    fn bytes(&self) -> usize {
        0
    }

    fn is_wanted_by_nobody(&self) -> bool {
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

impl Load for Ending {
    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn is_wanted_by_nobody(&self) -> bool {
        true
    }

    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Call {
        let mut ids = HashSet::with_capacity(loads.len());
        let mut is_first = |ending: &Ending| ids.insert(ending.id);
        match loads.clone().all(&mut is_first) {
            true => calls.settlements_behind(loads),
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

struct Job<L> {
    load: L,
    answer: oneshot::Sender<Result<Value, Trouble>>,
}

/// One connection: for what is asked alone, and for what travels together.
pub(super) struct Lanes {
    pub(super) line: Line,
    pub(super) claims: Lane<Asking>,
    pub(super) settlements: Lane<Ending>,
}

impl Lanes {
    /// Calls go on in `runtime` until this is dropped.
    pub(super) fn new(line: Line, calls: &Arc<Calls>, runtime: &Handle) -> Self {
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

/// The way to the server for one kind of load.
pub(super) struct Lane<L> {
    jobs: mpsc::Sender<Job<L>>,
    line: Line,
}

impl<L: Load> Lane<L> {
    fn new(line: &Line) -> (Self, Intake<L>) {
        let (jobs, taken) = mpsc::channel(WAITING_MAX);
        let line = line.clone();
        (Self { jobs, line }, Intake::new(taken))
    }

    /// The script's answer to this one.
    pub(super) async fn ask(&self, load: L) -> Result<Value, Trouble> {
        let (answer, answered) = oneshot::channel();
        let ended = || Trouble::Told(trouble::ended(self.line.shown()));
        let sent = self.jobs.send(Job { load, answer }).await;
        sent.map_err(|_| Trouble::Told(trouble::ended(self.line.shown()).unapplied()))?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Makes one call after the other.
#[derive(Clone)]
struct Carrier {
    line: Line,
    calls: Arc<Calls>,
}

impl Carrier {
    /// Claims and settlements each go as they come: one kind gathers here while the server is busy with the other.
    async fn run<L: Load>(self, mut intake: Intake<L>) {
        while intake.wait().await {
            intake::gather(&mut intake).await;
            self.carry(&mut intake).await;
        }
    }

    /// A server that syncs before it answers does so once for all that has come by then: both kinds go side by side.
    async fn run_together(self, mut ended: Intake<Ending>, mut asked: Intake<Asking>) {
        loop {
            let is_open = tokio::select! {
                is_open = ended.wait() => is_open,
                is_open = asked.wait() => is_open,
            };
            if !is_open {
                break;
            }
            intake::gather_both(&mut ended, &mut asked).await;
            // What is longer first: it has not arrived whole when the server begins to read, and so both are run together.
            tokio::join!(self.carry(&mut ended), self.carry(&mut asked));
        }
        // The store is gone, and both lanes with it; what is left in them is carried to its end.
        tokio::join!(self.clone().run(ended), self.clone().run(asked));
    }

    /// Carries what fits into one call; nothing where nobody waits.
    async fn carry<L: Load>(&self, intake: &mut Intake<L>) {
        let jobs = intake.fitting();
        intake.expect(jobs.len());
        if jobs.is_empty() {
            return;
        }
        let call = L::call(&self.calls, jobs.iter().map(|job| &job.load));
        let mut answers = self.ask(&call).await;
        // Nothing of it ran. Or the user may not ask for transactions any more, and all of it did: then this changes nothing.
        if call.is_transaction && answers.as_ref().is_err_and(Trouble::is_refusal) {
            let call = L::call_again(&self.calls, jobs.iter().map(|job| &job.load));
            answers = self.ask(&call).await;
        }
        match answers {
            Ok(answers) if answers.len() == jobs.len() => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    // Who does not wait any more is not told.
                    let _ = job.answer.send(answer);
                }
            }
            Ok(answers) => match &answers[..] {
                [answer] => tell_all(jobs, answer),
                _ => tell_all(jobs, &Err(Trouble::Told(trouble::miscounted()))),
            },
            Err(trouble) => {
                let is_silence = trouble.is_silence();
                let refused = Err(trouble);
                tell_all(jobs, &refused);
                // Those who wait while a server is silent have waited as long as they should. They were not sent.
                if is_silence {
                    let silent = trouble::silent(self.line.shown());
                    tell_all(intake.all(), &Err(Trouble::Told(silent.unapplied())));
                }
            }
        }
    }

    /// Calls a script. One that the server does not know ran nothing: it is loaded, and called again.
    async fn ask(&self, call: &Call) -> Result<Vec<Result<Value, Trouble>>, Trouble> {
        let answers = self.line.ask_each(call).await;
        if !answers.as_ref().is_err_and(Trouble::is_no_script) {
            return answers;
        }
        for script in self.calls.known.scripts.load() {
            self.line.ask(&script).await?;
        }
        self.line.ask_each(call).await
    }
}

/// Tells everybody the same.
fn tell_all<L>(jobs: Vec<Job<L>>, answer: &Result<Value, Trouble>) {
    for job in jobs {
        let answer = match answer {
            Ok(value) => Ok(value.clone()),
            Err(trouble) => Err(trouble.again()),
        };
        let _ = job.answer.send(answer);
    }
}

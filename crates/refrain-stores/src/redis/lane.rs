//! What waits at the same time travels in one call of a script.
//!
//! While one call is under way the next gathers, and nobody waits for company: who comes alone goes at once.
//! Every record is decided about on its own, and its answer is its own, too.
//!
//! A call goes on in a task of the store. Who asked may go, and nobody else notices.

use std::sync::Arc;

use ::redis::{Cmd, Value};
use refrain::Claim;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use super::{
    calls::{Calls, Ending},
    line::{Line, Trouble},
    trouble,
};

/// How many travel in one call: a server does nothing else while a script runs, and one takes about 10 µs.
const TOGETHER_MAX: usize = 128;
/// How many bytes of outcomes travel in one call, if it is more than one.
const TOGETHER_BYTES_MAX: usize = 1 << 20;
/// How often those who can go on are let go first while ever more come along.
const GATHER_MAX: u32 = 16;
/// How many may wait for the next call; who comes then waits for room.
const WAITING_MAX: usize = 1_024;

/// What travels.
pub(super) trait Load: Send + Sync + Sized + 'static {
    /// How much it brings along.
    fn bytes(&self) -> usize;

    /// Whether it is worth carrying where nobody waits for the answer any more.
    fn is_wanted_by_nobody(&self) -> bool;

    /// The call for all of these; as many answers come.
    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Cmd;
}

impl Load for Claim {
    fn bytes(&self) -> usize {
        0
    }

    fn is_wanted_by_nobody(&self) -> bool {
        false
    }

    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Cmd {
        calls.claims(loads)
    }
}

impl Load for Ending {
    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn is_wanted_by_nobody(&self) -> bool {
        true
    }

    fn call<'a>(calls: &Calls, loads: impl ExactSizeIterator<Item = &'a Self> + Clone) -> Cmd {
        calls.settlements(loads)
    }
}

struct Job<L> {
    load: L,
    answer: oneshot::Sender<Result<Value, Trouble>>,
}

/// The way to the server for one kind of load.
pub(super) struct Lane<L> {
    jobs: mpsc::Sender<Job<L>>,
    line: Line,
}

impl<L: Load> Lane<L> {
    /// Calls go on in `runtime` until this is dropped.
    pub(super) fn new(line: Line, calls: Arc<Calls>, runtime: &Handle) -> Self {
        let (sender, jobs) = mpsc::channel(WAITING_MAX);
        let carrier = Carrier {
            intake: Intake {
                jobs,
                waiting: Vec::new(),
            },
            line: line.clone(),
            calls,
        };
        runtime.spawn(carrier.run());
        Self { jobs: sender, line }
    }

    /// The script's answer to this one.
    pub(super) async fn ask(&self, load: L) -> Result<Value, Trouble> {
        let (answer, answered) = oneshot::channel();
        let ended = || Trouble::Told(trouble::ended(self.line.shown()));
        let sent = self.jobs.send(Job { load, answer }).await;
        sent.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// What has come and is not under way.
struct Intake<L> {
    jobs: mpsc::Receiver<Job<L>>,
    waiting: Vec<Job<L>>,
}

impl<L: Load> Intake<L> {
    /// What travels next; `None` when nobody can come any more.
    async fn next(&mut self) -> Option<Vec<Job<L>>> {
        loop {
            if self.waiting.is_empty()
                && self.jobs.recv_many(&mut self.waiting, TOGETHER_MAX).await == 0
            {
                return None;
            }
            self.gather().await;
            self.waiting
                .retain(|job| job.load.is_wanted_by_nobody() || !job.answer.is_closed());
            if !self.waiting.is_empty() {
                return Some(self.fitting());
            }
        }
    }

    /// An answer lets many go on at once: they do so first, and may want to come along. Who comes alone loses no time.
    async fn gather(&mut self) {
        for _ in 0..GATHER_MAX {
            tokio::task::yield_now().await;
            let before = self.waiting.len();
            while self.waiting.len() < TOGETHER_MAX
                && let Ok(job) = self.jobs.try_recv()
            {
                self.waiting.push(job);
            }
            if self.waiting.len() == before {
                return;
            }
        }
    }

    /// The first of those that wait, as many as one call takes.
    fn fitting(&mut self) -> Vec<Job<L>> {
        let mut bytes = 0;
        let fits = |job: &&Job<L>| {
            bytes += job.load.bytes();
            bytes <= TOGETHER_BYTES_MAX
        };
        let count = self.waiting.iter().take_while(fits).count();
        let rest = self.waiting.split_off(count.max(1));
        std::mem::replace(&mut self.waiting, rest)
    }

    /// Those who wait while a server is silent have waited as long as they should.
    fn refuse_all(&mut self, trouble: &Trouble) {
        while let Ok(job) = self.jobs.try_recv() {
            self.waiting.push(job);
        }
        refuse(self.waiting.drain(..), trouble);
    }
}

fn refuse<L>(jobs: impl Iterator<Item = Job<L>>, trouble: &Trouble) {
    for job in jobs {
        let _ = job.answer.send(Err(trouble.again()));
    }
}

/// Makes one call after the other.
struct Carrier<L> {
    intake: Intake<L>,
    line: Line,
    calls: Arc<Calls>,
}

impl<L: Load> Carrier<L> {
    async fn run(mut self) {
        while let Some(jobs) = self.intake.next().await {
            self.carry(jobs).await;
        }
    }

    async fn carry(&mut self, jobs: Vec<Job<L>>) {
        let call = L::call(&self.calls, jobs.iter().map(|job| &job.load));
        match self.ask(&call).await {
            Ok(answers) if answers.len() == jobs.len() => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    // Who does not wait any more is not told.
                    let _ = job.answer.send(answer);
                }
            }
            Ok(_) => refuse(jobs.into_iter(), &Trouble::Told(trouble::miscounted())),
            Err(trouble) => {
                refuse(jobs.into_iter(), &trouble);
                if trouble.is_silence() {
                    self.intake.refuse_all(&trouble);
                }
            }
        }
    }

    /// Calls a script. One that the server does not know ran nothing: it is loaded, and called again.
    async fn ask(&self, call: &Cmd) -> Result<Vec<Result<Value, Trouble>>, Trouble> {
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

//! Thirty buyers at about the same time.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::{
    buyer::{self, Seen},
    ledger::Ledger,
    report::{Line, Run},
};

const BUYERS: usize = 30;
/// Buyers do not come all in the same moment, so that an accident finds some done, some at it and some not yet there.
const APART: Duration = Duration::from_millis(10);
/// How many charges there are when the middle is reached.
const MIDDLE: usize = 12;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// A burst of buyers on one service.
#[derive(Debug)]
pub(super) struct Burst {
    keys: Vec<String>,
    ledger: Ledger,
    shop: watch::Receiver<SocketAddr>,
    seen: Arc<Seen>,
    line: Line,
}

impl Burst {
    pub(super) fn new(ledger: Ledger, shop: watch::Receiver<SocketAddr>, line: Line) -> Self {
        Self {
            keys: (1..=BUYERS).map(|n| format!("payment-{n}")).collect(),
            ledger,
            shop,
            seen: Arc::default(),
            line,
        }
    }

    /// Lets all buyers pay, and answers what came of it.
    pub(super) async fn run(&self) -> anyhow::Result<Run> {
        let buyers = self.send_buyers();
        tokio::select! {
            answered = buyers.join_all() => self.sum_up(&answered),
            error = self.show() => Err(error),
        }
    }

    fn send_buyers(&self) -> JoinSet<bool> {
        let mut buyers = JoinSet::new();
        let mut after = Duration::ZERO;
        for key in self.keys.clone() {
            let (shop, seen) = (self.shop.clone(), self.seen.clone());
            buyers.spawn(async move {
                sleep(after).await;
                buyer::buy(key, shop, &seen).await
            });
            after += APART;
        }
        buyers
    }

    fn sum_up(&self, answered: &[bool]) -> anyhow::Result<Run> {
        let times = self.ledger.times(&self.keys)?;
        let count = |is_so: fn(usize) -> bool| times.iter().filter(|n| is_so(**n)).count();
        let run = Run {
            payments: self.keys.len(),
            charges: times.iter().sum(),
            charged_twice: count(|times| times > 1),
            lost: count(|times| times == 0),
            unanswered: answered.iter().filter(|is_paid| !**is_paid).count(),
        };
        self.line.end(&self.state()?);
        Ok(run)
    }

    /// Ready when enough was charged for an accident to hurt.
    pub(super) async fn reach_the_middle(&self) -> anyhow::Result<()> {
        while self.ledger.charges()?.len() < MIDDLE {
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    pub(super) fn say(&self, what: &str) {
        self.line.say(what);
    }

    /// Shows how far it has come, for ever; ends only if that cannot be learnt.
    async fn show(&self) -> anyhow::Error {
        loop {
            match self.state() {
                Ok(state) => self.line.show(&state),
                Err(error) => return error,
            }
            sleep(SHOW_EVERY).await;
        }
    }

    fn state(&self) -> anyhow::Result<String> {
        let load = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed);
        let (paid, requests) = (load(&self.seen.paid), load(&self.seen.requests));
        let charges = self.ledger.charges()?.len();
        Ok(format!(
            "{paid} of {BUYERS} buyers have their answer, {requests} requests, {charges} charges"
        ))
    }
}

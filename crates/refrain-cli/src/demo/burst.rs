//! A burst of buyers at about the same time.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};

use super::{
    api::Api,
    buyer::{self, Seen},
    ledger::Ledger,
    report::{Line, Payment, Run},
    trouble::Troubles,
};

const BUYERS: usize = 24;
/// Buyers start this far apart, so that the kill hits some that are done, some in progress and some not yet started.
const APART: Duration = Duration::from_millis(10);
/// How many charges count as the middle of the burst.
const MIDDLE: usize = 8;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// A burst of buyers on one address.
#[derive(Debug)]
pub(super) struct Burst {
    keys: Vec<String>,
    ledger: Ledger,
    troubles: Troubles,
    address: SocketAddr,
    seen: Arc<Seen>,
    line: Line,
}

impl Burst {
    /// A burst of buyers that pay `api` at `address`.
    pub(super) fn new(api: &Api, address: SocketAddr, line: Line) -> Self {
        Self {
            keys: (1..=BUYERS).map(|n| format!("payment-{n}")).collect(),
            ledger: api.ledger().clone(),
            troubles: api.troubles(),
            address,
            seen: Arc::default(),
            line,
        }
    }

    /// Lets all buyers pay, and returns the result of each payment.
    pub(super) async fn run(&self) -> Run {
        tokio::select! {
            answered = self.buy() => self.sum_up(&answered),
            never = self.show() => never,
        }
    }

    /// Runs the buyers; returns for each whether it received a success.
    async fn buy(&self) -> Vec<bool> {
        let mut buyers = JoinSet::new();
        let mut after = Duration::ZERO;
        for (at, key) in self.keys.iter().cloned().enumerate() {
            let (address, seen) = (self.address, self.seen.clone());
            buyers.spawn(async move {
                sleep(after).await;
                (at, buyer::buy(&key, address, &seen).await)
            });
            after += APART;
        }
        let mut answered = vec![false; self.keys.len()];
        for (at, is_paid) in buyers.join_all().await {
            answered[at] = is_paid;
        }
        answered
    }

    fn sum_up(&self, answered: &[bool]) -> Run {
        self.line.say(&self.state());
        let payment = |(key, is_answered): (&String, &bool)| Payment {
            key: key.clone(),
            trouble: self.troubles.of(key),
            charges: self.ledger.times(key),
            is_answered: *is_answered,
        };
        Run(self.keys.iter().zip(answered).map(payment).collect())
    }

    /// Waits until there are [`MIDDLE`] charges.
    pub(super) async fn reach_the_middle(&self) {
        while self.ledger.len() < MIDDLE {
            sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn say(&self, what: &str) {
        self.line.say(what);
    }

    /// Prints progress for ever.
    async fn show(&self) -> Run {
        loop {
            self.line.show(&self.on_the_way());
            sleep(SHOW_EVERY).await;
        }
    }

    /// Progress with the number of requests, which varies between runs and so is not part of the final line.
    fn on_the_way(&self) -> String {
        let requests = self.seen.requests.load(Ordering::Relaxed);
        format!("{}, {requests} requests", self.state())
    }

    fn state(&self) -> String {
        let paid = self.seen.paid.load(Ordering::Relaxed);
        let charges = self.ledger.len();
        format!("{paid} of {BUYERS} buyers have a response, {charges} charges")
    }
}

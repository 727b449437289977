//! Downstream systems that take effect once per key, and reply as the test says.

#![allow(
    dead_code,
    reason = "each crate whose tests take this in uses a part of it"
)]

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Engine, Key, Terms,
    consume::Backoff,
    steps::{Failure, Opened, Opening, StepError},
};

pub(crate) const LEASE: Duration = Duration::from_secs(30);

const ORDER: [&str; 5] = ["ride", "charge", "mail", "undo charge", "undo ride"];

/// The reply to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Fine,
    /// Fails without saying whether it took effect. It did not.
    Fails,
    /// Takes effect, and the response is lost.
    LosesAnswer,
    /// Fails, provably before it took effect.
    Unreachable,
    /// Accepts no call before this many seconds have passed.
    Later(u64),
    /// Rejects permanently.
    Refuses,
    /// Takes effect, and never responds.
    Hangs,
}

/// The downstream systems. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Down(Arc<Mutex<Books>>);

#[derive(Debug, Default)]
struct Books {
    /// The next replies; success after the last.
    replies: HashMap<String, VecDeque<Reply>>,
    /// Every call: its name and its key.
    calls: Vec<(String, String)>,
    /// Effects: name, key and result number.
    effects: Vec<(String, String, u64)>,
}

impl Down {
    pub(crate) fn answers(&self, what: &str, replies: impl IntoIterator<Item = Reply>) -> &Self {
        let mut books = self.0.lock().unwrap();
        let line = books.replies.entry(what.into()).or_default();
        line.extend(replies);
        drop(books);
        self
    }

    /// Takes effect, unless it already did under this key.
    pub(crate) async fn call(&self, what: &str, key: &Key) -> Result<u64, Failure> {
        tokio::task::yield_now().await;
        let reply = {
            let mut books = self.0.lock().unwrap();
            books.calls.push((what.into(), key.as_str().into()));
            let reply = books.replies.get_mut(what).and_then(VecDeque::pop_front);
            reply.unwrap_or(Reply::Fine)
        };
        match reply {
            Reply::Fails => Err(Failure::retry("it failed")),
            Reply::Unreachable => Err(Failure::retry("no connection").without_effect()),
            Reply::Later(seconds) => Err(Failure::retry_after(
                Duration::from_secs(seconds),
                "too busy",
            )),
            // A call that already took effect under this key is not rejected any more.
            Reply::Refuses if self.find(what, key).is_none() => Err(Failure::reject("no")),
            Reply::Fine | Reply::Refuses => {
                let number = self.effect(what, key);
                tokio::task::yield_now().await;
                Ok(number)
            }
            Reply::LosesAnswer => {
                self.effect(what, key);
                Err(Failure::retry("the answer got lost"))
            }
            Reply::Hangs => {
                self.effect(what, key);
                std::future::pending().await
            }
        }
    }

    fn find(&self, what: &str, key: &Key) -> Option<u64> {
        let books = self.0.lock().unwrap();
        let mut effects = books.effects.iter();
        let found = effects.find(|(other, under, _)| other == what && under == key.as_str());
        found.map(|(_, _, number)| *number)
    }

    fn effect(&self, what: &str, key: &Key) -> u64 {
        if let Some(number) = self.find(what, key) {
            return number;
        }
        let mut books = self.0.lock().unwrap();
        let number = books.effects.len() as u64 + 1;
        let effect = (what.into(), key.as_str().into(), number);
        books.effects.push(effect);
        number
    }

    /// The names of all calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        let books = self.0.lock().unwrap();
        books.calls.iter().map(|(what, _)| what.clone()).collect()
    }

    /// The effects so far, in order.
    pub(crate) fn effects(&self) -> Vec<String> {
        let books = self.0.lock().unwrap();
        books
            .effects
            .iter()
            .map(|(what, ..)| what.clone())
            .collect()
    }

    /// The keys that were sent for this call.
    pub(crate) fn keys(&self, what: &str) -> Vec<String> {
        let books = self.0.lock().unwrap();
        let calls = books.calls.iter().filter(|(other, _)| other == what);
        calls.map(|(_, key)| key.clone()).collect()
    }

    /// Each name has one key, no step runs after a later one, and none runs forward once the undo has begun.
    pub(crate) fn check_order(&self) {
        let calls = self.calls();
        let place = |what: &String| ORDER.iter().position(|other| other == what).unwrap();
        assert!(calls.is_sorted_by_key(place), "{calls:?}");
        self.check_keys();
    }

    /// Each name has one key, in all calls of all runs, and no two names share one.
    pub(crate) fn check_keys(&self) {
        let mut of_keys: HashMap<String, &str> = HashMap::new();
        for what in ORDER {
            let keys = self.keys(what);
            assert!(keys.windows(2).all(|pair| pair[0] == pair[1]), "{what}");
            let Some(key) = keys.first() else { continue };
            assert_eq!(
                of_keys.insert(key.clone(), what),
                None,
                "two names share a key"
            );
        }
    }
}

pub(crate) fn terms() -> Terms {
    Terms {
        wait: Duration::ZERO,
        lease: LEASE,
        attempts_max: 100,
        ..Terms::default()
    }
}

pub(crate) fn key() -> Key {
    Key::new("order-7").unwrap()
}

/// One try per run, and no waiting for other runs.
pub(crate) fn opening() -> Opening {
    let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
    Opening::new("book-ride", key())
        .with_terms(terms())
        .with_tries(1, backoff)
}

/// A ride, its payment, and the receipt; the first two can be undone.
pub(crate) async fn trip(
    engine: &Engine,
    down: &Down,
    opening: &Opening,
) -> Result<u64, StepError> {
    let mut steps = match opening.open(engine).await? {
        Opened::Open(steps) => steps,
        Opened::Finished(sum) => return Ok(sum),
    };
    let ride = steps
        .step_or_undo(
            "ride",
            async |key| down.call("ride", &key).await,
            async |key, _ride: u64| down.call("undo ride", &key).await.map(|_| ()),
        )
        .await?;
    let charge = steps
        .step_or_undo(
            "charge",
            async |key| down.call("charge", &key).await,
            async |key, _charge: u64| down.call("undo charge", &key).await.map(|_| ()),
        )
        .await?;
    let mail = steps
        .step("mail", async |key| down.call("mail", &key).await)
        .await?;
    steps.finish(ride * 100 + charge * 10 + mail).await
}

/// Lets every lease lapse.
pub(crate) async fn lapse() {
    tokio::time::sleep(LEASE + Duration::from_secs(60)).await;
}

/// The result of a run, in one word.
pub(crate) fn word<T>(ran: &Result<T, StepError>) -> &'static str {
    match ran {
        Ok(_) => "finished",
        Err(StepError::Failed { .. }) => "failed",
        Err(StepError::InFlight { .. }) => "in flight",
        Err(StepError::Indeterminate { .. }) => "indeterminate",
        Err(StepError::Undone { .. }) => "undone",
        Err(StepError::Stuck { .. }) => "stuck",
        Err(StepError::Mismatch { .. }) => "mismatch",
        Err(StepError::Changed(_)) => "changed",
        Err(StepError::Expired) => "expired",
        Err(StepError::Unkept { .. }) => "unkept",
        Err(StepError::Invalid(_)) => "invalid",
        Err(StepError::Store(_)) => "store",
        Err(_) => "another",
    }
}

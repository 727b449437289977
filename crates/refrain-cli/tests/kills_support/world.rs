//! What clients were told of each key, held against what the service did.

use std::{
    collections::HashMap,
    fs::File,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use refrain::Guarantee;
use refrain_testkit::{Audit, Ledger, Seen};

use crate::{proxy::Setup, upstream::Upstream, wire::Message};

/// An answer that has to be the same for everybody who asks with its key.
type Success = (u16, Option<String>, Vec<u8>);

/// What clients know of one key.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) success: Option<Success>,
    /// In which of the proxy's lives they were first told that nobody knows.
    pub(crate) doubted_in: Option<u64>,
    /// In which of its lives the first request was sent to which no answer came.
    pub(crate) lost_in: Option<u64>,
    /// Requests to which no answer came.
    pub(crate) lost: u32,
    /// Whether the service kept its answer, or a part of it, to itself.
    pub(crate) is_troubled: bool,
    /// Answers that said that it did not run.
    pub(crate) busy: u32,
    /// How often the service said so.
    pub(crate) refused: u32,
    pub(crate) answers: u32,
    /// What happened, and in which life, to be shown when a check fails.
    pub(crate) history: Vec<(u64, String)>,
}

/// What everybody in the test shares.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) ledger: Ledger,
    /// The ledger's file, to have it synced.
    pub(crate) file: File,
    pub(crate) keys: AtomicU64,
    /// How often the proxy was killed.
    pub(crate) life: AtomicU64,
    pub(crate) is_over: AtomicBool,
    pub(crate) known: Mutex<HashMap<String, Known>>,
    pub(crate) replays: AtomicU64,
    pub(crate) in_flight: AtomicU64,
}

impl World {
    pub(crate) fn new(setup: &Setup, seed: u64) -> Arc<Self> {
        let path = setup.file("ledger");
        Arc::new(Self {
            seed,
            ledger: Ledger::open(&path).unwrap(),
            file: File::open(&path).unwrap(),
            keys: AtomicU64::new(0),
            life: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            known: Mutex::default(),
            replays: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
        })
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap()
    }

    pub(crate) fn tell(&self, key: &str, what: impl Into<String>) {
        let what = (self.life.load(Relaxed), what.into());
        self.note(key, |known| known.history.push(what));
    }

    pub(crate) fn note(&self, key: &str, change: impl FnOnce(&mut Known)) {
        change(self.known().entry(key.to_owned()).or_default());
    }

    /// What an answer tells; `true` if there is nothing more to ask.
    pub(crate) fn hear(&self, key: &str, answer: &Message) -> bool {
        self.note(key, |known| known.answers += 1);
        self.tell(key, answer.verdict());
        self.replays.fetch_add(answer.is_replay().into(), Relaxed);
        match &*answer.verdict() {
            "201" => {
                let kind = answer.header("content-type").map(Into::into);
                let success = (answer.status(), kind, answer.body.clone());
                self.note(key, |known| known.succeed(key, success));
                true
            }
            "409 outcome-unknown" | "502 outcome-unknown" => {
                let life = self.life.load(Relaxed);
                self.note(key, |known| known.doubt(key, life));
                answer.status() == 409
            }
            "429" | "502 upstream-unreachable" => {
                self.note(key, |known| known.busy += 1);
                false
            }
            "409 in-flight" => {
                self.in_flight.fetch_add(1, Relaxed);
                false
            }
            "503 store-unavailable" => false,
            other => panic!("{key}: {other}: {}", answer.text()),
        }
    }
}

impl Known {
    pub(crate) fn succeed(&mut self, key: &str, success: Success) {
        assert_eq!(
            self.doubted_in, None,
            "{key}: first in doubt, then a success"
        );
        let first = self.success.get_or_insert_with(|| success.clone());
        assert_eq!(*first, success, "{key}: two answers under one key");
    }

    pub(crate) fn doubt(&mut self, key: &str, life: u64) {
        assert_eq!(self.success, None, "{key}: first a success, then in doubt");
        self.doubted_in.get_or_insert(life);
    }

    pub(crate) fn lose(&mut self, life: u64) {
        self.lost += 1;
        self.lost_in = Some(self.lost_in.map_or(life, |first| first.min(life)));
    }

    /// How it ended for the client.
    pub(crate) fn end(&self) -> Seen {
        match &self.success {
            Some(_) => Seen::Completed,
            None => Seen::Unknown,
        }
    }

    /// Whether the proxy was killed between a request that was lost and the first word of doubt.
    pub(crate) fn is_cut_by_a_kill(&self) -> bool {
        let lives = self.lost_in.zip(self.doubted_in);
        lives.is_some_and(|(lost, doubted)| lost < doubted)
    }
}

/// What holds at every moment, also in the middle of everything.
pub(crate) fn check_so_far(world: &World) {
    // In this order: what was told before the ledger is read must be in there.
    let told: Vec<String> = {
        let known = world.known();
        let told = known.iter().filter(|(_, it)| it.success.is_some());
        told.map(|(key, _)| key.clone()).collect()
    };
    let mut audit = Audit::new(Guarantee::AtMostOnce);
    let effects = world.ledger.all().unwrap();
    for effect in &effects {
        audit.saw(&effect.key, Seen::Unknown);
    }
    for key in &told {
        audit.saw(key, Seen::Completed);
    }
    assert_eq!(audit.check(&effects), []);
}

/// What holds when every client knows how each of its keys ended.
pub(crate) fn check_at_the_end(world: &World, upstream: &Upstream) {
    let mut dispatched: HashMap<String, u32> = HashMap::new();
    for arrived in upstream.arrived() {
        *dispatched
            .entry(arrived.request.key().to_owned())
            .or_default() += 1;
    }
    let mut audit = Audit::new(Guarantee::AtMostOnce);
    let known = world.known();
    for (key, known) in &*known {
        let dispatches = dispatched.get(key).copied().unwrap_or_default();
        audit.saw(key, known.end());
        assert!(dispatches <= 1 + known.refused, "{key}: {dispatches} sent");
        // Who was never sent on is refused only because a kill came in between, and doubt has a cause.
        let is_cut = known.is_cut_by_a_kill();
        assert!(dispatches > 0 || is_cut, "{key}: swallowed: {known:?}");
        let is_explained = known.success.is_some() || known.is_troubled || is_cut;
        assert!(is_explained, "{key}: in doubt without a cause: {known:?}");
    }
    let effects = world.ledger.all().unwrap();
    assert_eq!(audit.check(&effects), []);
    let in_doubt = known.values().filter(|it| it.doubted_in.is_some());
    let never_sent = known.keys().filter(|key| !dispatched.contains_key(*key));
    let succeeded = known.values().filter(|it| it.success.is_some());
    let (succeeded, in_doubt) = (succeeded.count(), in_doubt.count());
    println!(
        "{} keys: {} succeeded, {} in doubt ({} of them never reached the service); {} effects; \
         {} answers, {} replays, {} in flight, {} busy, {} requests lost",
        known.len(),
        succeeded,
        in_doubt,
        never_sent.count(),
        effects.len(),
        known.values().map(|it| it.answers).sum::<u32>(),
        world.replays.load(Relaxed),
        world.in_flight.load(Relaxed),
        known.values().map(|it| it.busy).sum::<u32>(),
        known.values().map(|it| it.lost).sum::<u32>(),
    );
    let replays = world.replays.load(Relaxed);
    assert!(
        succeeded > 100 && in_doubt > 10 && replays > 10,
        "too little"
    );
}

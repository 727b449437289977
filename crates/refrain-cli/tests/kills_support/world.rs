//! What clients were told of each key, held against what the service did.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    ops::AddAssign,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use refrain::Guarantee;
use refrain_testkit::{Audit, Ledger, Seen};

use crate::{upstream::Upstream, wire::Message};

/// An answer that has to be the same for everybody who asks with its key.
type Success = (u16, Option<String>, Vec<u8>);

/// What clients know of one key.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) success: Option<Success>,
    /// Whether they were ever told that nobody knows.
    pub(crate) was_doubted: bool,
    /// In which life they were first told so, unless it was found out since that it did not run.
    doubted_in: Option<u64>,
    /// In which life the first request was sent to which no answer came.
    lost_in: Option<u64>,
    /// Requests to which no answer came.
    pub(crate) lost: u32,
    /// Answers that said that the store cannot be had.
    pub(crate) cut_off: u32,
    /// Whether the service kept its answer, or a part of it, to itself.
    pub(crate) is_troubled: bool,
    /// How often the service said that it did not run.
    pub(crate) refused: u32,
    pub(crate) answers: u32,
    /// How often the service was asked.
    pub(crate) arrived: u64,
    /// What happened, and in which life, to be shown when a check fails.
    pub(crate) history: Vec<(u64, String)>,
}

/// What was known when a request was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    life: u64,
    /// Somebody had been told of a success by then.
    is_known: bool,
}

/// What everybody in the test shares.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) guarantee: Guarantee,
    pub(crate) ledger: Ledger,
    /// The ledger's file, to have it synced.
    pub(crate) file: File,
    keys: AtomicU64,
    /// How often something was killed or stopped.
    life: AtomicU64,
    is_over: AtomicBool,
    /// Whether a success may follow a doubt: who was paused, or cut off from the store, may still tell how it ended.
    is_late_truth_welcome: bool,
    known: Mutex<HashMap<String, Known>>,
    replays: AtomicU64,
    in_flight: AtomicU64,
}

impl World {
    /// With a ledger in this folder. One proxy has its store for itself: what it doubts stays in doubt.
    #[allow(dead_code, reason = "each test file uses one kind of world")]
    pub(crate) fn of_one_proxy(folder: &Path, seed: u64) -> Arc<Self> {
        Self::new(folder, seed, Guarantee::AtMostOnce, false)
    }

    /// The same where several share a store.
    #[allow(dead_code, reason = "each test file uses one kind of world")]
    pub(crate) fn of_many(folder: &Path, seed: u64, guarantee: Guarantee) -> Arc<Self> {
        Self::new(folder, seed, guarantee, true)
    }

    fn new(
        folder: &Path,
        seed: u64,
        guarantee: Guarantee,
        is_late_truth_welcome: bool,
    ) -> Arc<Self> {
        let path = folder.join("ledger");
        Arc::new(Self {
            seed,
            guarantee,
            ledger: Ledger::open(&path).unwrap(),
            file: File::open(&path).unwrap(),
            keys: AtomicU64::new(0),
            life: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_late_truth_welcome,
            known: Mutex::default(),
            replays: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
        })
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap()
    }

    #[allow(dead_code, reason = "not each test file asks for it")]
    pub(crate) fn replays(&self) -> u64 {
        self.replays.load(Relaxed)
    }

    pub(crate) fn next_key(&self) -> String {
        format!("payment-{}", self.keys.fetch_add(1, Relaxed))
    }

    /// Something was killed or stopped just now.
    pub(crate) fn begin_life(&self) {
        self.life.fetch_add(1, Relaxed);
    }

    /// No new keys from now on.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    pub(crate) fn tell(&self, key: &str, what: impl Into<String>) {
        let what = (self.life.load(Relaxed), what.into());
        self.note(key, |known| {
            // Who is told the same again and again has nothing more to tell.
            if known.history.last() != Some(&what) {
                known.history.push(what);
            }
        });
    }

    pub(crate) fn note<T>(&self, key: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        change(self.known().entry(key.to_owned()).or_default())
    }

    /// The service is asked; how often it has been by now.
    pub(crate) fn arrives(&self, key: &str) -> u64 {
        self.note(key, |known| {
            known.arrived += 1;
            known.arrived
        })
    }

    /// A request is about to be sent.
    pub(crate) fn sending(&self, key: &str) -> Sent {
        Sent {
            life: self.life.load(Relaxed),
            is_known: self.note(key, |known| known.success.is_some()),
        }
    }

    /// No answer came to a request.
    pub(crate) fn lose(&self, key: &str, sent: Sent) {
        self.note(key, |known| known.lose(sent.life));
        self.tell(key, format!("lost, sent in life {}", sent.life));
    }

    /// What an answer tells; `true` if there is nothing more to ask.
    pub(crate) fn hear(&self, key: &str, sent: Sent, answer: &Message) -> bool {
        self.note(key, |known| known.answers += 1);
        self.tell(key, answer.verdict());
        self.replays.fetch_add(answer.is_replay().into(), Relaxed);
        match &*answer.verdict() {
            "201" => {
                let kind = answer.header("content-type").map(Into::into);
                self.succeed(key, (answer.status(), kind, answer.body.clone()));
                true
            }
            "409 outcome-unknown" | "502 outcome-unknown" => {
                self.doubt(key, sent);
                answer.status() == 409
            }
            "503 outcome-unknown" => {
                self.note(key, |known| known.cut_off += 1);
                self.doubt(key, sent);
                false
            }
            "429" | "502 upstream-unreachable" => {
                // It did not run: what was in doubt is settled.
                self.note(key, |known| known.doubted_in = None);
                false
            }
            "409 in-flight" => {
                self.in_flight.fetch_add(1, Relaxed);
                false
            }
            "503 store-unavailable" => {
                self.note(key, |known| known.cut_off += 1);
                false
            }
            other => panic!("{key}: {other}: {}", answer.text()),
        }
    }

    fn succeed(&self, key: &str, success: Success) {
        self.note(key, |known| {
            assert!(
                self.is_late_truth_welcome || !known.was_doubted,
                "{key}: first in doubt, then a success: {:?}",
                known.history
            );
            let first = known.success.get_or_insert_with(|| success.clone());
            assert_eq!(*first, success, "{key}: two answers under one key");
        });
    }

    fn doubt(&self, key: &str, sent: Sent) {
        let life = self.life.load(Relaxed);
        self.note(key, |known| {
            // Two answers may overtake each other on their way; one that was asked for later may not know less.
            let is_late = self.is_late_truth_welcome && !sent.is_known;
            assert!(
                known.success.is_none() || is_late,
                "{key}: first a success, then in doubt: {:?}",
                known.history
            );
            known.was_doubted = true;
            known.doubted_in.get_or_insert(life);
        });
    }
}

impl Known {
    fn lose(&mut self, life: u64) {
        self.lost += 1;
        self.lost_in = Some(self.lost_in.map_or(life, |first| first.min(life)));
    }

    /// Whether the service refused it as often as it was asked.
    pub(crate) fn has_no_effect(&self) -> bool {
        self.arrived == u64::from(self.refused)
    }

    /// How it ended for the client.
    fn end(&self) -> Seen {
        match &self.success {
            Some(_) => Seen::Completed,
            None => Seen::Unknown,
        }
    }

    /// Whether something was killed between a request that was lost and the first word of the doubt that is left.
    fn is_cut_by_a_kill(&self) -> bool {
        let lives = self.lost_in.zip(self.doubted_in);
        self.cut_off > 0 || lives.is_some_and(|(lost, doubted)| lost < doubted)
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
    let mut audit = Audit::new(world.guarantee);
    let effects = world.ledger.all().unwrap();
    for effect in &effects {
        audit.saw(&effect.key, Seen::Unknown);
    }
    for key in &told {
        audit.saw(key, Seen::Completed);
    }
    assert_eq!(audit.check(&effects), []);
}

/// How it all ended, in numbers.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) keys: usize,
    pub(crate) succeeded: usize,
    /// At some time.
    pub(crate) in_doubt: usize,
    /// In doubt at first, and a success in the end.
    pub(crate) late: usize,
    /// Keys of which the service never heard.
    pub(crate) never_sent: usize,
    pub(crate) effects: usize,
    /// Effects that were one too many.
    pub(crate) duplicates: usize,
    /// Requests that said themselves that they may be duplicates.
    pub(crate) takeovers: u32,
    pub(crate) replays: u64,
    pub(crate) in_flight: u64,
    pub(crate) lost: u32,
}

impl AddAssign<&Self> for Ends {
    fn add_assign(&mut self, other: &Self) {
        self.keys += other.keys;
        self.succeeded += other.succeeded;
        self.in_doubt += other.in_doubt;
        self.late += other.late;
        self.never_sent += other.never_sent;
        self.effects += other.effects;
        self.duplicates += other.duplicates;
        self.takeovers += other.takeovers;
        self.replays += other.replays;
        self.in_flight += other.in_flight;
        self.lost += other.lost;
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} keys: {} succeeded, {} were in doubt ({} for a while), {} never reached the service; {} effects, {} of them duplicates, \
             {} takeovers; {} replays, {} in flight, {} requests lost",
            self.keys,
            self.succeeded,
            self.in_doubt,
            self.late,
            self.never_sent,
            self.effects,
            self.duplicates,
            self.takeovers,
            self.replays,
            self.in_flight,
            self.lost,
        )
    }
}

/// What the service was asked under one key.
#[derive(Debug, Default)]
struct Dispatched {
    all: u32,
    /// Those that came as a second or later attempt.
    takeovers: u32,
}

/// How many requests came to the service as a second or later attempt.
#[allow(dead_code, reason = "only some test files count them before the end")]
pub(crate) fn takeovers(upstream: &Upstream) -> u32 {
    dispatched(upstream).values().map(|it| it.takeovers).sum()
}

fn dispatched(upstream: &Upstream) -> HashMap<String, Dispatched> {
    let mut dispatched: HashMap<String, Dispatched> = HashMap::new();
    for arrived in upstream.arrived() {
        let of_key = dispatched
            .entry(arrived.request.key().to_owned())
            .or_default();
        of_key.all += 1;
        let attempt = arrived.request.header("refrain-attempt").unwrap_or("1");
        of_key.takeovers += u32::from(attempt != "1");
    }
    dispatched
}

/// What holds when every client knows how each of its keys ended.
pub(crate) fn check_at_the_end(world: &World, upstream: &Upstream) -> Ends {
    let dispatched = dispatched(upstream);
    let effects = world.ledger.all().unwrap();
    let mut audit = Audit::new(world.guarantee);
    let known = world.known();
    for (key, known) in &*known {
        let nothing = Dispatched::default();
        let dispatched = dispatched.get(key).unwrap_or(&nothing);
        audit.saw(key, known.end());
        // Where it may run again, it says so.
        let allowed = 1 + known.refused + dispatched.takeovers;
        let is_takeover_allowed = world.guarantee == Guarantee::AtLeastOnce;
        assert!(
            dispatched.all <= allowed && (is_takeover_allowed || dispatched.takeovers == 0),
            "{key}: {dispatched:?}: {:?}",
            known.history
        );
        // Who was never sent on is refused only because a kill came in between, and doubt has a cause.
        let is_cut = known.is_cut_by_a_kill();
        let history = &known.history;
        assert!(
            dispatched.all > 0 || is_cut,
            "{key}: swallowed: {history:?}"
        );
        let is_explained = known.success.is_some() || known.is_troubled || is_cut;
        assert!(is_explained, "{key}: in doubt without a cause: {history:?}");
    }
    assert_eq!(audit.check(&effects), []);
    let count = |is_so: fn(&Known) -> bool| known.values().filter(|it| is_so(it)).count();
    Ends {
        keys: known.len(),
        succeeded: count(|it| it.success.is_some()),
        in_doubt: count(|it| it.was_doubted),
        late: count(|it| it.was_doubted && it.success.is_some()),
        never_sent: known
            .keys()
            .filter(|it| !dispatched.contains_key(*it))
            .count(),
        effects: effects.len(),
        duplicates: audit.duplicates(&effects),
        takeovers: dispatched.values().map(|it| it.takeovers).sum(),
        replays: world.replays.load(Relaxed),
        in_flight: world.in_flight.load(Relaxed),
        lost: known.values().map(|it| it.lost).sum(),
    }
}

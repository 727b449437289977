//! Compares the responses that clients received for each key with the ledger of the service.

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
use refrain_testkit::{Audit, Ledger, Seen, wait};

use crate::{upstream::Upstream, wire::Message};

/// A response that has to be identical for every request with its key.
type Success = (u16, Option<String>, Vec<u8>);

/// The clients' knowledge about one key.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) success: Option<Success>,
    /// Whether any response said that the outcome is unknown.
    pub(crate) was_doubted: bool,
    /// Life (number of kills so far) of the first unknown outcome, unless a later response said that it did not run.
    doubted_in: Option<u64>,
    /// Life of the first request that got no response.
    lost_in: Option<u64>,
    /// Requests without a response.
    pub(crate) lost: u32,
    /// Responses that said that the store is unavailable.
    pub(crate) cut_off: u32,
    /// Whether the service withheld its response or a part of it.
    pub(crate) is_troubled: bool,
    /// How often the service rejected the request without executing it.
    pub(crate) refused: u32,
    pub(crate) answers: u32,
    /// Requests that reached the service.
    pub(crate) arrived: u64,
    /// Events with their lives, shown when a check fails.
    pub(crate) history: Vec<(u64, String)>,
}

/// What was known when a request was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    life: u64,
    /// Whether a client had received a success by then.
    is_known: bool,
}

/// State shared by the clients, the service and the test.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) guarantee: Guarantee,
    pub(crate) ledger: Ledger,
    /// The ledger's file, for fsync.
    pub(crate) file: File,
    keys: AtomicU64,
    /// Number of kills and pauses so far.
    life: AtomicU64,
    is_over: AtomicBool,
    /// Whether a success may follow an unknown outcome: a proxy that was paused or lost its store may settle late.
    is_late_truth_welcome: bool,
    known: Mutex<HashMap<String, Known>>,
    replays: AtomicU64,
    in_flight: AtomicU64,
}

impl World {
    /// One proxy with its own store, and a ledger in this folder: an unknown outcome stays unknown.
    #[allow(dead_code, reason = "each test file uses one kind")]
    pub(crate) fn of_one_proxy(folder: &Path, seed: u64) -> Arc<Self> {
        Self::new(folder, seed, Guarantee::AtMostOnce, false)
    }

    /// The same for several proxies that share a store.
    #[allow(dead_code, reason = "each test file uses one kind")]
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

    /// Number of keys with a success.
    pub(crate) fn successes(&self) -> usize {
        let known = self.known();
        known.values().filter(|it| it.success.is_some()).count()
    }

    /// Waits until one more key succeeds.
    pub(crate) async fn progress(&self) {
        let before = self.successes();
        wait::until_true("a request succeeds", || self.successes() > before).await;
    }

    #[allow(dead_code, reason = "only some test files use it")]
    pub(crate) fn replays(&self) -> u64 {
        self.replays.load(Relaxed)
    }

    pub(crate) fn next_key(&self) -> String {
        format!("payment-{}", self.keys.fetch_add(1, Relaxed))
    }

    /// Counts a kill or a pause.
    pub(crate) fn begin_life(&self) {
        self.life.fetch_add(1, Relaxed);
    }

    /// Stops clients from starting new keys.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    pub(crate) fn tell(&self, key: &str, what: impl Into<String>) {
        let what = (self.life.load(Relaxed), what.into());
        self.note(key, |known| {
            // Equal events in a row are recorded once.
            if known.history.last() != Some(&what) {
                known.history.push(what);
            }
        });
    }

    pub(crate) fn note<T>(&self, key: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        change(self.known().entry(key.to_owned()).or_default())
    }

    /// Records a request to the service; returns how many there were with this key.
    pub(crate) fn arrives(&self, key: &str) -> u64 {
        self.note(key, |known| {
            known.arrived += 1;
            known.arrived
        })
    }

    /// Records that a request is about to be sent.
    pub(crate) fn sending(&self, key: &str) -> Sent {
        Sent {
            life: self.life.load(Relaxed),
            is_known: self.note(key, |known| known.success.is_some()),
        }
    }

    /// Records a request without a response.
    pub(crate) fn lose(&self, key: &str, sent: Sent) {
        self.note(key, |known| known.lose(sent.life));
        self.tell(key, format!("lost, sent in life {}", sent.life));
    }

    /// Records a response; returns `true` if the outcome is final.
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
                // The request did not run, so its outcome is no longer unknown.
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
                "{key}: first an unknown outcome, then a success: {:?}",
                known.history
            );
            let first = known.success.get_or_insert_with(|| success.clone());
            assert_eq!(
                *first, success,
                "{key}: two different responses with one key"
            );
        });
    }

    fn doubt(&self, key: &str, sent: Sent) {
        let life = self.life.load(Relaxed);
        self.note(key, |known| {
            // Two responses may overtake each other; one to a later request must not know less.
            let is_late = self.is_late_truth_welcome && !sent.is_known;
            assert!(
                known.success.is_none() || is_late,
                "{key}: first a success, then an unknown outcome: {:?}",
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

    /// Whether the service rejected every attempt without executing it.
    pub(crate) fn has_no_effect(&self) -> bool {
        self.arrived == u64::from(self.refused)
    }

    /// Final outcome for the client.
    fn end(&self) -> Seen {
        match &self.success {
            Some(_) => Seen::Completed,
            None => Seen::Unknown,
        }
    }

    /// Whether a kill came between a lost request and the first response with the unknown outcome that remains.
    fn is_cut_by_a_kill(&self) -> bool {
        let lives = self.lost_in.zip(self.doubted_in);
        self.cut_off > 0 || lives.is_some_and(|(lost, doubted)| lost < doubted)
    }
}

/// Checks the invariants that hold at every moment, also during faults.
pub(crate) fn check_so_far(world: &World) {
    // In this order: a success that was received before the ledger is read must be in the ledger.
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

/// Totals of a campaign.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) keys: usize,
    pub(crate) succeeded: usize,
    /// Keys whose outcome was unknown at some time.
    pub(crate) in_doubt: usize,
    /// Keys whose outcome was unknown first, and a success in the end.
    pub(crate) late: usize,
    /// Keys that never reached the service.
    pub(crate) never_sent: usize,
    pub(crate) effects: usize,
    /// Effects beyond the first one of a key.
    pub(crate) duplicates: usize,
    /// Requests that were marked as a possible duplicate.
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
            "{} keys: {} succeeded, {} had an unknown outcome ({} temporarily), {} never reached the service; {} effects, {} of them duplicates, \
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

/// Requests to the service with one key.
#[derive(Debug, Default)]
struct Dispatched {
    all: u32,
    /// Requests with an attempt number above 1.
    takeovers: u32,
}

/// Number of requests to the service with an attempt number above 1.
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

/// Checks the invariants that hold when every client knows the outcome of each of its keys.
pub(crate) fn check_at_the_end(world: &World, upstream: &Upstream) -> Ends {
    let dispatched = dispatched(upstream);
    let effects = world.ledger.all().unwrap();
    let mut audit = Audit::new(world.guarantee);
    let known = world.known();
    for (key, known) in &*known {
        let nothing = Dispatched::default();
        let dispatched = dispatched.get(key).unwrap_or(&nothing);
        audit.saw(key, known.end());
        // Every repeated execution is announced by its attempt number.
        let allowed = 1 + known.refused + dispatched.takeovers;
        let is_takeover_allowed = world.guarantee == Guarantee::AtLeastOnce;
        assert!(
            dispatched.all <= allowed && (is_takeover_allowed || dispatched.takeovers == 0),
            "{key}: {dispatched:?}: {:?}",
            known.history
        );
        // A kill explains a rejected key that never reached the service; an unknown outcome needs a cause, too.
        let is_cut = known.is_cut_by_a_kill();
        let history = &known.history;
        assert!(
            dispatched.all > 0 || is_cut,
            "{key}: swallowed: {history:?}"
        );
        let is_explained = known.success.is_some() || known.is_troubled || is_cut;
        assert!(
            is_explained,
            "{key}: unknown outcome without a cause: {history:?}"
        );
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

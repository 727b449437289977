//! A power failure or a kill at any change to the disk, at any point of a random history.
//! Acknowledged changes survive, and no outcome changes. Unacknowledged changes survive or not.
//! A state that was read once stays, no fence is issued twice, and nothing is reported as damage.
//!
//! `REFRAIN_CRASH_SEEDS` sets the number of histories; a failure names its seed.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures_util::future::join_all;
use refrain::{
    Claim, Fence, Guarantee, Settled, Settlement, Store, Verdict,
    clock::{Clock, Timestamp},
    record::{Claimant, Reason, Record, State},
    store::embedded::Embedded,
};
use refrain_testkit::disk::{Dice, End, FaultDisk};

use crate::common::{Site, ask, at_least_once, claim, completion, id, wait};

/// The number of records in a history, and a record to read the store's time from.
const NUMBERS: u64 = 14;
const TIMEPIECE: u64 = 99;

/// A possible state of a record.
#[derive(Debug, Clone, PartialEq)]
enum Life {
    Absent,
    /// Claimed, with this fence if the claim was answered.
    Held(Option<Fence>),
    Doubted(Fence, Reason),
    Done {
        fence: Fence,
        body: Vec<u8>,
        retention_ends: Timestamp,
        remember_ends: Timestamp,
    },
}

impl Life {
    /// Returns whether the store's record matches this state.
    fn is(&self, record: Option<&Record>, now: Timestamp) -> bool {
        let state = record.map(|record| &record.state);
        match (self, state) {
            (Self::Done { remember_ends, .. }, None) => *remember_ends <= now,
            (Self::Absent, None) => true,
            (Self::Held(fence), Some(State::InFlight { hold, .. })) => {
                fence.is_none_or(|fence| fence == hold.fence)
            }
            (Self::Held(fence), Some(State::Indeterminate { hold, reason })) => {
                fence.is_none_or(|fence| fence == hold.fence) && *reason == Reason::Lapsed
            }
            (Self::Doubted(fence, why), Some(State::Indeterminate { hold, reason })) => {
                *fence == hold.fence && why == reason
            }
            (
                Self::Done {
                    retention_ends,
                    remember_ends,
                    ..
                },
                Some(State::Tombstone {
                    remember_ends: ends,
                }),
            ) => *retention_ends <= now && remember_ends == ends && now < *ends,
            (
                Self::Done { fence, body, .. },
                Some(State::Completed {
                    fence: held,
                    outcome,
                    ..
                }),
            ) => fence == held && outcome.body() == body[..],
            _ => false,
        }
    }

    /// Adds what a read of the record has shown.
    fn seen(self, record: Option<&Record>) -> Self {
        match (self, record.and_then(Record::fence)) {
            (Self::Held(None), Some(fence)) => Self::Held(Some(fence)),
            (life, _) => life,
        }
    }

    fn fence(&self) -> Option<Fence> {
        match self {
            Self::Held(fence) => *fence,
            Self::Doubted(fence, _) | Self::Done { fence, .. } => Some(*fence),
            Self::Absent => None,
        }
    }
}

/// The expected state of a store.
struct History {
    label: String,
    dice: Dice,
    site: Site,
    disk: FaultDisk,
    /// The possible states of each record: only one, unless the last response was lost.
    lives: BTreeMap<u64, Vec<Life>>,
    fences: HashSet<Fence>,
    /// The store's time minus the monotonic clock, in milliseconds.
    offset: u64,
}

impl History {
    fn new(seed: u64, label: String) -> Self {
        let mut dice = Dice::new(seed);
        let site = Site::new(*dice.pick(&[1 << 10, 2 << 10, 4 << 10, 16 << 10]));
        let disk = site.disk();
        Self {
            label,
            dice,
            disk,
            site,
            lives: (0..NUMBERS).map(|it| (it, vec![Life::Absent])).collect(),
            fences: HashSet::new(),
            offset: 0,
        }
    }

    /// Opens the store and checks all records; `None` if the crash came first.
    fn open(&mut self) -> Option<Embedded> {
        let store = self.site.try_open_on(&self.disk).ok()?;
        assert_eq!(store.damage(), [], "{}", self.label);
        let _ = ask(&store, claim(TIMEPIECE)).ok()?;
        let reading = wait(store.read(id(TIMEPIECE))).ok()??;
        self.offset = reading.now.0 - self.site.clock.steady().millis;
        for number in 0..NUMBERS {
            self.look(&store, number)?;
        }
        Some(store)
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.offset + self.site.clock.steady().millis)
    }

    /// Checks that the record is in one of its possible states; from then on only that state is possible.
    fn look(&mut self, store: &Embedded, number: u64) -> Option<()> {
        let reading = wait(store.read(id(number))).ok()?;
        let record = reading.map(|reading| reading.record);
        let now = self.now();
        let lives = &self.lives[&number];
        let life = lives.iter().find(|life| life.is(record.as_ref(), now));
        let Some(life) = life else {
            panic!(
                "{}: record {number} is {record:?} at {now:?}, and may be {lives:?}",
                self.label
            );
        };
        let seen = life.clone().seen(record.as_ref());
        self.lives.insert(number, vec![seen]);
        Some(())
    }

    fn life(&self, number: u64) -> &Life {
        &self.lives[&number][0]
    }

    fn also(&mut self, number: u64, life: Life) {
        self.lives.entry(number).or_default().push(life);
    }

    fn becomes(&mut self, number: u64, life: Life) {
        self.lives.insert(number, vec![life]);
    }

    /// Performs one random action; `None` once the store no longer responds.
    fn act(&mut self, store: &Embedded) -> Option<()> {
        let number = self.dice.below(NUMBERS);
        match self.dice.below(12) {
            0..3 => self.claim(store, &[number]),
            3 => {
                let first = number / 2;
                self.claim(store, &[first, first + 1, first + 2, first + 3, first + 4])
            }
            4..8 => self.settle(store, number),
            8 => {
                let seconds = self.dice.below(90);
                self.site.clock.turn(Duration::from_secs(seconds));
                Some(())
            }
            9 => wait(store.sweep(u32::MAX)).ok().map(drop),
            _ => self.look(store, number),
        }
    }

    fn claim(&mut self, store: &Embedded, numbers: &[u64]) -> Option<()> {
        let claims = numbers.iter().map(|number| store.claim(claim_of(*number)));
        let verdicts = wait(join_all(claims));
        let mut is_open = Some(());
        for (number, verdict) in numbers.iter().zip(verdicts) {
            match verdict {
                Ok(verdict) => self.judge(*number, verdict),
                Err(_) => {
                    self.also(*number, Life::Held(None));
                    is_open = None;
                }
            }
        }
        is_open
    }

    /// Checks that the verdict matches the state of the record.
    fn judge(&mut self, number: u64, verdict: Verdict) {
        let now = self.now();
        let life = self.life(number).clone();
        let is_free = life.is(None, now);
        let is_right = match &verdict {
            Verdict::Granted(grant) => {
                assert!(self.fences.insert(grant.fence), "{}: {grant:?}", self.label);
                is_free
                    || matches!(life, Life::Held(_))
                        && claim_of(number).guarantee == Guarantee::AtLeastOnce
            }
            Verdict::Replay(outcome) => {
                matches!(&life, Life::Done { body, .. } if outcome.body() == body[..])
            }
            Verdict::InFlight { .. } => matches!(life, Life::Held(_)),
            Verdict::Indeterminate(doubt) => life.fence() == Some(doubt.fence),
            Verdict::Expired => matches!(life, Life::Done { .. }) && !is_free,
            Verdict::Mismatch | Verdict::OtherCredential => false,
        };
        assert!(
            is_right,
            "{}: {verdict:?} for record {number}, which is {life:?} at {now:?}",
            self.label
        );
        if let Verdict::Granted(grant) = verdict {
            self.becomes(number, Life::Held(Some(grant.fence)));
        }
    }

    fn settle(&mut self, store: &Embedded, number: u64) -> Option<()> {
        let Life::Held(Some(fence)) = *self.life(number) else {
            return Some(());
        };
        let (end, life) = self.end(fence);
        match wait(store.settle(id(number), fence, end)) {
            // A doubt changes nothing while a retry may take over, or if the lease has already lapsed.
            Ok(Settled::Applied) if matches!(life, Life::Doubted(..)) => {
                self.also(number, life);
                self.look(store, number)
            }
            Ok(Settled::Applied) => {
                self.becomes(number, life);
                Some(())
            }
            Ok(_) => Some(()),
            Err(_) => {
                self.also(number, life);
                None
            }
        }
    }

    fn end(&mut self, fence: Fence) -> (Settlement, Life) {
        let seconds = |count| Duration::from_secs(count);
        match self.dice.below(8) {
            0 => (Settlement::Release, Life::Absent),
            1 => {
                let reason = Reason::Timeout;
                (Settlement::Doubt { reason }, Life::Doubted(fence, reason))
            }
            _ => {
                let retention = seconds(*self.dice.pick(&[0, 5, 60, 300, 9_999]));
                let remember = seconds(*self.dice.pick(&[0, 5, 60, 300, 9_999]));
                let byte = *self.dice.pick(&[0, 0, 1, 0xa5]);
                let body = vec![byte; self.dice.below(1_800) as usize];
                let end = completion(&body, retention, remember);
                let retention_ends = self.now() + retention;
                let life = Life::Done {
                    fence,
                    body,
                    retention_ends,
                    remember_ends: retention_ends + remember,
                };
                (end, life)
            }
        }
    }

    /// Puts the disk into its state after the crash.
    fn end_of(&mut self, end: End) {
        match end {
            End::Kill => self.disk.revive(),
            End::Power => {
                self.site = self.site.crashed(&self.disk, self.dice.throw());
                self.site.clock.reboot();
                self.disk = self.site.disk();
            }
        }
    }
}

/// Every third record is at-least-once.
fn claim_of(number: u64) -> Claim {
    Claim {
        claimant: Claimant::random(),
        attempts_max: u16::MAX,
        lease: Duration::from_secs(20),
        ..match number % 3 {
            0 => at_least_once(number),
            _ => claim(number),
        }
    }
}

fn seeds(default: u64) -> u64 {
    let count = std::env::var("REFRAIN_CRASH_SEEDS").ok();
    count.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn nothing_acknowledged_is_lost_whenever_the_end_comes() {
    for seed in 0..seeds(80) {
        let mut history = History::new(seed, format!("seed {seed}"));
        for life in 0..6 {
            history.label = format!("seed {seed}, life {life}");
            let end = *history.dice.pick(&[End::Power, End::Power, End::Kill]);
            let changes = 1 + history.dice.below(250);
            history.disk.end_after(changes, end);
            if let Some(store) = history.open() {
                for _ in 0..60 {
                    if history.act(&store).is_none() {
                        break;
                    }
                }
            }
            history.end_of(end);
        }
        history.label = format!("seed {seed}, at last");
        assert!(history.open().is_some(), "{}", history.label);
    }
}

/// The same short history, with a crash at each change to the disk in turn.
#[test]
fn the_end_may_come_at_every_single_change() {
    let acts = |history: &mut History| -> Option<()> {
        let store = history.open()?;
        for _ in 0..14 {
            history.act(&store)?;
        }
        drop(store);
        history.open().map(drop)
    };
    for seed in [1, 2] {
        let mut whole = History::new(seed, "without an end".into());
        acts(&mut whole).unwrap();
        for changes in 1..=whole.disk.changes() {
            for end in [End::Power, End::Kill] {
                let mut history = History::new(seed, format!("seed {seed}, {end:?} at {changes}"));
                history.disk.end_after(changes, end);
                let _ = acts(&mut history);
                history.end_of(end);
                assert!(history.open().is_some(), "{}", history.label);
            }
        }
    }
}

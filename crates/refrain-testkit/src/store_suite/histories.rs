//! Runs random histories against the store and the model, and compares them.

use rand::{SeedableRng as _, rngs::StdRng};
use refrain::{
    Claim, Fence, RecordId, Store, Verdict,
    record::Record,
    store::{Census, Query},
};

use self::op::{IDS, Op};
use super::{
    Fixture, Options,
    bench::{Broken, Checked, caught, expect, id, send_claims},
    view,
};
use crate::{ManualClock, Model};

mod op;

/// Maximum number of shorter histories to try after a failure.
const SHRINKS_MAX: u32 = 400;

/// Expects every reply and every record of the store to equal the model's.
pub(super) async fn agree<F: Fixture>(fixture: &F, options: &Options) -> Checked {
    let start = options.seed.unwrap_or_else(rand::random);
    for number in 0..u64::from(options.histories) {
        let seed = start.wrapping_add(number);
        let history = history(seed, options.steps);
        if let Err(broken) = caught(replay(fixture, &history)).await {
            return Err(shrunk(fixture, seed, history, broken).await);
        }
    }
    Ok(())
}

fn history(seed: u64, steps: u32) -> Vec<Op> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..steps).map(|_| Op::random(&mut rng)).collect()
}

/// Shrinks the history to the steps that the failure needs, and reports them.
async fn shrunk<F: Fixture>(
    fixture: &F,
    seed: u64,
    mut history: Vec<Op>,
    mut broken: Broken,
) -> Broken {
    let mut tries = 0;
    let mut size = history.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < history.len() && tries < SHRINKS_MAX {
            let mut shorter = history.clone();
            shorter.drain(at..(at + size).min(shorter.len()));
            tries += 1;
            match caught(replay(fixture, &shorter)).await {
                Ok(()) => at += size,
                Err(still) => (history, broken) = (shorter, still),
            }
        }
        size /= 2;
    }
    let steps: String = history.iter().map(|op| format!("\n    {op:?}")).collect();
    Broken(format!(
        "with seed {seed} the store differs from the model; {}; the shortest history found:{steps}",
        broken.0
    ))
}

/// Runs one history on a new store and a new model.
async fn replay<F: Fixture>(fixture: &F, history: &[Op]) -> Checked {
    let clock = ManualClock::new();
    let mut pair = Pair {
        store: fixture.open(clock.shared()).await?,
        model: Model::new(clock.shared()),
        clock,
        grants: Vec::new(),
    };
    for (number, op) in (1..).zip(history) {
        let applied = pair.apply(op).await;
        let compared = match applied {
            Ok(()) => pair.compare().await,
            broken => broken,
        };
        compared.map_err(|broken| Broken(format!("step {number}, {op:?}: {}", broken.0)))?;
    }
    Ok(())
}

/// The store under test and the model, on the same clock.
struct Pair<S> {
    store: S,
    model: Model,
    clock: ManualClock,
    /// Grants, each with the fence of the store and the fence of the model.
    grants: Vec<Granted>,
}

struct Granted {
    id: RecordId,
    by_store: Fence,
    by_model: Fence,
}

/// Which of the two issued a fence.
#[derive(Clone, Copy)]
enum Side {
    Store,
    Model,
}

impl<S: Store> Pair<S> {
    async fn apply(&mut self, op: &Op) -> Checked {
        match op {
            Op::Claim(claims) => self.claim(claims).await,
            Op::Settle { id, pick, end } => {
                let (by_store, by_model) = self.pick(*id, *pick);
                let got = self.store.settle(*id, by_store, end.clone()).await?;
                let want = self.model.settle(*id, by_model, end.clone()).await?;
                expect("the answer", got, want)
            }
            Op::Renew { id, pick, lease } => {
                let (by_store, by_model) = self.pick(*id, *pick);
                let got = self.store.renew(*id, by_store, *lease).await?;
                let want = self.model.renew(*id, by_model, *lease).await?;
                expect("the answer", got, want)
            }
            Op::Advance(span) => {
                self.clock.advance(*span);
                Ok(())
            }
            Op::Jump(span) => {
                self.clock.jump(*span);
                Ok(())
            }
            // The number of swept records may differ: a store may drop an expired record on access.
            Op::Sweep(at_most) => {
                self.store.sweep(*at_most).await?;
                Ok(())
            }
            Op::Erase(id) => {
                let got = self.store.erase(*id).await?;
                let want = self.model.erase(*id).await?;
                expect("the answer", got, want)
            }
            Op::Census => self.census().await,
            Op::List(query) => self.list(query).await,
        }
    }

    async fn claim(&mut self, claims: &[(Claim, Option<usize>)]) -> Checked {
        let (by_store, by_model) = self.claims(claims);
        let got = send_claims(&self.store, &by_store).await?;
        let want = send_claims(&self.model, &by_model).await?;
        for (claim, (got, want)) in by_store.iter().zip(got.into_iter().zip(want)) {
            if let (Verdict::Granted(got), Verdict::Granted(want)) = (&got, &want) {
                self.note(claim.id, got.fence, want.fence);
            }
            let got = self.named(Side::Store, got);
            let want = self.named(Side::Model, want);
            expect("the verdict", got, want)?;
        }
        Ok(())
    }

    /// The claims as sent to each side: `overtakes` holds that side's own fence.
    fn claims(&self, claims: &[(Claim, Option<usize>)]) -> (Vec<Claim>, Vec<Claim>) {
        let both = claims.iter().map(|(claim, overtakes)| {
            let picked = overtakes.map(|back| self.pick(claim.id, Some(back)));
            let with = |overtakes| Claim {
                overtakes,
                ..claim.clone()
            };
            let (by_store, by_model) = picked.unzip();
            (with(by_store), with(by_model))
        });
        both.unzip()
    }

    async fn list(&self, query: &Query) -> Checked {
        let got = self.store.list(query).await?;
        let want = self.model.list(query).await?;
        let records = |side, page: refrain::store::Page| -> Vec<(RecordId, Option<Record>)> {
            let record = |reading| view::of_reading(reading);
            let name = |record| view::renamed(record, |fence| self.name(side, fence));
            page.readings
                .into_iter()
                .map(|reading| (reading.id, record(reading).map(name)))
                .collect()
        };
        let (got, want) = (records(Side::Store, got), records(Side::Model, want));
        expect("the list", got, want)
    }

    /// The counts of in-flight and indeterminate records must be equal. Ended records may be counted until swept.
    async fn census(&self) -> Checked {
        let got = self.store.census().await?;
        let want = self.model.census().await?;
        let live = |census: Census| (census.in_flight, census.indeterminate, census.unreadable);
        expect(
            "the census of in-flight and indeterminate records",
            live(got),
            live(want),
        )?;
        let ended = |census: Census| census.completed + census.tombstones;
        let all = live(got).0 + live(got).1 + ended(got);
        let fits = ended(got) >= ended(want) && all <= IDS;
        let what = format!("whether {got:?} is compatible with {want:?}");
        expect(&what, fits, true)
    }

    /// Expects equal records on both sides.
    async fn compare(&self) -> Checked {
        for number in 0..IDS {
            let id = id(number);
            let got = self.store.read(id).await?.and_then(view::of_reading);
            let want = self.model.read(id).await?.and_then(view::of_reading);
            let name = |side| move |record| view::renamed(record, |fence| self.name(side, fence));
            let (got, want) = (got.map(name(Side::Store)), want.map(name(Side::Model)));
            expect(&format!("the record {id} after the step"), got, want)?;
        }
        Ok(())
    }

    fn note(&mut self, id: RecordId, by_store: Fence, by_model: Fence) {
        let known =
            |granted: &Granted| granted.by_store == by_store || granted.by_model == by_model;
        if !self.grants.iter().any(known) {
            self.grants.push(Granted {
                id,
                by_store,
                by_model,
            });
        }
    }

    /// Returns one of the record's fences, counted from the last grant, or a fence that was never granted.
    fn pick(&self, id: RecordId, pick: Option<usize>) -> (Fence, Fence) {
        let of_record: Vec<_> = self.grants.iter().rev().filter(|g| g.id == id).collect();
        match (pick, of_record.len()) {
            (Some(back), len) if len > 0 => {
                let granted = of_record[back % len];
                (granted.by_store, granted.by_model)
            }
            _ => (NOBODYS, NOBODYS),
        }
    }

    /// Replaces a fence with the number of its grant, because store and model issue different fences.
    fn name(&self, side: Side, fence: Fence) -> Fence {
        let same = |granted: &Granted| match side {
            Side::Store => granted.by_store == fence,
            Side::Model => granted.by_model == fence,
        };
        match self.grants.iter().position(same) {
            Some(number) => Fence {
                epoch: 0,
                counter: number as u64,
                nonce: 0,
            },
            None => NOBODYS,
        }
    }

    fn named(&self, side: Side, mut verdict: Verdict) -> Verdict {
        match &mut verdict {
            Verdict::Granted(grant) => grant.fence = self.name(side, grant.fence),
            Verdict::Indeterminate(doubt) => doubt.fence = self.name(side, doubt.fence),
            _ => (),
        }
        verdict
    }
}

/// A fence that is never granted.
const NOBODYS: Fence = Fence {
    epoch: u32::MAX,
    counter: u64::MAX,
    nonce: 0,
};

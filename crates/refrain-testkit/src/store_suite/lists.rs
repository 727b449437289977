//! Lists for operators: each record once, ordered by identity, filtered by state.

use std::time::Duration;

use refrain::{
    RecordId, Store,
    store::{Census, Query, Reading, StateName},
};

use super::{
    bench::{Bench, Broken, Checked, LEASE, RETENTION, claim, expect, id},
    stage::Stage,
    view,
};

pub(super) async fn lists_come_in_the_order_of_identities<S: Store>(bench: &Bench<S>) -> Checked {
    let empty = walk(bench, None, 10).await?;
    expect("the list of an empty store", empty, vec![])?;
    for number in 1..=23 {
        bench.granted(&claim(number)).await?;
    }
    let want = sorted((1..=23).map(id));
    for limit in [1, 5, 23, 100] {
        let what = format!("the list in pages of {limit}");
        let got = walk(bench, None, limit).await?;
        expect(&what, got, want.clone())?;
    }
    Ok(())
}

pub(super) async fn lists_come_by_state<S: Store>(bench: &Bench<S>) -> Checked {
    let stages = [
        (Stage::Tombstone, StateName::Tombstone),
        (Stage::Completed, StateName::Completed),
        (Stage::Indeterminate, StateName::Indeterminate),
        (Stage::InFlight, StateName::InFlight),
    ];
    for (base, (stage, _)) in (0..).zip(stages) {
        for number in 1..=4 {
            stage.reach(bench, base * 10 + number).await?;
        }
    }
    for (base, (_, name)) in (0..).zip(stages) {
        let want = sorted((1..=4).map(|number| id(base * 10 + number)));
        for limit in [1, 4, 9] {
            let what = format!("the list of {name:?} in pages of {limit}");
            let got = walk(bench, Some(name), limit).await?;
            expect(&what, got, want.clone())?;
        }
    }
    Ok(())
}

/// A list shows the state that a claim would find, also for a lapsed lease or an ended retention that no access has
/// applied yet.
pub(super) async fn lists_go_by_what_time_has_made_of_records<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let lapsing = Stage::InFlight.reach(bench, 1).await?.0.id;
    let again = Stage::UpForTakeover.reach(bench, 2).await?.0.id;
    let ending = Stage::Completed.reach(bench, 3).await?.0.id;
    bench.clock.advance(LEASE + RETENTION);
    let want = [
        (StateName::InFlight, vec![again]),
        (StateName::Indeterminate, vec![lapsing]),
        (StateName::Completed, vec![]),
        (StateName::Tombstone, vec![ending]),
    ];
    for (name, ids) in want {
        let what = format!("the list of {name:?} after time has passed");
        expect(&what, walk(bench, Some(name), 10).await?, ids)?;
    }
    Ok(())
}

/// In-flight and indeterminate records are counted exactly. An ended record may still be counted in its earlier state.
pub(super) async fn a_census_counts_every_record_by_state<S: Store>(bench: &Bench<S>) -> Checked {
    let none = Census::default();
    expect("an empty store", bench.store.census().await?, none)?;
    let stages = [
        (Stage::Completed, 4),
        (Stage::Indeterminate, 3),
        (Stage::InFlight, 2),
        (Stage::UpForTakeover, 1),
    ];
    for (base, (stage, count)) in (0..).zip(stages) {
        for number in 1..=count {
            stage.reach(bench, base * 10 + number).await?;
        }
    }
    // Reaching the last state advanced the clock by a lease, so the in-flight records before it have lapsed.
    let want = Census {
        in_flight: 1,
        completed: 4,
        indeterminate: 5,
        ..none
    };
    expect("the census", bench.store.census().await?, want)?;
    bench.clock.advance(RETENTION);
    let later = bench.store.census().await?;
    let live = (later.in_flight, later.indeterminate);
    expect("the live records after retention", live, (1, 5))?;
    let ended = later.completed + later.tombstones;
    expect("the ended records after retention", ended, 4)
}

/// Walks through all pages and checks each; the pages of short searches show the same records.
async fn walk<S: Store>(
    bench: &Bench<S>,
    state: Option<StateName>,
    limit: u32,
) -> Checked<Vec<RecordId>> {
    let ids = pages(bench, state, limit, None).await?;
    let short = pages(bench, state, limit, Some(Duration::ZERO)).await?;
    expect("the records of short searches", &short, &ids)?;
    Ok(ids)
}

async fn pages<S: Store>(
    bench: &Bench<S>,
    state: Option<StateName>,
    limit: u32,
    search_time: Option<Duration>,
) -> Checked<Vec<RecordId>> {
    let mut ids = Vec::new();
    let mut after = None;
    for _ in 0..1_000 {
        let query = Query {
            state,
            after,
            limit,
            search_time,
            ..Query::default()
        };
        let page = bench.store.list(&query).await?;
        let fits = page.readings.len() <= limit as usize;
        expect(
            "a page has at most the requested number of records",
            fits,
            true,
        )?;
        ids.extend(page.readings.iter().map(|reading| reading.id));
        for reading in page.readings {
            agrees(bench, reading).await?;
        }
        match page.next {
            None => return Ok(ids),
            next => after = next,
        }
    }
    Err(Broken("a list of a few records has 1000 pages".into()))
}

/// A listed record equals the record as read.
async fn agrees<S: Store>(bench: &Bench<S>, reading: Reading) -> Checked {
    let read = bench.view(reading.id).await?;
    expect("a record as listed", view::of_reading(reading), read)
}

fn sorted(ids: impl Iterator<Item = RecordId>) -> Vec<RecordId> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort();
    ids
}

//! The data keys of scopes, with which records are encrypted.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;
use refrain::{
    Store,
    record::ScopeDigest,
    store::{SCOPE_KEY_BYTES_MAX, ScopeKeyPage},
};

use super::{
    Fixture,
    bench::{Bench, Checked, expect},
};

fn scope(number: u64) -> ScopeDigest {
    // Spreads over the whole range, and includes both ends.
    ScopeDigest(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes())
}

/// A key of the maximum length, with every kind of byte.
fn key(number: u8) -> Bytes {
    let bytes = (0..SCOPE_KEY_BYTES_MAX).map(|at| (at as u8).wrapping_mul(37) ^ number);
    bytes.collect::<Vec<_>>().into()
}

pub(super) async fn a_scope_key_is_replaced_only_as_expected<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let (store, twin, first) = (&bench.store, &bench.twin, scope(u64::MAX));
    expect("a missing key", store.scope_key(first).await?, None)?;
    let put = store.replace_scope_key(first, Some(key(9)), key(1)).await?;
    expect("replacing a missing key as another one", put, None)?;
    let put = store.replace_scope_key(first, None, key(1)).await?;
    expect("the first key", put, Some(key(1)))?;
    expect(
        "in another handle",
        twin.scope_key(first).await?,
        Some(key(1)),
    )?;
    let put = twin.replace_scope_key(first, None, key(2)).await?;
    expect("a second first key", put, Some(key(1)))?;
    let put = twin.replace_scope_key(first, Some(key(2)), key(3)).await?;
    expect("replacing an outdated key", put, Some(key(1)))?;
    let short = Bytes::from_static(b"\x01\0");
    let put = twin
        .replace_scope_key(first, Some(key(1)), short.clone())
        .await?;
    expect("replacing the stored key", put, Some(short.clone()))?;
    expect(
        "the replaced key",
        store.scope_key(first).await?,
        Some(short),
    )?;
    let other = store.scope_key(scope(7)).await?;
    expect("the key of another scope", other, None)
}

pub(super) async fn all_scope_keys_are_listed<S: Store>(bench: &Bench<S>) -> Checked {
    expect(
        "an empty list",
        listed(&bench.store).await?,
        BTreeMap::new(),
    )?;
    let mut want = BTreeMap::new();
    for number in (0..250).chain([u64::MAX]) {
        let key = key(number as u8);
        bench
            .store
            .replace_scope_key(scope(number), None, key.clone())
            .await?;
        want.insert(scope(number).0, key);
    }
    expect("the list", listed(&bench.twin).await?, want)
}

async fn listed<S: Store>(store: &S) -> Checked<BTreeMap<[u8; 8], Bytes>> {
    let (mut all, mut cursor) = (BTreeMap::new(), None);
    loop {
        let ScopeKeyPage { keys, next } = store.scope_keys(cursor).await?;
        all.extend(keys.into_iter().map(|(scope, key)| (scope.0, key)));
        cursor = next;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

pub(super) async fn racing_processes_agree_on_a_scope_key<S: Store>(bench: &Bench<S>) -> Checked {
    for round in 0..20 {
        let racers = (0..8_u8).map(|racer| {
            let store = bench.handle(racer.into());
            tokio::spawn(async move {
                store
                    .replace_scope_key(scope(round), None, key(racer))
                    .await
            })
        });
        let mut seen = Vec::new();
        for raced in join_all(racers).await {
            let put = raced.map_err(|panic| super::bench::Broken(panic.to_string()))??;
            seen.push(put);
        }
        let stored = bench.store.scope_key(scope(round)).await?;
        expect("all racers see the stored key", seen, vec![stored; 8])?;
    }
    Ok(())
}

pub(super) async fn a_restart_keeps_scope_keys<F: Fixture>(fixture: &F) -> Checked {
    let bench = Bench::open(fixture).await?;
    for number in 0..5 {
        let put = bench.store.replace_scope_key(scope(number), None, key(1));
        expect("a first key", put.await?, Some(key(1)))?;
    }
    let put = bench
        .store
        .replace_scope_key(scope(2), Some(key(1)), key(2));
    expect("a replaced key", put.await?, Some(key(2)))?;
    let bench = bench.restarted(fixture, |_| ()).await?;
    for (number, want) in [(0, key(1)), (2, key(2)), (4, key(1))] {
        let kept = bench.store.scope_key(scope(number)).await?;
        expect("a key after a restart", kept, Some(want))?;
    }
    let put = bench.store.replace_scope_key(scope(5), None, key(3));
    expect("a new key after a restart", put.await?, Some(key(3)))?;
    let bench = bench.restarted(fixture, |_| ()).await?;
    let kept = bench.store.scope_key(scope(2)).await?;
    expect("a replaced key after two restarts", kept, Some(key(2)))
}

//! A filtered list of a large table: each statement reads a part of it.

use std::time::Duration;

use futures_util::future::join_all;
use refrain::{Store as _, store::Query};

use crate::support::{Schema, claim, id};

/// More records than one statement reads.
const RECORDS: u64 = 10_500;
const AT_ONCE: u64 = 500;

#[tokio::test]
async fn a_search_of_many_records_continues_where_it_ended() {
    let schema = Schema::new();
    let store = schema.open().await;
    for first in (0..RECORDS).step_by(AT_ONCE as usize) {
        let claims = (first..first + AT_ONCE).map(|number| store.claim(claim(number)));
        for claimed in join_all(claims).await {
            let _ = claimed.unwrap();
        }
    }
    let mut query = Query {
        operation: Some("none".into()),
        search_time: Some(Duration::ZERO),
        ..Query::default()
    };
    let page = store.list(&query).await.unwrap();
    assert!(page.readings.is_empty());
    assert!(page.next.is_some(), "the whole table was read at once");
    query.after = page.next;
    let page = store.list(&query).await.unwrap();
    assert!(page.readings.is_empty());
    assert_eq!(page.next, None);

    let all = Query {
        newer_than: Some(Duration::from_secs(3_600)),
        limit: 1_000,
        ..Query::default()
    };
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let query = Query {
            after,
            ..all.clone()
        };
        let page = store.list(&query).await.unwrap();
        found.extend(page.readings.iter().map(|reading| reading.id));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let mut expected: Vec<_> = (0..RECORDS).map(id).collect();
    expected.sort();
    assert!(found == expected, "{} of {RECORDS} found", found.len());
}

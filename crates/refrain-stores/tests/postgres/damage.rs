//! Damaged rows: an untrusted record is not replayed, not executed again, and not overwritten.

use std::time::Duration;

use refrain::{
    ErrorKind, Outcome, Settled, Settlement, Store as _, Verdict, record::Reason, store::Query,
};

use crate::support::{Schema, claim, connect, id, url};

#[tokio::test]
async fn an_outcome_of_another_record_or_a_damaged_one_is_refused() {
    let schema = Schema::new();
    let store = schema.open().await;
    for number in 0..3 {
        let verdict = store.claim(claim(number)).await.unwrap();
        let Verdict::Granted(grant) = verdict else {
            panic!("{verdict:?}");
        };
        let end = Settlement::Complete {
            outcome: Outcome::new(200, number.to_string()),
            retention: Duration::from_secs(60),
            remember: Duration::ZERO,
        };
        let _ = store.settle(id(number), grant.fence, end).await.unwrap();
    }
    let admin = connect(&url()).await;
    let records = format!("{}.records", schema.name);
    let uuid = |number| format!("'{}'::uuid", id(number));
    let damages = [
        // The outcome of another record, a flipped bit, an unknown state.
        format!(
            "UPDATE {records} SET outcome = (SELECT outcome FROM {records} WHERE id = {}) WHERE id = {}",
            uuid(0),
            uuid(1)
        ),
        format!(
            "UPDATE {records} SET outcome = set_bit(outcome, 200, 1 - get_bit(outcome, 200)) WHERE id = {}",
            uuid(1)
        ),
        format!("UPDATE {records} SET outcome = NULL WHERE id = {}", uuid(1)),
    ];
    for damage in damages {
        assert_eq!(admin.execute(&damage, &[]).await.unwrap(), 1, "{damage}");
        let refused = store.claim(claim(1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        assert!(
            refused.to_string().contains(&id(1).to_string()),
            "{refused}"
        );
        assert_eq!(
            store.read(id(1)).await.unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        assert_eq!(
            store.erase(id(1)).await.unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        let listed = store.list(&Query::default()).await.unwrap();
        let ids: Vec<_> = listed.readings.iter().map(|reading| reading.id).collect();
        assert!(!ids.contains(&id(1)) && ids.contains(&id(0)) && ids.contains(&id(2)));
    }
    let replayed = store.claim(claim(2)).await.unwrap();
    assert!(matches!(replayed, Verdict::Replay(_)), "{replayed:?}");
}

#[tokio::test]
async fn rows_of_earlier_releases_go_on_without_a_trace() {
    let schema = Schema::new();
    let store = schema.open().await;
    let mut fences = Vec::new();
    for number in 0..2 {
        let verdict = store.claim(claim(number)).await.unwrap();
        let Verdict::Granted(grant) = verdict else {
            panic!("{verdict:?}");
        };
        fences.push(grant.fence);
    }
    let admin = connect(&url()).await;
    let forget = format!("UPDATE {}.records SET trace = NULL", schema.name);
    assert_eq!(admin.execute(&forget, &[]).await.unwrap(), 2);
    let doubt = Settlement::Doubt {
        reason: Reason::Reset,
    };
    let doubted = store.settle(id(1), fences[1], doubt).await.unwrap();
    assert_eq!(doubted, Settled::Applied);
    for (number, fence) in (0..).zip(fences) {
        let end = Settlement::Complete {
            outcome: Outcome::new(200, "done"),
            retention: Duration::from_secs(60),
            remember: Duration::ZERO,
        };
        let settled = store.settle(id(number), fence, end).await.unwrap();
        assert_eq!(settled, Settled::Applied);
        let replayed = store.claim(claim(number)).await.unwrap();
        assert!(matches!(replayed, Verdict::Replay(_)), "{replayed:?}");
        let reading = store.read(id(number)).await.unwrap().unwrap();
        assert_eq!(reading.record.trace.read(), None);
    }
}

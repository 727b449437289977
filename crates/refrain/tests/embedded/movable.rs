//! A store that moves to another process: the claims of the old process stay in force, and its fences stay valid.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use refrain::{
    Encryption, Fingerprint, Outcome, RecordId, Store,
    encryption::MasterKey,
    record::{Claim, Reason, ScopeDigest, Settled, Settlement, Verdict},
    store::{
        AnyStore, Embedded, Reading,
        embedded::{
            Movable, Options,
            wire::{self, Call, CallReply},
        },
    },
};

const PATIENCE: Duration = Duration::from_secs(10);

fn claim(id: u8) -> Claim {
    Claim::new(RecordId([id; 16]), Fingerprint([id; 16]))
}

fn complete() -> Settlement {
    Settlement::Complete {
        outcome: Outcome::new(201, "charged"),
        retention: Duration::from_secs(60),
        remember: Duration::from_secs(60),
    }
}

async fn granted(store: &impl Store, id: u8) -> refrain::Fence {
    match store.claim(claim(id)).await.unwrap() {
        Verdict::Granted(grant) => grant.fence,
        other => panic!("{other:?}"),
    }
}

fn handed(leases: Vec<wire::HeldLease>) -> Options {
    Options {
        leases: leases.into(),
        ..Options::default()
    }
}

#[tokio::test]
async fn a_claim_of_the_old_process_stays_in_force_and_its_fence_settles() {
    let folder = tempfile::tempdir().unwrap();
    let old = Movable::open(folder.path(), Options::default())
        .await
        .unwrap();
    let fence = granted(&old, 1).await;
    let leases = old.detach(PATIENCE).await.unwrap();
    let sent = wire::decode_leases(&wire::encode_leases(&leases)).unwrap();
    assert_eq!((sent.len(), &sent), (1, &leases));

    let new = Embedded::open(folder.path(), handed(sent)).unwrap();
    let verdict = new.claim(claim(1)).await.unwrap();
    assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
    old.attach(&AnyStore::new(new.clone()));
    let renewed = old.renew(RecordId([1; 16]), fence, PATIENCE).await.unwrap();
    assert_eq!(renewed, Settled::Applied);
    let settled = old
        .settle(RecordId([1; 16]), fence, complete())
        .await
        .unwrap();
    assert_eq!(settled, Settled::Applied);
    let verdict = new.claim(claim(1)).await.unwrap();
    assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
    assert!(granted(&new, 2).await > fence);
}

/// As after a crash of the old process: nobody says that the holder lives.
#[tokio::test]
async fn a_claim_that_is_not_handed_over_lapses() {
    let folder = tempfile::tempdir().unwrap();
    let old = Movable::open(folder.path(), Options::default())
        .await
        .unwrap();
    let fence = granted(&old, 1).await;
    old.detach(PATIENCE).await.unwrap();
    let new = Embedded::open(folder.path(), Options::default()).unwrap();
    let Verdict::Indeterminate(doubt) = new.claim(claim(1)).await.unwrap() else {
        panic!("the lease did not lapse");
    };
    assert_eq!((doubt.reason, doubt.fence), (Reason::Lapsed, fence));
    // Late truth is welcome.
    let settled = new
        .settle(RecordId([1; 16]), fence, complete())
        .await
        .unwrap();
    assert_eq!(settled, Settled::Applied);
}

#[tokio::test]
async fn calls_wait_while_the_store_moves_and_continue_where_it_is_then() {
    let folder = tempfile::tempdir().unwrap();
    let store = Movable::open(folder.path(), Options::default())
        .await
        .unwrap();
    let fence = granted(&store, 1).await;
    let leases = store.detach(PATIENCE).await.unwrap();
    let settling = {
        let store = store.clone();
        tokio::spawn(async move { store.settle(RecordId([1; 16]), fence, complete()).await })
    };
    let claiming = {
        let store = store.clone();
        tokio::spawn(async move { granted(&store, 2).await })
    };
    tokio::task::yield_now().await;
    assert!(!settling.is_finished() && !claiming.is_finished());
    store.reopen(leases).await.unwrap();
    assert_eq!(settling.await.unwrap().unwrap(), Settled::Applied);
    claiming.await.unwrap();
}

#[tokio::test]
async fn held_claims_wait_and_settlements_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = Movable::open(folder.path(), Options::default())
        .await
        .unwrap();
    let fence = granted(&store, 1).await;
    store.hold_claims();
    let claiming = {
        let store = store.clone();
        tokio::spawn(async move { granted(&store, 2).await })
    };
    let settled = store
        .settle(RecordId([1; 16]), fence, complete())
        .await
        .unwrap();
    assert_eq!(settled, Settled::Applied);
    assert!(!claiming.is_finished());
    store.resume_claims();
    claiming.await.unwrap();
    assert!(store.detach(PATIENCE).await.unwrap().len() == 1);
}

/// Makes the call as another process does: over bytes.
async fn call(store: &AnyStore, id: RecordId, call: Call) -> refrain::Result<CallReply> {
    let call = Call::decode(&call.encode().into()).unwrap();
    wire::decode_reply(&call.answer(store).await.into(), id)
}

#[tokio::test]
async fn calls_and_replies_survive_the_way_over_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = AnyStore::new(Embedded::open(folder.path(), Options::default()).unwrap());
    let id = RecordId([1; 16]);
    let read = async || match call(&store, id, Call::Read(id)).await {
        Ok(CallReply::Reading(reading)) => reading,
        other => panic!("{other:?}"),
    };
    assert_eq!(read().await, None);
    let first = claim(1);
    let Ok(CallReply::Verdict(Verdict::Granted(grant))) =
        call(&store, id, Call::Claim(first.clone())).await
    else {
        panic!("not granted");
    };
    // The same claimant, so the whole claim arrived.
    let again = call(&store, id, Call::Claim(first)).await.unwrap();
    assert!(matches!(again, CallReply::Verdict(Verdict::Granted(it)) if it == grant));
    for (other, is_mismatch) in [
        (claim(1), false),
        (Claim::new(id, Fingerprint([9; 16])), true),
    ] {
        let reply = call(&store, id, Call::Claim(other)).await.unwrap();
        match reply {
            CallReply::Verdict(Verdict::Mismatch) => assert!(is_mismatch),
            CallReply::Verdict(Verdict::InFlight { lease_left }) => {
                assert!(!is_mismatch && lease_left > Duration::ZERO);
            }
            other => panic!("{other:?}"),
        }
    }
    let same = async |reading: Option<Reading>| {
        let direct = store.read(id).await.unwrap().unwrap();
        assert_eq!(reading.unwrap().record, direct.record);
    };
    same(read().await).await;
    let wrong = refrain::Fence {
        nonce: grant.fence.nonce ^ 1,
        ..grant.fence
    };
    for (fence, end, expected) in [
        (wrong, complete(), Settled::Fenced),
        (
            grant.fence,
            Settlement::Doubt {
                reason: Reason::Reset,
            },
            Settled::Applied,
        ),
        (grant.fence, complete(), Settled::Applied),
        (grant.fence, Settlement::Release, Settled::Fenced),
    ] {
        let reply = call(&store, id, Call::Settle(id, fence, end))
            .await
            .unwrap();
        assert!(
            matches!(reply, CallReply::Settled(it) if it == expected),
            "{reply:?}"
        );
        same(read().await).await;
    }
    let reply = call(&store, id, Call::Claim(claim(1))).await.unwrap();
    assert!(matches!(reply, CallReply::Verdict(Verdict::Replay(it)) if it.body() == "charged"));
    let reply = call(&store, id, Call::Renew(id, grant.fence, PATIENCE))
        .await
        .unwrap();
    assert!(matches!(reply, CallReply::Settled(Settled::Fenced)));
}

#[tokio::test]
async fn the_keys_of_scopes_survive_the_way_over_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = AnyStore::new(Embedded::open(folder.path(), Options::default()).unwrap());
    let scope = ScopeDigest([7; 8]);
    let key = async |asked: Call| match call(&store, wire::NO_RECORD, asked).await {
        Ok(CallReply::ScopeKey(key)) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key(Call::ScopeKey(scope)).await, None);
    let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
    for (expected, new, now) in [
        (None, &first, &first),
        (None, &second, &first),
        (Some(first.clone()), &second, &second),
    ] {
        let replaced = key(Call::ReplaceScopeKey(scope, expected, new.clone())).await;
        assert_eq!(replaced.as_ref(), Some(now));
    }
    assert_eq!(key(Call::ScopeKey(scope)).await, Some(second.clone()));
    let reply = call(&store, wire::NO_RECORD, Call::ScopeKeys(None)).await;
    let Ok(CallReply::ScopeKeys(page)) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!((page.keys, page.next), (vec![(scope, second)], None));
}

#[tokio::test]
async fn encrypted_outcomes_pass_between_the_processes_as_they_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let keys = || Encryption::new(MasterKey::new([1; 32]));
    let moving = Movable::open(folder.path(), Options::default())
        .await
        .unwrap();
    let old = AnyStore::new(moving.clone()).with_encryption(keys());
    let fence = granted(&old, 1).await;
    let leases = moving.detach(PATIENCE).await.unwrap();

    let new = Embedded::open(folder.path(), handed(leases)).unwrap();
    let new = AnyStore::new(new).with_encryption(keys());
    moving.attach(&new);
    let id = RecordId([1; 16]);
    let settled = old.settle(id, fence, complete()).await.unwrap();
    assert_eq!(settled, Settled::Applied);
    let stored = new.as_stored().claim(claim(1)).await.unwrap();
    assert!(matches!(stored, Verdict::Replay(it) if it.is_encrypted()));
    for store in [&old, &new] {
        let verdict = store.claim(claim(1)).await.unwrap();
        assert!(matches!(verdict, Verdict::Replay(it) if it.body() == "charged"));
    }
}

#[tokio::test]
async fn malformed_bytes_are_rejected_and_errors_keep_their_kind() {
    let call = Call::Claim(claim(1)).encode();
    for len in 0..call.len() - 1 {
        let _ = Call::decode(&call[..len].to_vec().into());
    }
    assert!(Call::decode(&vec![9].into()).is_none());
    assert!(Call::decode(&vec![].into()).is_none());
    let id = RecordId([1; 16]);
    assert!(wire::decode_reply(&vec![1, 1].into(), id).is_err());

    let folder = tempfile::tempdir().unwrap();
    let store = Movable::open(folder.path(), Options::default())
        .await
        .unwrap();
    let closed = Arc::new(store.clone());
    let direct = Embedded::open(folder.path(), Options::default()).unwrap_err();
    assert_eq!(direct.kind(), refrain::ErrorKind::Held);
    closed.detach(PATIENCE).await.unwrap();
    let error = closed.detach(PATIENCE).await.unwrap_err();
    assert_eq!(error.kind(), refrain::ErrorKind::Unavailable);
    assert!(error.is_unapplied());
}

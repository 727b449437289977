//! The tests of `transactional.rs` with sqlx: after any crash, claim, effect and outcome exist together or not at all,
//! and both drivers see the same records.

use std::{sync::Arc, time::Duration};

use refrain::{Fingerprint, Intent, Key, Outcome, Scope, Verdict};
use refrain_stores::postgres::{Claimed, Postgres};
use refrain_testkit::wait;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _, Transaction,
    postgres::PgConnectOptions,
};

use crate::support::{Schema, connect, url};

/// Store, and a table for effects.
struct Shop {
    schema: Schema,
    store: Postgres,
}

async fn client() -> PgConnection {
    let options: PgConnectOptions = url().parse().unwrap();
    options.connect().await.unwrap()
}

impl Shop {
    async fn open() -> Self {
        let schema = Schema::new();
        let store = schema.open().await;
        let table = format!("CREATE TABLE {}.effects (key text)", schema.name);
        let admin = connect(&url()).await;
        admin.batch_execute(&table).await.unwrap();
        Self { schema, store }
    }

    async fn effects(&self) -> i64 {
        let count = format!("SELECT count(*) FROM {}.effects", self.schema.name);
        let mut client = client().await;
        let counted = sqlx::query(AssertSqlSafe(count)).fetch_one(&mut client);
        counted.await.unwrap().get(0)
    }

    async fn act(&self, transaction: &mut Transaction<'_, sqlx::Postgres>) {
        let insert = format!("INSERT INTO {}.effects VALUES ('x')", self.schema.name);
        let acted = sqlx::query(AssertSqlSafe(insert)).execute(&mut **transaction);
        acted.await.unwrap();
    }

    /// The whole operation, as in a service: claim, effect, outcome, commit.
    async fn pay(&self, client: &mut PgConnection, intent: &Intent) -> Verdict<Outcome> {
        let mut transaction = client.begin().await.unwrap();
        let verdict = match self.store.claim_in(&mut transaction, intent).await.unwrap() {
            Verdict::Granted(claimed) => {
                self.act(&mut transaction).await;
                let outcome = claimed.complete_in(&mut transaction, paid()).await;
                Verdict::Granted(outcome.unwrap())
            }
            other => other.map(|_| unreachable!()),
        };
        transaction.commit().await.unwrap();
        verdict
    }
}

fn paid() -> Outcome {
    Outcome::new(201, "paid")
}

fn intent(key: &str) -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new(key).unwrap());
    intent.terms.wait = wait::PATIENCE;
    intent
}

fn granted(verdict: Verdict<Claimed>) -> Claimed {
    match verdict {
        Verdict::Granted(claimed) => claimed,
        other => panic!("{other:?}"),
    }
}

fn is_replay(verdict: &Verdict<Outcome>) -> bool {
    matches!(verdict, Verdict::Replay(outcome) if &outcome.body()[..] == b"paid")
}

#[tokio::test]
async fn claim_effect_and_outcome_are_one_commit() {
    let shop = Shop::open().await;
    let mut client = client().await;
    // A rollback undoes everything, and the key is free.
    let mut transaction = client.begin().await.unwrap();
    let verdict = shop.store.claim_in(&mut transaction, &intent("k")).await;
    let claimed = granted(verdict.unwrap());
    shop.act(&mut transaction).await;
    let _ = claimed.complete_in(&mut transaction, paid()).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(shop.effects().await, 0);
    let first = shop.pay(&mut client, &intent("k")).await;
    assert!(matches!(first, Verdict::Granted(_)), "{first:?}");
    let again = shop.pay(&mut client, &intent("k")).await;
    assert!(is_replay(&again), "{again:?}");
    let mut other = intent("k");
    other.fingerprint = Fingerprint([9; 16]);
    let other = shop.pay(&mut client, &other).await;
    assert!(matches!(other, Verdict::Mismatch), "{other:?}");
    assert_eq!(shop.effects().await, 1);
    // The other driver replays it, too.
    let mut plain = connect(&url()).await;
    let mut transaction = plain.transaction().await.unwrap();
    let verdict = shop.store.claim_in(&mut transaction, &intent("k")).await;
    let verdict = verdict.unwrap().map(|claimed| panic!("{claimed:?}"));
    assert!(is_replay(&verdict), "{verdict:?}");
    transaction.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_one_takes_effect_and_the_others_wait_for_it() {
    let shop = Arc::new(Shop::open().await);
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let shop = shop.clone();
            tokio::spawn(async move { shop.pay(&mut client().await, &intent("k")).await })
        })
        .collect();
    let mut grants = 0;
    for task in tasks {
        match task.await.unwrap() {
            Verdict::Granted(_) => grants += 1,
            verdict => assert!(is_replay(&verdict), "{verdict:?}"),
        }
    }
    assert_eq!((grants, shop.effects().await), (1, 1));
}

#[tokio::test]
async fn wait_timeout_returns_in_flight_and_keeps_the_transaction() {
    let shop = Shop::open().await;
    let (mut one, mut two) = (client().await, client().await);
    let mut first = one.begin().await.unwrap();
    let verdict = shop.store.claim_in(&mut first, &intent("k")).await;
    let claimed = granted(verdict.unwrap());
    let mut hasty = intent("k");
    hasty.terms.wait = Duration::from_millis(100);
    let mut second = two.begin().await.unwrap();
    shop.act(&mut second).await;
    let asked = tokio::time::Instant::now();
    let verdict = shop.store.claim_in(&mut second, &hasty).await.unwrap();
    assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
    assert!(asked.elapsed() >= hasty.terms.wait && asked.elapsed() < wait::PATIENCE);
    shop.act(&mut second).await;
    second.commit().await.unwrap();
    assert_eq!(shop.effects().await, 2);
    claimed.release_in(&mut first).await.unwrap();
    first.commit().await.unwrap();
    let verdict = shop.pay(&mut two, &intent("k")).await;
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
}

#[tokio::test]
async fn a_claim_cannot_be_ended_in_another_transaction_or_made_in_another_database() {
    let shop = Shop::open().await;
    let (mut one, mut two) = (client().await, client().await);
    let mut first = one.begin().await.unwrap();
    let verdict = shop.store.claim_in(&mut first, &intent("k")).await;
    let claimed = granted(verdict.unwrap());
    let mut second = two.begin().await.unwrap();
    let ended = claimed.complete_in(&mut second, paid()).await;
    let text = ended.unwrap_err().to_string();
    assert!(text.contains("not claimed in this transaction"), "{text}");
    second.rollback().await.unwrap();
    first.rollback().await.unwrap();
    let elsewhere: PgConnectOptions = url().parse().unwrap();
    let mut elsewhere = elsewhere.database("postgres").connect().await.unwrap();
    let mut transaction = elsewhere.begin().await.unwrap();
    let refused = shop.store.claim_in(&mut transaction, &intent("k")).await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("begin the transaction on the database"),
        "{text}"
    );
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn commit_without_an_outcome_is_indeterminate_and_not_executed_again() {
    let shop = Shop::open().await;
    let mut client = client().await;
    let mut short = intent("k");
    short.terms.lease = Duration::from_millis(1);
    let mut transaction = client.begin().await.unwrap();
    let verdict = shop.store.claim_in(&mut transaction, &short).await;
    drop(granted(verdict.unwrap()));
    transaction.commit().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let verdict = shop.pay(&mut client, &short).await;
    assert!(matches!(verdict, Verdict::Indeterminate(_)), "{verdict:?}");
}

//! The effect and its record are in one commit: after any crash, either both exist or neither.

use std::time::Duration;

use refrain::{
    Engine, Fingerprint, Intent, Key, Outcome, Scope, Store as _, Verdict,
    engine::ClaimReply,
    store::{Query, StateName},
};
use refrain_stores::postgres::{Claimed, Postgres};
use refrain_testkit::wait;
use tokio_postgres::{Client, Transaction};

use crate::{
    relay::{Mood, Relay},
    support::{Schema, connect, url},
};

/// Store, and a table for effects.
struct Shop {
    schema: Schema,
    store: Postgres,
}

impl Shop {
    async fn open() -> Self {
        let schema = Schema::new();
        let store = schema.open().await;
        let admin = connect(&url()).await;
        let table = format!("CREATE TABLE {}.effects (key text)", schema.name);
        admin.batch_execute(&table).await.unwrap();
        Self { schema, store }
    }

    async fn effects(&self) -> i64 {
        let admin = connect(&url()).await;
        let count = format!("SELECT count(*) FROM {}.effects", self.schema.name);
        admin.query_one(&count, &[]).await.unwrap().get(0)
    }

    async fn act(&self, transaction: &Transaction<'_>) {
        let insert = format!("INSERT INTO {}.effects VALUES ('x')", self.schema.name);
        transaction.execute(&insert, &[]).await.unwrap();
    }

    /// The whole operation, as in a service: claim, effect, outcome, commit.
    async fn pay(
        &self,
        client: &mut Client,
        intent: &Intent,
    ) -> Result<Verdict<Outcome>, tokio_postgres::Error> {
        let mut transaction = client.transaction().await?;
        let verdict = match self.store.claim_in(&mut transaction, intent).await.unwrap() {
            Verdict::Granted(claimed) => {
                self.act(&transaction).await;
                let outcome = claimed
                    .complete_in(&transaction, Outcome::new(201, "paid"))
                    .await;
                Verdict::Granted(outcome.unwrap())
            }
            other => other.map(|_| unreachable!()),
        };
        transaction.commit().await?;
        Ok(verdict)
    }
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
    let mut client = connect(&url()).await;
    // A rollback undoes everything, and the key is free.
    let mut transaction = client.transaction().await.unwrap();
    let claimed = granted(
        shop.store
            .claim_in(&mut transaction, &intent("k"))
            .await
            .unwrap(),
    );
    shop.act(&transaction).await;
    let _ = claimed
        .complete_in(&transaction, Outcome::new(201, "never"))
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(shop.effects().await, 0);
    assert!(matches!(
        shop.pay(&mut client, &intent("k")).await.unwrap(),
        Verdict::Granted(_)
    ));
    assert!(is_replay(
        &shop.pay(&mut client, &intent("k")).await.unwrap()
    ));
    let mut other = intent("k");
    other.fingerprint = Fingerprint([9; 16]);
    assert!(matches!(
        shop.pay(&mut client, &other).await.unwrap(),
        Verdict::Mismatch
    ));
    assert_eq!(shop.effects().await, 1);
    // The engine on the same store replays it, and vice versa.
    let engine = Engine::new(Postgres::open(&shop.schema.url()).await.unwrap());
    let verdict = engine
        .run(&intent("k"), async |_| panic!("it has run"))
        .await
        .unwrap();
    assert!(is_replay(&verdict), "{verdict:?}");
    let work = async |_| Outcome::new(201, "paid");
    assert!(matches!(
        engine.run(&intent("l"), work).await.unwrap(),
        Verdict::Granted(_)
    ));
    assert!(is_replay(
        &shop.pay(&mut client, &intent("l")).await.unwrap()
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_one_takes_effect_and_the_others_wait_for_it() {
    let shop = std::sync::Arc::new(Shop::open().await);
    for round in 0..3 {
        let key: &'static str = format!("round-{round}").leak();
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let shop = shop.clone();
                tokio::spawn(async move {
                    let mut client = connect(&url()).await;
                    shop.pay(&mut client, &intent(key)).await.unwrap()
                })
            })
            .collect();
        let mut grants = 0;
        for task in tasks {
            let verdict = task.await.unwrap();
            match verdict {
                Verdict::Granted(_) => grants += 1,
                verdict => assert!(is_replay(&verdict), "{verdict:?}"),
            }
        }
        assert_eq!(grants, 1);
        assert_eq!(shop.effects().await, round + 1);
    }
}

#[tokio::test]
async fn wait_timeout_returns_in_flight_and_keeps_the_transaction() {
    let shop = Shop::open().await;
    let (mut one, mut two) = (connect(&url()).await, connect(&url()).await);
    let mut first = one.transaction().await.unwrap();
    let claimed = granted(shop.store.claim_in(&mut first, &intent("k")).await.unwrap());
    let mut hasty = intent("k");
    for wait in [Duration::ZERO, Duration::from_millis(100)] {
        hasty.terms.wait = wait;
        let mut second = two.transaction().await.unwrap();
        second
            .batch_execute("SET LOCAL lock_timeout = '7min'")
            .await
            .unwrap();
        let asked = tokio::time::Instant::now();
        let verdict = shop.store.claim_in(&mut second, &hasty).await.unwrap();
        assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
        assert!(asked.elapsed() >= wait && asked.elapsed() < wait::PATIENCE);
        // Its own `lock_timeout` is restored, and its other writes are kept.
        let limit: String = second
            .query_one("SHOW lock_timeout", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(limit, "7min");
        shop.act(&second).await;
        second.commit().await.unwrap();
    }
    assert_eq!(shop.effects().await, 2);
    // A transaction cannot claim the same key twice, either.
    let verdict = shop.store.claim_in(&mut first, &hasty).await.unwrap();
    assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
    claimed.release_in(&first).await.unwrap();
    first.commit().await.unwrap();
    assert!(matches!(
        shop.pay(&mut two, &intent("k")).await.unwrap(),
        Verdict::Granted(_)
    ));
}

#[tokio::test]
async fn a_client_that_dies_in_the_middle_leaves_nothing() {
    let shop = Shop::open().await;
    let mut one = connect(&url()).await;
    let mut transaction = one.transaction().await.unwrap();
    let claimed = granted(
        shop.store
            .claim_in(&mut transaction, &intent("k"))
            .await
            .unwrap(),
    );
    shop.act(&transaction).await;
    let _ = claimed
        .complete_in(&transaction, Outcome::new(201, "never"))
        .await
        .unwrap();
    let pid: i32 = transaction
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    let mut two = connect(&url()).await;
    two.query_one("SELECT pg_terminate_backend($1)", &[&pid])
        .await
        .unwrap();
    drop(transaction);
    assert!(matches!(
        shop.pay(&mut two, &intent("k")).await.unwrap(),
        Verdict::Granted(_)
    ));
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_the_commit_resolves_itself() {
    let shop = Shop::open().await;
    let own = url();
    let (front, rest) = own.split_once('@').unwrap();
    let (server, tail) = rest.split_once('/').unwrap();
    let relay = Relay::start(server.to_owned()).await;
    let through = format!("{front}@127.0.0.1:{}/{tail}", relay.port);
    let cases = [
        (Mood::LosesNextAnswer, true),
        (Mood::LosesNextRequest, false),
    ];
    for (number, (mood, was_committed)) in (1..).zip(cases) {
        let key = intent(&format!("{mood:?}"));
        let mut client = connect(&through).await;
        let mut transaction = client.transaction().await.unwrap();
        let claimed = granted(shop.store.claim_in(&mut transaction, &key).await.unwrap());
        shop.act(&transaction).await;
        let _ = claimed
            .complete_in(&transaction, Outcome::new(201, "paid"))
            .await
            .unwrap();
        relay.set(mood);
        transaction.commit().await.unwrap_err();
        let again = shop.pay(&mut connect(&through).await, &key).await.unwrap();
        assert_eq!(is_replay(&again), was_committed, "{mood:?}: {again:?}");
        assert_eq!(shop.effects().await, number, "{mood:?}");
    }
}

#[tokio::test]
async fn commit_without_an_outcome_is_indeterminate_and_not_executed_again() {
    let shop = Shop::open().await;
    let mut client = connect(&url()).await;
    let mut short = intent("k");
    short.terms.lease = Duration::from_millis(1);
    let mut transaction = client.transaction().await.unwrap();
    drop(granted(
        shop.store.claim_in(&mut transaction, &short).await.unwrap(),
    ));
    transaction.commit().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let verdict = shop.pay(&mut client, &short).await.unwrap();
    assert!(matches!(verdict, Verdict::Indeterminate(_)), "{verdict:?}");
    let page = shop.store.list(&Query::default()).await.unwrap();
    let states: Vec<_> = page
        .readings
        .iter()
        .map(|it| it.record.state.name())
        .collect();
    assert_eq!(states, [StateName::Indeterminate]);
}

#[tokio::test]
async fn a_claim_cannot_be_ended_in_another_transaction() {
    let shop = Shop::open().await;
    let (mut one, mut two) = (connect(&url()).await, connect(&url()).await);
    for releases in [false, true] {
        let mut first = one.transaction().await.unwrap();
        let claimed = granted(shop.store.claim_in(&mut first, &intent("k")).await.unwrap());
        let second = two.transaction().await.unwrap();
        let ended = match releases {
            true => claimed.release_in(&second).await,
            false => claimed
                .complete_in(&second, Outcome::new(200, ""))
                .await
                .map(|_| ()),
        };
        let text = ended.unwrap_err().to_string();
        assert!(text.contains("not claimed in this transaction"), "{text}");
        first.rollback().await.unwrap();
    }
    let mut elsewhere = shop.schema.url().replace("/refrain?", "/postgres?");
    elsewhere.truncate(elsewhere.find('?').unwrap());
    let mut client = connect(&elsewhere).await;
    let mut transaction = client.transaction().await.unwrap();
    let refused = shop
        .store
        .claim_in(&mut transaction, &intent("k"))
        .await
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("begin the transaction on the database"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_transaction_holds_up_its_own_key_and_no_other() {
    let shop = Shop::open().await;
    let engine = Engine::new(Postgres::open(&shop.schema.url()).await.unwrap());
    let mut client = connect(&url()).await;
    let mut transaction = client.transaction().await.unwrap();
    let claimed = granted(
        shop.store
            .claim_in(&mut transaction, &intent("held"))
            .await
            .unwrap(),
    );
    let mut tasks = Vec::new();
    for number in 0..20 {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            // One of them claims the key that the transaction holds.
            let key = if number == 7 {
                "held".into()
            } else {
                format!("free-{number}")
            };
            let work = async |_| Outcome::new(201, "paid");
            (number, engine.run(&intent(&key), work).await)
        }));
    }
    for task in tasks {
        let (number, verdict) = task.await.unwrap();
        match number {
            7 => assert!(verdict.unwrap_err().is_retryable()),
            _ => assert!(matches!(verdict.unwrap(), Verdict::Granted(_))),
        }
    }
    let _ = claimed
        .complete_in(&transaction, Outcome::new(201, "paid"))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let turn = engine.attend(&intent("held")).await.unwrap();
    assert!(
        matches!(turn, ClaimReply::Verdict(Verdict::Replay(_))),
        "{turn:?}"
    );
}

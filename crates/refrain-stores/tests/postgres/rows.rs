//! Two concurrent payments of one cart create one order, and two concurrent withdrawals both count.

use std::time::Duration;

use refrain::ErrorKind;
use refrain_stores::postgres::{Changes, Fetched, NaturalKey, Versioned};

use crate::support::{Schema, connect, url};

async fn table(schema: &Schema, columns: &str) -> String {
    let admin = connect(&url()).await;
    let name = format!("{}.\"of Mine\"", schema.name);
    let create = format!(
        "CREATE SCHEMA {}; CREATE TABLE {name} ({columns})",
        schema.name
    );
    admin.batch_execute(&create).await.unwrap();
    format!("{}.of Mine", schema.name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_inserts_of_one_natural_key_one_is_new_and_all_get_its_row() {
    let schema = Schema::new();
    let columns = "id bigserial PRIMARY KEY, customer bigint, cart text, total bigint, UNIQUE (customer, cart)";
    let orders = NaturalKey::new(&table(&schema, columns).await, &["customer", "cart"]);
    let tasks: Vec<_> = (0..24_i64)
        .map(|number| {
            let orders = orders.clone();
            tokio::spawn(async move {
                let mut client = connect(&url()).await;
                // Every third transaction is slow.
                let transaction = client.transaction().await.unwrap();
                let order = orders
                    .insert_or_fetch(
                        &transaction,
                        &[("total", &number), ("cart", &"c"), ("customer", &7_i64)],
                    )
                    .await
                    .unwrap();
                if number % 3 == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                transaction.commit().await.unwrap();
                let is_new = matches!(order, Fetched::New(_));
                let row = order.into_row();
                (
                    is_new,
                    number,
                    row.get::<_, i64>("id"),
                    row.get::<_, i64>("total"),
                )
            })
        })
        .collect();
    let mut made = None;
    let mut seen = Vec::new();
    for task in tasks {
        let (is_new, number, id, total) = task.await.unwrap();
        if is_new {
            assert_eq!(total, number);
            assert!(made.replace((id, total)).is_none(), "made twice");
        }
        seen.push((id, total));
    }
    let made = made.unwrap();
    assert!(seen.iter().all(|it| *it == made), "{seen:?}");
    let refused = orders
        .insert_or_fetch(&connect(&url()).await, &[("cart", &"c")])
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("needs a value for customer"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_row_that_was_rolled_back_was_never_there() {
    let schema = Schema::new();
    let orders = NaturalKey::new(&table(&schema, "cart text PRIMARY KEY").await, &["cart"]);
    let (mut one, two) = (connect(&url()).await, connect(&url()).await);
    let transaction = one.transaction().await.unwrap();
    let first = orders
        .insert_or_fetch(&transaction, &[("cart", &"c")])
        .await
        .unwrap();
    assert!(matches!(first, Fetched::New(_)));
    let waiting = tokio::spawn({
        let orders = orders.clone();
        async move {
            orders
                .insert_or_fetch(&two, &[("cart", &"c")])
                .await
                .unwrap()
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    transaction.rollback().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Fetched::New(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_of_one_row_all_count() {
    let schema = Schema::new();
    let columns =
        "id bigint PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL DEFAULT 0";
    let name = table(&schema, columns).await;
    let admin = connect(&url()).await;
    let fill = format!("INSERT INTO {}.\"of Mine\" VALUES (7, 1000)", schema.name);
    admin.batch_execute(&fill).await.unwrap();
    let accounts = Versioned::new(&name, "id").with_tries_max(1_000);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let accounts = accounts.clone();
            tokio::spawn(async move {
                let client = connect(&url()).await;
                for _ in 0..10 {
                    let take = |row: &tokio_postgres::Row| {
                        Some(Changes::default().set("balance", row.get::<_, i64>("balance") - 5))
                    };
                    accounts.update(&client, &7_i64, take).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let row = accounts.update(&admin, &7_i64, |_| None).await.unwrap();
    assert_eq!(
        (row.get::<_, i64>("balance"), row.get::<_, i64>("version")),
        (600, 80)
    );
    let nobody = accounts.update(&admin, &8_i64, |_| None).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_gives_up_after_repeated_conflicts() {
    let schema = Schema::new();
    let name = table(
        &schema,
        "id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0",
    )
    .await;
    let (client, rival) = (connect(&url()).await, connect(&url()).await);
    let fill = format!("INSERT INTO {}.\"of Mine\" VALUES (1)", schema.name);
    client.batch_execute(&fill).await.unwrap();
    let overtake = format!(
        "UPDATE {}.\"of Mine\" SET version = version + 1",
        schema.name
    );
    let mut tries = 0;
    let change = |_: &tokio_postgres::Row| {
        tries += 1;
        // Between the read and the write of every try.
        tokio::task::block_in_place(|| {
            let overtaking = rival.batch_execute(&overtake);
            tokio::runtime::Handle::current()
                .block_on(overtaking)
                .unwrap();
        });
        Some(Changes::default())
    };
    let rows = Versioned::new(&name, "id").with_tries_max(3);
    let refused = rows.update(&client, &1_i32, change).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(tries, 3);
}

//! Searches that take several responses, and the rows of the table.

use std::{collections::BTreeSet, process::Command, time::Duration};

use axum::{Router, body::Body, routing::post};
use http::Request;
use refrain::{Intent, Key, Operation, Outcome, Scope, Verdict, record::OriginFields};
use serde_json::Value;
use tower_service::Service as _;

use super::{Stage, open_searching, open_with};

/// A search that does not fit into the time of one response is continued, and nothing is missing or listed twice.
#[tokio::test]
async fn a_search_of_a_large_store_takes_several_responses() {
    let operation = Operation::new("POST /v1/payments").unwrap();
    // Each response gets one record further.
    let stage = open_searching(operation, None, Duration::ZERO).await;
    let origin = OriginFields::default();
    for number in 0..40 {
        let key = Key::new(number.to_string()).unwrap();
        let mut intent = Intent::new(Scope::none(), key.clone());
        intent.origin = Some(stage.engine.origin(&intent.scope, &key, &origin));
        let run = stage.engine.run(&intent, async |_| Outcome::new(201, "x"));
        assert!(matches!(run.await, Ok(Verdict::Granted(_))));
    }
    let doubted = stage.record("doubted", None).await;
    let found = stage.json(&["find", "--key", "7"]).await;
    let found = found["records"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let listed = stage.json(&["list"]).await;
    let listed = listed["records"].as_array().unwrap();
    let ids: BTreeSet<_> = listed.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!((listed.len(), ids.len()), (41, 41));
    let (_, stdout, _) = stage
        .run(&["list", "--state", "indeterminate", "--csv"])
        .await;
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(lines[1].contains(&doubted), "{stdout}");
    let url = format!("{}/api/records?operation=none", stage.url);
    let page: Value = serde_json::from_slice(&get(&url).await).unwrap();
    assert_eq!(page["records"].as_array().unwrap().len(), 0);
    assert!(page["next"].is_string(), "searched all at once: {page}");
    assert!(page["searched_percent"].as_u64().unwrap() < 100, "{page}");
}

async fn get(url: &str) -> Vec<u8> {
    let url = url.to_owned();
    let run = move || Command::new("curl").args(["-s", &url]).output();
    tokio::task::spawn_blocking(run)
        .await
        .unwrap()
        .unwrap()
        .stdout
}

/// Checks that the only row of the table ends with this request.
pub(super) async fn assert_table_ends(stage: &Stage, request: &str) {
    let (_, stdout, _) = stage.run(&["list"]).await;
    let rows: Vec<_> = stdout.lines().collect();
    assert!(
        rows[0].ends_with("TIME LEFT               REQUEST"),
        "{stdout}"
    );
    let column = rows[0].find("REQUEST").unwrap();
    assert_eq!(rows[1].get(column..), Some(request), "{stdout}");
}

/// An operation may stand for many paths: the row says which one the request was for.
#[tokio::test]
async fn a_row_names_the_target_and_an_operation_of_another_name() {
    let stage = open_with(Operation::new("POST *").unwrap(), None).await;
    let mut shop = Router::new()
        .route("/v1/payments", post(async || "charged"))
        .layer(stage.layer.clone());
    let request = Request::post("/v1/payments").header("idempotency-key", "order-7");
    let request = request.body(Body::empty()).unwrap();
    assert_eq!(shop.call(request).await.unwrap().status(), 200);
    assert_table_ends(&stage, "POST /v1/payments (operation POST *)").await;
}

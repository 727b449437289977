//! The metrics that alerts and dashboards depend on.

use std::time::Duration;

use crate::stage;

/// At three in the morning an alert has to say how long a payment has been in doubt, and which operation it is of.
#[tokio::test]
async fn unknown_outcomes_are_exported_with_age_and_operation() {
    let stage = stage::open().await;
    let lines = |text: &str| -> Vec<String> {
        let is_wanted = |line: &&str| line.starts_with("refrain_unknown_outcome_");
        text.lines().filter(is_wanted).map(String::from).collect()
    };
    let by_operation = |name: &str, count: u32| {
        format!(r#"refrain_unknown_outcome_records{{operation="{name}"}} {count}"#)
    };
    let mut text = stage.get("/metrics").await.text;
    let mut found = lines(&text);
    for line in [
        "refrain_unknown_outcome_oldest_seconds 0.0".into(),
        by_operation("POST /v1/payments", 0),
        by_operation("other", 0),
    ] {
        assert!(found.contains(&line), "no {line} in {found:?}");
    }
    stage.doubt_of("POST /v1/payments", "first").await;
    stage.clock.advance(Duration::from_secs(3_600));
    stage.doubt_of("POST /v1/payments", "second").await;
    stage.doubt_of("POST /v1/retired", "third").await;
    text = stage.get("/metrics").await.text;
    found = lines(&text);
    for line in [
        "refrain_unknown_outcome_oldest_seconds 3600.0".into(),
        by_operation("POST /v1/payments", 2),
        by_operation("other", 1),
    ] {
        assert!(found.contains(&line), "no {line} in {found:?}");
    }
    assert!(!text.contains("retired"), "a stored name is a label");
    let unknown = &stage.get("/api/overview").await.json["unknown"];
    assert_eq!(unknown["oldest_seconds"], 3600);
    assert_eq!(unknown["by_operation"]["POST /v1/payments"], 2);
}

#[tokio::test]
async fn limits_and_readiness_are_exported() {
    let stage = stage::open().await;
    let text = stage.get("/metrics").await.text;
    for line in [
        concat!(
            "refrain_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        ),
        "refrain_claims_refused 0",
        "refrain_buffered_body_bytes_max 268435456",
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in\n{text}");
    }
}

#[tokio::test]
async fn look_ups_are_not_counted_as_requests_that_passed() {
    let mut operation = refrain::Operation::new("POST /v1/payments").unwrap();
    operation.lookup = true;
    let mut setup = stage::Setup::new();
    setup.policy = refrain::Policy::new(vec![operation]).unwrap();
    let stage = setup.open().await;
    drop(stage.pay(Some("order-7"), "Bearer anna", "10").await);
    let found = stage.look_up("order-7", "Bearer anna").await;
    assert_eq!(found.status(), 200);
    let requests = &stage.get("/api/overview").await.json["requests"];
    assert_eq!(requests["looked-up"], 1, "{requests}");
    assert_eq!(requests["passed"], 0, "{requests}");
    let recent = stage.get("/api/requests").await.json;
    assert_eq!(recent["requests"][1]["outcome"], "looked-up", "{recent}");
}

#[tokio::test]
async fn the_overview_counts_by_operation() {
    let stage = stage::open().await;
    for key in ["order-7", "order-7", "order-8"] {
        drop(stage.pay(Some(key), "Bearer anna", "10").await);
    }
    let overview = stage.get("/api/overview").await.json;
    let operation = &overview["operations"][0];
    assert_eq!(operation["operation"], "POST /v1/payments");
    assert_eq!(operation["requests"]["executed"], 2);
    assert_eq!(operation["requests"]["replayed"], 1);
    assert!(operation["executed_p50_us"].as_u64() <= operation["executed_p99_us"].as_u64());
    assert_eq!(overview["operations"][1], serde_json::Value::Null);
}

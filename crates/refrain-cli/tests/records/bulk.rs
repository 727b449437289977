//! `refrain records resolve --all`: many unknown outcomes.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::Path,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{open, run};

#[tokio::test]
async fn many_unknown_outcomes_are_resolved_together_or_only_shown() {
    let stage = open(None).await;
    for number in 0..3 {
        stage.record(&format!("doubted-{number}"), None).await;
    }
    stage.record("done", Some("x")).await;
    let all = [
        "resolve",
        "--all",
        "--never-happened",
        "--reason",
        "not in the ledger",
    ];
    let dry = stage.json(&[&all[..], &["--dry-run"]].concat()).await;
    assert_eq!(dry["records"].as_array().unwrap().len(), 3);
    let (_, stdout, _) = stage.run(&[&all[..], &["--dry-run"]].concat()).await;
    assert!(
        stdout.contains("3 unknown outcomes would be resolved"),
        "{stdout}"
    );
    let (code, _, stderr) = stage.run(&all).await;
    assert_eq!(code, 2, "resolved without confirmation");
    assert!(stderr.contains("pass --yes"), "{stderr}");
    let all = [&all[..], &["--yes"]].concat();
    let old = stage
        .json(&[&all[..], &["--older-than", "1h"]].concat())
        .await;
    assert_eq!(old["records"].as_array().unwrap().len(), 0);
    let in_doubt = ["list", "--state", "indeterminate"];
    let left = stage.json(&in_doubt).await;
    assert_eq!(
        left["records"].as_array().unwrap().len(),
        3,
        "a dry run resolved"
    );

    let (code, stdout, stderr) = stage.run(&all).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.contains("3 of 3 unknown outcomes resolved"),
        "{stdout}"
    );
    let left = stage.json(&in_doubt).await;
    assert_eq!(left["records"].as_array().unwrap().len(), 0);
    assert_eq!(
        stage.json(&["list"]).await["records"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let reason = ["--never-happened", "--reason", "r"];
    for (which, words) in [
        (&[][..], "--all"),
        (&["--dry-run", "7"], "--all"),
        (&["--operation", "x", "7"], "--all"),
        (&["--yes", "7"], "--all"),
        (&["--all", "7"], "--all"),
    ] {
        let (code, _, stderr) = stage.run(&[&["resolve"], which, &reason].concat()).await;
        assert_eq!(code, 2, "{which:?}");
        assert!(stderr.contains(words), "{stderr}");
    }
}

/// A dry run says which records a person can settle now.
#[tokio::test]
async fn a_dry_run_counts_the_records_that_would_be_refused() {
    let stage = open(None).await;
    let ready = stage.record("ready", None).await;
    let early = stage.record_settling("early", None, Duration::from_secs(3_600));
    let early = early.await;
    let all = ["resolve", "--all", "--never-happened", "--reason", "r"];
    let dry = [&all[..], &["--dry-run"]].concat();
    let (code, stdout, stderr) = stage.run(&dry).await;
    assert_eq!(code, 0, "{stderr}");
    let words = "2 unknown outcomes: 1 would be resolved now, 1 not before ";
    assert!(stdout.contains(words), "{stdout}");
    let counted = stage.json(&dry).await;
    let counts = (&counted["accepted_now"], &counted["accepted_later"]);
    assert_eq!(counts, (&1.into(), &1.into()));
    let left = counted["accepted_later_seconds"].as_u64().unwrap();
    assert!((1..=3_700).contains(&left), "{counted}");
    // A found outcome is accepted at any time.
    let found = ["resolve", "--all", "--status", "201", "--reason", "r"];
    let (_, stdout, _) = stage.run(&[&found[..], &["--dry-run"]].concat()).await;
    assert!(stdout.contains("2 unknown outcomes would be"), "{stdout}");

    let (code, stdout, stderr) = stage.run(&[&all[..], &["--yes", "--json"]].concat()).await;
    assert_eq!(code, 1, "{stderr}");
    let done: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(done["resolved"], json!([ready]));
    assert_eq!(done["failed"], json!([early]));
    assert_eq!(done["remaining"], json!([]));
    assert!(done["error"].is_string(), "{done}");
}

const IDS: [&str; 4] = [
    "00000000000000000000000000000001",
    "00000000000000000000000000000002",
    "00000000000000000000000000000003",
    "00000000000000000000000000000004",
];

/// An admin address on which the first record is resolved, the second is gone, and the third fails with `status`.
async fn failing(status: StatusCode) -> String {
    let listed = async || {
        let records = IDS.map(|id| json!({ "id": id, "state": "indeterminate" }));
        Json(json!({ "records": records, "next": null }))
    };
    let resolved = async move |Path(id): Path<String>| -> Response {
        let status = match IDS.iter().position(|it| *it == id) {
            Some(0) => return Json(json!({ "resolved": "never-happened" })).into_response(),
            Some(1) => StatusCode::NOT_FOUND,
            _ => status,
        };
        let error = json!({ "error": "it failed", "fix": "repair it" });
        (status, Json(error)).into_response()
    };
    let app = Router::new()
        .route("/api/records", get(listed))
        .route("/api/records/{id}/resolve", post(resolved));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    tokio::spawn(async { axum::serve(listener, app).await });
    admin
}

/// An error that is not about one record stops the command, which says what it did.
#[tokio::test]
async fn an_error_of_the_server_stops_the_command() {
    for (status, expected) in [
        (StatusCode::SERVICE_UNAVAILABLE, 69),
        (StatusCode::UNAUTHORIZED, 2),
        (StatusCode::FORBIDDEN, 2),
    ] {
        let admin = failing(status).await;
        let all = ["resolve", "--all", "--never-happened", "--reason", "r"];
        let args = [&all[..], &["--yes", "--admin", &admin]].concat();
        let (code, stdout, stderr) = run(&args, &[]).await;
        assert_eq!(code, expected, "{status} {stderr}");
        let words = "1 of 4 unknown outcomes resolved.\nNot tried:\n";
        assert!(stdout.contains(words), "{stdout}");
        assert!(stdout.ends_with(&format!("{}\n{}\n", IDS[2], IDS[3])));
        let (code, stdout, _) = run(&[&args[..], &["--json"]].concat(), &[]).await;
        let done: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(code, expected);
        assert_eq!(done["resolved"], json!([IDS[0]]));
        assert_eq!(done["failed"], json!([IDS[1]]));
        assert_eq!(done["remaining"], json!([IDS[2], IDS[3]]));
        assert!(done["error"].is_string(), "{done}");
    }
}

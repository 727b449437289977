//! Address and token: an operator who lacks one must learn which, and how to set it.

use axum::Router;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{open, run};

#[tokio::test]
async fn the_token_comes_from_the_flag_the_environment_or_a_file() {
    let stage = open(Some("sesame")).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let file = file.path().to_str().unwrap();
    let admin = ("REFRAIN_ADMIN", stage.url.as_str());
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&[&str], Variables<'_>, i32); 6] = [
        (&[], &[], 2),
        (&["--token", "open"], &[], 2),
        (&["--token", "sesame"], &[], 0),
        (&[], &[("REFRAIN_ADMIN_TOKEN", "sesame")], 0),
        (&[], &[("REFRAIN_ADMIN_TOKEN_FILE", file)], 0),
        (&[], &[("REFRAIN_ADMIN_TOKEN_FILE", "/nowhere")], 2),
    ];
    for (args, variables, expected) in cases {
        let variables = [&[admin][..], variables].concat();
        let (code, _, stderr) = run(&[&["list"], args].concat(), &variables).await;
        assert_eq!(code, expected, "{args:?} {variables:?} {stderr}");
        assert!(!stderr.contains("sesame"), "{stderr}");
        assert_eq!(
            stderr.contains("REFRAIN_ADMIN_TOKEN"),
            expected != 0,
            "{stderr}"
        );
    }
}

/// Without a token, and with a wrong one, the message names what to set: it is not the same mistake.
#[tokio::test]
async fn a_missing_and_a_wrong_token_have_their_own_messages() {
    let stage = open(Some("sesame")).await;
    let admin = [("REFRAIN_ADMIN", stage.url.as_str())];
    for (args, words) in [
        (&["list"][..], "requires a token, and none is set"),
        (&["list", "--token", "open"], "rejects the token"),
        (
            &["find", "--key", "order-7"],
            "requires a token, and none is set",
        ),
    ] {
        let (code, stdout, stderr) = run(args, &admin).await;
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        for part in [
            words,
            "set REFRAIN_ADMIN_TOKEN",
            "--token",
            stage.url.as_str(),
        ] {
            assert!(stderr.contains(part), "no {part} in {stderr}");
        }
    }
}

/// `refrain records` without a subcommand lists records.
#[tokio::test]
async fn without_a_command_records_are_listed() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = free.local_addr().unwrap().to_string();
    let app: Router = Router::new().route(
        "/api/records",
        axum::routing::get(async || axum::Json(json!({ "records": [] }))),
    );
    tokio::spawn(async { axum::serve(free, app).await });
    let (code, _, stderr) = run(&["--json"], &[("REFRAIN_ADMIN", &*admin)]).await;
    assert_eq!((code, &*stderr), (0, ""));
}

#[tokio::test]
async fn an_address_that_does_not_answer_is_named_with_the_fix() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stranger = format!("http://{}", other.local_addr().unwrap());
    let app: Router = Router::new().route("/api/records", axum::routing::get(async || "hello"));
    tokio::spawn(async { axum::serve(other, app).await });
    let cases = [
        (nobody.as_str(), 69, "cannot reach the admin address"),
        (stranger.as_str(), 69, "not a Refrain admin address"),
        // In the format of the proxy's own setting.
        ("127.0.0.1:1", 69, "cannot reach the admin address"),
        ("ftp://127.0.0.1:1", 2, "is not a valid address"),
        ("http://127.0.0.1:1/admin", 2, "is not a valid address"),
    ];
    for (admin, expected, words) in cases {
        let (code, stdout, stderr) = run(&["list", "--json", "--admin", admin], &[]).await;
        assert_eq!(code, expected, "{admin} {stderr}");
        assert!(stderr.contains(words) && stderr.contains(admin), "{stderr}");
        assert!(stderr.contains("--admin"), "no fix in {stderr}");
        let json: Value = serde_json::from_str(&stdout).unwrap();
        assert!(json["error"].as_str().unwrap().contains(words));
    }
}

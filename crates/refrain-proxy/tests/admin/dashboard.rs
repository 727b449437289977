//! The dashboard without a browser: who gets in, which forms count, what is refused, and what pages say.
//!
//! A page of another site, a stolen or guessed token, a reader who wants to decide: none of them may change a record.

use std::time::Duration;

use http::Method;

use crate::stage::{self, AdminResponse, READER_TOKEN, Stage};

mod records;

const TOKEN: &str = "open sesame";
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml");

/// The cookies that a browser would send back.
fn cookies(answer: &AdminResponse) -> String {
    let all = answer.headers.get_all("set-cookie").iter();
    let pairs = all.map(|it| it.to_str().unwrap().split(';').next().unwrap());
    pairs.collect::<Vec<_>>().join("; ")
}

/// The token of the forms of a page.
fn form_token(page: &str) -> &str {
    let (_, rest) = page.split_once("name=\"form_token\" value=\"").unwrap();
    rest.split_once('"').unwrap().0
}

/// The fence that the form of a record was made for.
fn fence(page: &str) -> &str {
    let (_, rest) = page.split_once("name=\"fence\" value=\"").unwrap();
    rest.split_once('"').unwrap().0
}

async fn get(stage: &Stage, path: &str, cookie: &str) -> AdminResponse {
    let headers = [BROWSER, ("cookie", cookie)];
    stage.ask_with(Method::GET, path, &headers, "").await
}

async fn post(stage: &Stage, path: &str, cookie: &str, body: &str) -> AdminResponse {
    let headers = [BROWSER, FORM, ("cookie", cookie)];
    stage.ask_with(Method::POST, path, &headers, body).await
}

/// Logs in; returns the cookie of the session.
async fn log_in(stage: &Stage, token: &str) -> String {
    let page = get(stage, "/login?next=/unknown", "").await;
    let body = format!(
        "token={token}&next=/unknown&form_token={}",
        form_token(&page.text)
    );
    let answer = post(stage, "/login", &cookies(&page), &body).await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    assert_eq!(answer.headers["location"], "/unknown");
    let set = answer.headers["set-cookie"].to_str().unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(part), "{set}");
    }
    cookies(&answer)
}

/// The value of `refrain_admin_refused_total` for a reason.
async fn refused(stage: &Stage, reason: &str) -> u64 {
    let headers = [("authorization", "Bearer open sesame")];
    let metrics = stage.ask_with(Method::GET, "/metrics", &headers, "").await;
    let name = format!("refrain_admin_refused_total{{reason=\"{reason}\"}} ");
    let mut lines = metrics.text.lines();
    lines
        .find_map(|line| line.strip_prefix(&name)?.parse().ok())
        .unwrap()
}

/// Sends a form, and opens the page that shows its result.
async fn post_and_follow(stage: &Stage, path: &str, cookie: &str, body: &str) -> AdminResponse {
    let answer = post(stage, path, cookie, body).await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    let page = answer.headers["location"].to_str().unwrap();
    get(stage, page, cookie).await
}

/// The id of a form that is sent once.
fn once(page: &str) -> &str {
    let (_, rest) = page.split_once("name=\"once\" value=\"").unwrap();
    rest.split_once('"').unwrap().0
}

fn settlement(token: &str, step: &str, rest: &str) -> String {
    format!("form_token={token}&step={step}&{rest}")
}

#[tokio::test]
async fn without_a_session_nothing_is_shown() {
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    let record = stage.doubt("order-7").await.to_string();
    let path = format!("/records/{record}");
    let pages = [
        "/",
        "/unknown",
        "/records",
        &path,
        "/operations",
        "/workers",
        "/store",
        "/configuration",
        "/live",
        "/problems/in-flight",
    ];
    let forged = format!(
        "refrain-session-{}={}",
        stage.address.port(),
        "0".repeat(64)
    );
    for page in pages {
        for cookie in ["", forged.as_str()] {
            let answer = get(&stage, page, cookie).await;
            assert_eq!(answer.status, 303, "{page} {cookie}");
            let to = answer.headers["location"].to_str().unwrap();
            assert!(to.starts_with("/login?next="), "{to}");
            assert!(
                !answer.text.contains(&record) && answer.text.is_empty(),
                "{page}"
            );
        }
        let answer = stage.get(page).await;
        assert_eq!(answer.status, 401, "{page} for a program");
        assert!(answer.json["fix"].is_string(), "{}", answer.text);
    }
    let count = pages.len() as u64;
    assert_eq!(refused(&stage, "session").await, count);
    assert_eq!(refused(&stage, "token-missing").await, 2 * count);
}

#[tokio::test]
async fn a_token_opens_a_session_that_ends_with_log_out() {
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    let page = get(&stage, "/login", "").await;
    let body = format!("token=wrong&form_token={}", form_token(&page.text));
    let answer = post(&stage, "/login", &cookies(&page), &body).await;
    assert_eq!(answer.status, 401);
    assert!(
        answer.headers.get("set-cookie").is_none(),
        "a session for a wrong token"
    );
    assert_eq!(refused(&stage, "token-wrong").await, 1);
    let session = log_in(&stage, TOKEN).await;
    let page = get(&stage, "/", &session).await;
    assert_eq!(page.status, 200, "{}", page.text);
    let body = format!("form_token={}", form_token(&page.text));
    let answer = post(&stage, "/logout", &session, &body).await;
    assert_eq!(
        (answer.status, &answer.headers["location"]),
        (303, &"/login".parse().unwrap())
    );
    assert_eq!(
        get(&stage, "/", &session).await.status,
        303,
        "the session has ended"
    );
}

#[tokio::test]
async fn a_session_counts_beside_the_credentials_of_a_proxy() {
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    let session = log_in(&stage, TOKEN).await;
    let cases = [
        ("Basic YW5uYTpzZWNyZXQ=", session.as_str(), 200),
        ("Bearer of-another-service", session.as_str(), 200),
        ("Basic YW5uYTpzZWNyZXQ=", "", 303),
        ("Bearer open sesame", "", 200),
        ("Bearer of-another-service", "", 401),
    ];
    for (credentials, cookie, expected) in cases {
        let headers = [BROWSER, ("cookie", cookie), ("authorization", credentials)];
        let answer = stage.ask_with(Method::GET, "/unknown", &headers, "").await;
        assert_eq!(answer.status, expected, "{credentials} {cookie}");
    }
}

#[tokio::test]
async fn a_session_that_ends_takes_its_live_stream_with_it() {
    use http_body_util::BodyExt as _;
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    let session = log_in(&stage, TOKEN).await;
    let headers = [("cookie", session.as_str())];
    let live = stage.send(Method::GET, "/live", &headers, "").await;
    assert_eq!(live.status(), 200);
    let page = get(&stage, "/", &session).await;
    let body = format!("form_token={}", form_token(&page.text));
    post(&stage, "/logout", &session, &body).await;
    let ended = tokio::time::timeout(Duration::from_secs(60), live.into_body().collect()).await;
    assert!(ended.is_ok(), "the stream goes on after the log-out");
}

#[tokio::test]
async fn logging_in_again_ends_the_session_that_it_replaces() {
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    let first = log_in(&stage, READER_TOKEN).await;
    let page = get(&stage, "/", &first).await;
    let body = format!("token={TOKEN}&form_token={}", form_token(&page.text));
    let answer = post(&stage, "/login", &first, &body).await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    assert_eq!(
        get(&stage, "/unknown", &first).await.status,
        303,
        "it goes on"
    );
    assert_eq!(get(&stage, "/unknown", &cookies(&answer)).await.status, 200);
}

#[tokio::test]
async fn the_live_stream_begins_again_after_a_restart() {
    use http_body_util::BodyExt as _;
    let stage = stage::open().await;
    stage.pay(Some("order-7"), "Bearer ann", "1").await;
    // The position of an earlier process, with a higher and with a lower number.
    for seen in ["7-9999", "0-0", "", "1", "x"] {
        let headers = [("last-event-id", seen)];
        let live = stage.send(Method::GET, "/live", &headers, "").await;
        let mut body = live.into_body();
        let frame = tokio::time::timeout(Duration::from_secs(60), body.frame()).await;
        let frame = frame.expect("a row").unwrap().unwrap().into_data().unwrap();
        let text = String::from_utf8(frame.to_vec()).unwrap();
        assert!(text.contains("/v1/payments"), "{seen}: {text}");
    }
}

#[tokio::test]
async fn log_in_leads_only_to_pages_of_this_listener() {
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    for next in [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
    ] {
        let page = get(&stage, "/login", "").await;
        let body = format!(
            "token={TOKEN}&next={next}&form_token={}",
            form_token(&page.text)
        );
        let answer = post(&stage, "/login", &cookies(&page), &body).await;
        assert_eq!(
            (answer.status, &answer.headers["location"]),
            (303, &"/".parse().unwrap()),
            "{next}"
        );
    }
}

#[tokio::test]
async fn a_reader_sees_everything_and_changes_nothing() {
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    let record = stage.doubt("order-7").await.to_string();
    let session = log_in(&stage, READER_TOKEN).await;
    let page = get(&stage, &format!("/records/{record}"), &session).await;
    assert!(page.text.contains(&record) && page.text.contains("logged in as a reader"));
    assert!(
        !page.text.contains("name=\"reason\""),
        "a form that would be refused"
    );
    let token = form_token(&page.text);
    let body = settlement(token, "settle", "as=completed&status=200&reason=because");
    let answer = post(
        &stage,
        &format!("/records/{record}/resolve"),
        &session,
        &body,
    )
    .await;
    assert_eq!(answer.status, 403, "{}", answer.text);
    let headers = [
        ("authorization", "Bearer only look"),
        ("content-type", "application/json"),
    ];
    for (method, path) in [
        (Method::DELETE, format!("/api/records/{record}")),
        (Method::POST, format!("/api/records/{record}/resolve")),
        (Method::POST, "/api/workers/w/redrive".to_owned()),
    ] {
        let answer = stage
            .ask_with(method, &path, &headers, r#"{"reason":"x"}"#)
            .await;
        assert_eq!(answer.status, 403, "{path} {}", answer.text);
        assert!(
            answer.json["fix"]
                .as_str()
                .unwrap()
                .contains("REFRAIN_ADMIN_TOKEN")
        );
    }
    let found = stage
        .ask_with(Method::POST, "/api/find", &headers, r#"{"key":"order-7"}"#)
        .await;
    assert_eq!(found.status, 200, "looking up is reading: {}", found.text);
    assert_eq!(refused(&stage, "role").await, 4);
}

#[tokio::test]
async fn a_form_counts_only_with_the_token_of_its_page() {
    for token in [None, Some(TOKEN)] {
        let stage = stage::open_at("127.0.0.1:0", token).await;
        let record = stage.doubt("order-7").await.to_string();
        let (path, page) = (
            format!("/records/{record}/resolve"),
            format!("/records/{record}"),
        );
        let (own, other) = match token {
            Some(token) => (log_in(&stage, token).await, log_in(&stage, token).await),
            None => (
                cookies(&get(&stage, &page, "").await),
                cookies(&get(&stage, &page, "").await),
            ),
        };
        let shown = get(&stage, &page, &own).await;
        let foreign = get(&stage, &page, &other).await;
        let said = &format!(
            "as=completed&status=200&reason=because&fence={}",
            fence(&shown.text)
        );
        for forged in ["", "0", form_token(&foreign.text)] {
            let answer = post(&stage, &path, &own, &settlement(forged, "settle", said)).await;
            assert_eq!(answer.status, 403, "{forged}");
            assert!(
                answer.text.contains("nothing was changed"),
                "{}",
                answer.text
            );
        }
        let body = settlement(form_token(&shown.text), "settle", said);
        let cases: [(&[(&str, &str)], u16); 4] = [
            (
                &[
                    BROWSER,
                    FORM,
                    ("cookie", &own),
                    ("origin", "https://evil.example"),
                ],
                403,
            ),
            (
                &[
                    BROWSER,
                    FORM,
                    ("cookie", &own),
                    ("sec-fetch-site", "cross-site"),
                ],
                403,
            ),
            (
                &[BROWSER, FORM, ("cookie", &own), ("host", "evil.example")],
                403,
            ),
            (
                &[BROWSER, ("content-type", "text/plain"), ("cookie", &own)],
                415,
            ),
        ];
        for (headers, status) in cases {
            let answer = stage.ask_with(Method::POST, &path, headers, &body).await;
            assert_eq!(answer.status, status, "{headers:?}");
        }
        let reading = refrain::Store::read(stage.engine.store(), record.parse().unwrap()).await;
        let state = reading.unwrap().unwrap().record.state.name();
        assert_eq!(
            state,
            refrain::store::StateName::Indeterminate,
            "something was changed"
        );
        let answer = post_and_follow(&stage, &path, &own, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(
            answer.text.contains("is settled as: it succeeded"),
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn every_page_forbids_what_it_does_not_need() {
    let stage = stage::open().await;
    for path in [
        "/",
        "/login",
        "/dashboard.css",
        "/dashboard.js",
        "/records/7",
        "/nothing/here",
    ] {
        let answer = get(&stage, path, "").await;
        if path == "/nothing/here" {
            assert_eq!(answer.status, 404);
            assert!(answer.text.contains("No such route: /nothing/here"));
        }
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'self'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert_eq!(answer.headers["x-frame-options"], "DENY");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["referrer-policy"], "same-origin");
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_takes_too_long_says_so_as_a_page() {
    let mut setup = stage::Setup::new();
    setup.workers = Some(std::sync::Arc::new(crate::workers::Silent));
    let stage = setup.open().await;
    let page = get(&stage, "/workers", "").await;
    assert_eq!(page.status, 503);
    assert!(page.text.starts_with("<!DOCTYPE html>"), "{}", page.text);
    assert!(
        page.text.contains("no response within 30 s"),
        "{}",
        page.text
    );
    assert!(page.headers.contains_key("content-security-policy"));
    let program = stage.get("/api/workers").await;
    assert!(program.json["fix"].is_string(), "{}", program.text);
}

#[tokio::test(start_paused = true)]
async fn guessing_a_token_becomes_slow_and_locks_nobody_out() {
    let stage = stage::open_at("127.0.0.1:0", Some(TOKEN)).await;
    let guess = [("authorization", "Bearer wrong")];
    let start = tokio::time::Instant::now();
    for _ in 0..10 {
        stage.ask_with(Method::GET, "/metrics", &guess, "").await;
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "the first ones are quick"
    );
    let start = tokio::time::Instant::now();
    for _ in 0..3 {
        stage.ask_with(Method::GET, "/metrics", &guess, "").await;
    }
    assert!(
        start.elapsed() >= Duration::from_secs(3),
        "each further one waits"
    );
    let start = tokio::time::Instant::now();
    assert_eq!(refused(&stage, "token-wrong").await, 13);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "the right token does not wait"
    );
}

//! The pages of records: an operator who finds the wrong record, settles it twice, or settles another attempt than the
//! one that was looked into, does more harm than the lost response.

use std::time::Duration;

use http::Method;

use super::{cookies, fence, form_token, get, once, post, post_and_follow, settlement};
use crate::stage::{self, AdminResponse};

#[tokio::test]
async fn a_wrong_entry_is_explained_and_the_others_stay() {
    let stage = stage::open().await;
    let record = stage.doubt("order-7").await.to_string();
    let (path, page) = (
        format!("/records/{record}/resolve"),
        format!("/records/{record}"),
    );
    let shown = get(&stage, &page, "").await;
    let (cookie, token) = (cookies(&shown), form_token(&shown.text).to_owned());
    let fence = fence(&shown.text);
    let cases = [
        ("reason=seen%20it&body=kept", 400, "Nothing is chosen"),
        (
            "as=completed&reason=seen%20it&body=kept",
            400,
            "Status: missing",
        ),
        (
            "as=completed&status=99&reason=seen%20it&body=kept",
            400,
            "not between 200 and 599",
        ),
        (
            "as=completed&status=abc&reason=seen%20it&body=kept",
            400,
            "is not a number",
        ),
        (
            "as=completed&status=200&reason=%20&body=kept",
            400,
            "reason: it is empty",
        ),
        (
            "as=never-happened&reason=seen%20it&body=kept",
            400,
            "takes no status",
        ),
        (
            "as=never-happened&reason=seen%20it&content_type=a/b",
            409,
            "retry in 90 s",
        ),
    ];
    for (entries, status, said) in cases {
        for step in ["check", "settle"] {
            let entries = &format!("{entries}&fence={fence}");
            let answer = post(&stage, &path, &cookie, &settlement(&token, step, entries)).await;
            let text = answer.text.to_lowercase();
            assert_eq!(answer.status, status, "{entries}");
            assert!(
                text.contains(&said.to_lowercase()),
                "no {said} for {entries}"
            );
            assert!(text.contains("nothing was changed"), "{entries}");
            if entries.contains("body=kept") {
                assert!(text.contains("kept</textarea>"), "{entries} lost the body");
            }
        }
    }
    stage.clock.advance(Duration::from_secs(90));
    let entries =
        &format!("as=never-happened&reason=not%20in%20the%20ledger&by=anna&fence={fence}");
    let asked = post(
        &stage,
        &path,
        &cookie,
        &settlement(&token, "check", entries),
    )
    .await;
    assert!(
        asked.text.contains("executes the operation"),
        "{}",
        asked.text
    );
    let edit = post(&stage, &path, &cookie, &settlement(&token, "edit", entries)).await;
    assert!(edit.text.contains("value=\"anna\""), "{}", edit.text);
    let body = settlement(
        &token,
        "settle",
        &format!("{entries}&once={}", once(&asked.text)),
    );
    let done = post_and_follow(&stage, &path, &cookie, &body).await;
    let said = "is settled as: it never happened";
    assert!(done.text.contains(said), "{}", done.text);
    let again = post_and_follow(&stage, &path, &cookie, &body).await;
    assert_eq!(
        (again.status, again.text),
        (200, done.text),
        "a reload says the same"
    );
    let other = settlement(&token, "settle", entries);
    let again = post(&stage, &path, &cookie, &other).await;
    assert_eq!(again.status, 404, "the record is gone");
}

#[tokio::test]
async fn a_double_click_settles_once_and_says_so_twice() {
    let stage = stage::open().await;
    let record = stage.doubt("order-7").await;
    let (path, page) = (
        format!("/records/{record}/resolve"),
        format!("/records/{record}"),
    );
    let shown = get(&stage, &page, "").await;
    let (cookie, token) = (cookies(&shown), form_token(&shown.text));
    let entries = format!(
        "as=completed&status=201&body=found&reason=seen&fence={}",
        fence(&shown.text)
    );
    let asked = post(
        &stage,
        &path,
        &cookie,
        &settlement(token, "check", &entries),
    )
    .await;
    let once = once(&asked.text);
    let body = settlement(token, "settle", &format!("{entries}&once={once}"));
    let send = || post_and_follow(&stage, &path, &cookie, &body);
    let (one, other, third) = tokio::join!(send(), send(), send());
    for answer in [one, other, third] {
        assert_eq!(answer.status, 200);
        let said = "is settled as: it succeeded";
        assert!(answer.text.contains(said), "{}", answer.text);
    }
    let tally = stage.engine.tally();
    assert_eq!(tally.get(refrain::engine::Count::Resolved), 1);
    // Another person, with another page, does not hear that it failed.
    let body = settlement(token, "settle", &entries.replace("found", "other"));
    let answer = post(&stage, &path, &cookie, &body).await;
    assert_eq!(answer.status, 409);
    for part in ["Already settled", "Stored answer", "found"] {
        assert!(answer.text.contains(part), "no {part} in {}", answer.text);
    }
}

#[tokio::test]
async fn what_was_found_out_about_one_attempt_does_not_settle_a_later_one() {
    let stage = stage::open().await;
    let record = stage.doubt("order-7").await;
    let (path, page) = (
        format!("/records/{record}/resolve"),
        format!("/records/{record}"),
    );
    let shown = get(&stage, &page, "").await;
    let (cookie, token) = (cookies(&shown), form_token(&shown.text).to_owned());
    let found = |fence: &str| {
        format!("as=completed&status=200&body=of-the-first&reason=seen&fence={fence}")
    };
    let first = found(fence(&shown.text));
    // Meanwhile another person settles the record, the client retries, and the retry gets no response either.
    stage.clock.advance(Duration::from_secs(90));
    let never = refrain::engine::Resolution::NeverHappened;
    let _ = stage.engine.resolve(record, never, "not there").await;
    stage.doubt("order-7").await;
    for step in ["check", "settle"] {
        let answer = post(&stage, &path, &cookie, &settlement(&token, step, &first)).await;
        assert_eq!(answer.status, 409, "{}", answer.text);
        assert!(answer.text.contains("has changed since you looked"));
        assert!(answer.text.contains("of-the-first"), "the entries are lost");
    }
    let said = r#"{"as":"completed","status":200,"reason":"seen","fence":"FENCE"}"#;
    let api = format!("/api/records/{record}/resolve");
    let old = said.replace("FENCE", fence(&shown.text));
    let answer = stage.ask(Method::POST, &api, &old).await;
    assert_eq!(answer.status, 409, "{}", answer.text);
    let answer = stage
        .ask(Method::POST, &api, &said.replace("FENCE", "7"))
        .await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    let shown = get(&stage, &page, "").await;
    let new = said.replace("FENCE", fence(&shown.text));
    let answer = stage.ask(Method::POST, &api, &new).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test]
async fn the_record_of_a_worker_is_settled_with_what_the_form_suggests() {
    let mut setup = stage::Setup::new();
    setup.policy = refrain::Policy::new(Vec::new()).unwrap();
    let stage = setup.open().await;
    stage.doubt_of("billing", "order-7").await;
    let page = format!("/records/{}", stage.id("order-7"));
    let shown = get(&stage, &page, "").await;
    let suggested = "name=\"content_type\" value=\"application/json\"";
    assert!(shown.text.contains(suggested), "{}", shown.text);
    let entries = format!(
        "as=completed&status=200&content_type=application/json&reason=seen&fence={}",
        fence(&shown.text)
    );
    let body = settlement(form_token(&shown.text), "settle", &entries);
    let path = format!("{page}/resolve");
    let settled = post_and_follow(&stage, &path, &cookies(&shown), &body).await;
    let said = "is settled as: it succeeded";
    assert!(settled.text.contains(said), "{}", settled.text);
}

#[tokio::test]
async fn the_page_of_a_record_lists_who_waited_for_it() {
    let stage = stage::open().await;
    let pay = || stage.pay(Some("order-7"), "Bearer ann", "held");
    let release = async {
        let waiting = || stage.engine.tally().waiting_now() == 1;
        refrain_testkit::wait::until_true("the duplicate waits", waiting).await;
        let page = stage.get("/api/records?state=in-flight").await.json;
        let record = page["records"][0]["id"].as_str().unwrap().to_owned();
        let running = stage.get(&format!("/records/{record}")).await;
        assert!(running.text.contains("lease until"), "{}", running.text);
        stage.gate.add_permits(1);
        record
    };
    let (.., record) = tokio::join!(pay(), pay(), release);
    let page = stage.get(&format!("/records/{record}")).await;
    let (_, waiters) = page.text.split_once("id=\"waiters\"").unwrap();
    let (waiters, _) = waiters.split_once("</section>").unwrap();
    assert_eq!(
        waiters.matches("data-name=\"Result\"").count(),
        1,
        "{waiters}"
    );
    assert!(waiters.contains("waited"), "{waiters}");
    assert!(
        page.text.contains("Each attempt has a lease of"),
        "{}",
        page.text
    );
}

#[tokio::test]
async fn the_timeline_says_how_many_attempts_it_leaves_out() {
    const ATTEMPTS: usize = 60;
    let stage = stage::open().await;
    let mut intent = refrain::Intent::new(
        refrain::Scope::none(),
        refrain::Key::new("order-7").unwrap(),
    );
    intent.terms.guarantee = refrain::Guarantee::AtLeastOnce;
    intent.terms.attempts_max = 100;
    for _ in 0..ATTEMPTS {
        let mut running = stage.claim(&intent, "order-7").await;
        let _ = running.doubt(refrain::record::Reason::Timeout).await;
        stage.clock.advance(intent.terms.lease);
    }
    let page = stage
        .get(&format!("/records/{}", stage.id("order-7")))
        .await;
    let shown = page.text.matches(" started</span>").count();
    assert!((2..ATTEMPTS).contains(&shown), "{shown} of {ATTEMPTS}");
    let said = format!("{} attempts left out", ATTEMPTS - shown);
    assert!(page.text.contains(&said), "no {said} in {}", page.text);
}

#[tokio::test]
async fn the_records_of_a_page_are_sorted_by_time() {
    let stage = stage::open().await;
    let mut ids = Vec::new();
    for number in 0..10 {
        let key = format!("order-{number}");
        stage.doubt_of("POST /v1/payments", &key).await;
        ids.push(stage.id(&key).to_string());
        stage.clock.advance(Duration::from_secs(60));
    }
    let shown = |page: &AdminResponse| {
        let links = page.text.split("href=\"/records/").skip(1);
        let ids = links.map(|it| it[..32].to_owned());
        let mut ids: Vec<_> = ids.collect();
        ids.dedup();
        ids
    };
    assert_eq!(
        shown(&get(&stage, "/unknown", "").await),
        ids,
        "oldest first"
    );
    ids.reverse();
    assert_eq!(
        shown(&get(&stage, "/records", "").await),
        ids,
        "latest first"
    );
}

#[tokio::test]
async fn records_are_found_by_what_an_operator_knows() {
    let stage = stage::open().await;
    let doubted = stage.doubt("order-7").await.to_string();
    let done = stage.complete("order-8", b"charged").await.to_string();
    stage.clock.advance(Duration::from_secs(60));
    let cases = [
        ("/records?key=order-7", Some(&doubted), Some(&done)),
        ("/records?key=order-9", None, Some(&done)),
        ("/records?state=completed", Some(&done), Some(&doubted)),
        (
            "/records?state=&operation=&older_than=1h",
            None,
            Some(&done),
        ),
        ("/unknown", Some(&doubted), Some(&done)),
        ("/records?from=2020-01-01T00:00&to=", Some(&done), None),
        ("/records?from=2020-01-01T00:00:30", Some(&done), None),
        ("/records?from=2999-01-01T00:00", None, Some(&done)),
        ("/records?from=&to=2020-01-01T00:00", None, Some(&done)),
        ("/records?to=2999-01-01T00:00", Some(&done), None),
    ];
    for (path, shown, hidden) in cases {
        let page = get(&stage, path, "").await;
        assert_eq!(page.status, 200, "{path}");
        let has = |id: &String| page.text.contains(&format!("/records/{id}"));
        assert!(shown.is_none_or(has), "{path} does not show {shown:?}");
        assert!(!hidden.is_some_and(has), "{path} shows {hidden:?}");
    }
    let found = get(&stage, &format!("/records?id={done}"), "").await;
    assert_eq!(found.headers["location"], format!("/records/{done}"));
    for path in [
        "/records?id=7",
        "/records?older_than=soon",
        "/records?from=soon",
        "/records?to=2026-02-30T00:00",
        "/records?after=x",
        "/records?key=%20%01",
    ] {
        let page = get(&stage, path, "").await;
        assert_eq!(page.status, 200, "{path}");
        assert!(page.text.contains("notice fail"), "{path} is not explained");
    }
    let page = get(&stage, &format!("/records/{done}"), "").await;
    for part in [
        "charged",
        "text/plain",
        "acknowledged, and not handled again",
        "Completed: the outcome is stored",
    ] {
        assert!(page.text.contains(part), "no {part}");
    }
}

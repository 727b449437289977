//! A missed bug or a false alarm makes the tester useless: each bug gets its own verdict, and correct services none.
//!
//! The sample service is correct by default; a switch enables one bug. All failures and warnings are compared, so
//! that a false alarm fails the test like a missed bug.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod sample;

use std::{sync::Arc, time::Duration};

use refrain_verify::verify::{CASES, CaseVerdict, Counting, Operation, Plan, Report, run};
use sample::{Hole, Sample};
use tokio::{sync::Semaphore, task::JoinSet};

fn plan(url: &str, is_counted: bool) -> Plan {
    let mut plan = Plan::new(url.parse().unwrap(), 7);
    if is_counted {
        let url = format!("{url}/count").into();
        plan.counting = Counting::Url { url, pointer: None };
    }
    plan.patience = Duration::from_secs(10);
    plan.late = Duration::from_millis(600);
    plan.settle = Duration::from_millis(150);
    let mut operation = Operation::new("POST /payments?currency=1").unwrap();
    operation.body = br#"{"amount":20,"to":"bob"}"#.to_vec();
    operation.headers = vec![("Authorization".into(), "Bearer alice-1".into())];
    operation.set_content_type(None);
    let bearer = |name: &str| Some(("Authorization".to_owned(), format!("Bearer {name}")));
    operation.other_credential = bearer("mallory-1");
    operation.rotated_credential = bearer("alice-2");
    operation.bad_body = Some(br#"{"amount":"bad"}"#.to_vec());
    operation.failing_body = Some(br#"{"amount":"fails"}"#.to_vec());
    operation.retention = Some(Duration::from_millis(700));
    plan.operations.push(operation);
    plan
}

fn of(report: &Report, verdict: CaseVerdict) -> Vec<&str> {
    let cases = report.operations[0].cases.iter();
    let cases = cases.filter(|case| case.verdict == verdict);
    cases.map(|case| &*case.id).collect()
}

/// Runs all cases; expects exactly `failed` to fail and `warned` to warn.
async fn check(hole: Hole, is_counted: bool, failed: &[&str], warned: &[&str]) -> Option<String> {
    let sample = Sample::start(hole).await;
    let mut plan = plan(&sample.url, is_counted);
    if hole == Hole::ShortMemory {
        // Longer than the service remembers keys.
        plan.late = Duration::from_millis(5_500);
        plan.operations[0].retention = Some(Duration::from_secs(7));
    }
    let report = run(&plan, |_, _| {}).await.unwrap();
    let told: Vec<_> = report.operations[0]
        .cases
        .iter()
        .filter(|case| matches!(case.verdict, CaseVerdict::Fail | CaseVerdict::Warn))
        .map(|case| format!("{} {}: {}", case.verdict, case.id, case.findings.join("; ")))
        .collect();
    let mut found = (
        of(&report, CaseVerdict::Fail),
        of(&report, CaseVerdict::Warn),
    );
    // A client that disconnects and retries at once may race with itself, depending on timing.
    if matches!(hole, Hole::NoClaim | Hole::ReadThenLock) && !failed.contains(&"client-hangs-up") {
        found.0.retain(|case| *case != "client-hangs-up");
    }
    let wanted = (failed.to_vec(), warned.to_vec());
    let wrong = || format!("{hole:?}, counted {is_counted}: wanted {wanted:?}, got {told:#?}");
    (found != wanted).then(wrong)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn correct_services_pass_in_every_style() {
    let row = |hole| -> Row { (hole, &[], &[]) };
    let mut rows = vec![(row(Hole::Faceless), true)];
    for hole in [
        Hole::Nothing,
        Hole::Waits,
        Hole::RouteScope,
        Hole::SaysPending,
        Hole::Strict,
    ] {
        rows.extend([(row(hole), true), (row(hole), false)]);
    }
    each(rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn correct_service_skips_only_cases_that_need_a_process() {
    let sample = Sample::start(Hole::Nothing).await;
    let report = run(&plan(&sample.url, true), |_, _| {}).await.unwrap();
    assert_eq!(
        of(&report, CaseVerdict::Skipped),
        ["paused-past-lease", "kill-mid-request", "kill-after-answer"]
    );
    let all: Vec<_> = report.operations[0]
        .cases
        .iter()
        .map(|case| &*case.id)
        .collect();
    assert_eq!(all, CASES.map(|case| case.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_that_responses_cannot_decide_are_skipped() {
    for hole in [Hole::Faceless, Hole::FacelessAnew] {
        let sample = Sample::start(hole).await;
        let report = run(&plan(&sample.url, false), |_, _| {}).await.unwrap();
        assert!(of(&report, CaseVerdict::Skipped).contains(&"concurrent-duplicates"));
        assert!(of(&report, CaseVerdict::Skipped).contains(&"sequential-duplicate"));
        assert!(report.operations[0].counting.contains("not at all"));
        assert!(!report.has_failed());
        assert!(report.is_blind());
    }
}

/// A safe style of answering duplicates must not be reported as a bug.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn safe_styles_are_not_reported_as_bugs() {
    let mut checks = JoinSet::new();
    for hole in [
        Hole::Refuses,
        Hole::SeesOther,
        Hole::SaysDone,
        Hole::WritesAnew,
        Hole::Later,
    ] {
        for is_counted in [true, false] {
            checks.spawn(async move {
                let mut failed: Vec<String> = Vec::new();
                for _ in 0..TRIES {
                    let sample = Sample::start(hole).await;
                    let plan = plan(&sample.url, is_counted);
                    let report = run(&plan, |_, _| {}).await.unwrap();
                    let skipped = of(&report, CaseVerdict::Skipped);
                    assert!(!skipped.contains(&"sequential-duplicate"), "{hole:?}");
                    let found = of(&report, CaseVerdict::Fail).into_iter();
                    failed = found.map(str::to_owned).collect();
                    if failed.is_empty() {
                        return;
                    }
                }
                panic!("{hole:?} {is_counted}: {failed:?}");
            });
        }
    }
    while let Some(done) = checks.join_next().await {
        done.unwrap();
    }
}

/// The key may stand anywhere in the request; then no header can be omitted or duplicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_in_the_body_is_tested_like_one_in_a_header() {
    let sample = Sample::start(Hole::KeyInBody).await;
    let mut asked = plan(&sample.url, true);
    asked.operations[0].body = br#"{"amount":20,"key":"{{key}}"}"#.to_vec();
    asked.operations[0].bad_body = None;
    let refused = run(&asked, |_, _| {}).await.unwrap_err().to_string();
    assert!(refused.contains("--failing-body does not"), "{refused}");
    asked.operations[0].failing_body = None;
    let report = run(&asked, |_, _| {}).await.unwrap();
    assert_eq!(of(&report, CaseVerdict::Fail), [""; 0]);
    let skipped = of(&report, CaseVerdict::Skipped);
    assert!(!skipped.contains(&"other-body") && !skipped.contains(&"key-too-long"));
    assert!(skipped.contains(&"key-missing") && skipped.contains(&"key-doubled"));
}

/// A body that is refused under any key, or a retention that has ended, proves nothing about keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_rejected_with_any_key_skips_its_case() {
    let sample = Sample::start(Hole::NoFingerprint).await;
    let mut asked = plan(&sample.url, true);
    asked.operations[0].other_body = Some(br#"{"amount":"bad"}"#.to_vec());
    asked.operations[0].retention = Some(Duration::from_millis(100));
    let report = run(&asked, |_, _| {}).await.unwrap();
    let skipped = of(&report, CaseVerdict::Skipped);
    assert!(skipped.contains(&"other-body") && skipped.contains(&"late-duplicate"));
}

/// Cases that a service without keys fails.
const NAIVE: [&str; 18] = [
    "sequential-duplicate",
    "concurrent-duplicates",
    "lost-answer",
    "duplicate-in-flight",
    "client-hangs-up",
    "other-body",
    "other-path",
    "other-query",
    "other-method",
    "member-order",
    "white-space",
    "rotated-credential",
    "key-quoted",
    "error-4xx-then-retry",
    "large-body",
    "location",
    "late-duplicate",
    "retention",
];

/// The bug, the cases that fail, the cases that warn.
type Row = (Hole, &'static [&'static str], &'static [&'static str]);

const ROWS: &[Row] = &[
    (
        Hole::Refuses,
        &[],
        &[
            "sequential-duplicate",
            "concurrent-duplicates",
            "lost-answer",
            "duplicate-in-flight",
            "client-hangs-up",
            "member-order",
            "white-space",
            "large-body",
            "late-duplicate",
            "retention",
        ],
    ),
    (
        Hole::AlwaysOk,
        &["error-5xx-then-retry"],
        &[
            "sequential-duplicate",
            "concurrent-duplicates",
            "duplicate-in-flight",
            "member-order",
            "white-space",
            "large-body",
            "late-duplicate",
            "retention",
        ],
    ),
    (Hole::IgnoresKey, &NAIVE, &["other-credential"]),
    (
        Hole::NoClaim,
        &[
            "concurrent-duplicates",
            "duplicate-in-flight",
            "client-hangs-up",
        ],
        &[],
    ),
    (Hole::ReadThenLock, &["duplicate-in-flight"], &[]),
    (Hole::AcrossKeys, &["same-body-other-key"], &[]),
    (Hole::DropsRunOnHangUp, &["client-hangs-up"], &[]),
    (Hole::MixesAnswers, &["answers-kept-apart"], &[]),
    (
        Hole::NoFingerprint,
        &["other-body", "other-path", "other-query", "other-method"],
        &[],
    ),
    (
        Hole::RunsOtherBody,
        &["other-body", "member-order", "white-space"],
        &[],
    ),
    (
        Hole::StrictNoFingerprint,
        &["other-body", "other-path", "other-query", "other-method"],
        &[],
    ),
    (Hole::NoPath, &["other-path"], &[]),
    (Hole::NoQuery, &["other-query"], &[]),
    (Hole::NoMethod, &["other-method"], &[]),
    (Hole::ByteFingerprint, &[], &["member-order", "white-space"]),
    (Hole::NoScope, &["other-credential"], &[]),
    (Hole::CredentialInKey, &["rotated-credential"], &[]),
    (Hole::MissingIsShared, &["key-missing"], &[]),
    (Hole::EmptyIsShared, &["key-empty"], &[]),
    (Hole::CutsKeys, &["key-too-long"], &[]),
    (Hole::LosesLongKeys, &["key-too-long"], &[]),
    (Hole::ReplacesLetters, &["key-non-ascii"], &[]),
    (Hole::FirstKeyOrRun, &["key-doubled"], &[]),
    (Hole::QuotesAreNotKept, &["key-quoted"], &[]),
    (Hole::QuotesDiffer, &[], &["key-quoted"]),
    (Hole::ReplaysErrorToAll, &["error-4xx-then-retry"], &[]),
    (Hole::ErrorLeavesClaim, &["error-5xx-then-retry"], &[]),
    (
        Hole::ErrorAfterEffectReleases,
        &["error-5xx-then-retry"],
        &[],
    ),
    (Hole::LargeNotKept, &["large-body"], &[]),
    (Hole::TextBodies, &["binary-body"], &[]),
    (Hole::ReplaysCookie, &["set-cookie"], &[]),
    (Hole::LosesLocation, &["location"], &[]),
    (Hole::NotMarked, &[], &["replay-marked"]),
    (Hole::ShortMemory, &["late-duplicate", "retention"], &[]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hole_gets_its_own_verdict_and_no_other() {
    each(ROWS.iter().map(|row| (*row, true)).collect()).await;
}

/// Results without a count at the source. A swallowed request shows if responses have ids.
const WEAK_ROWS: &[Row] = &[
    (Hole::IgnoresKey, &NAIVE, &["other-credential"]),
    (
        Hole::NoClaim,
        // A run for a client that disconnected has no response, so it is not counted.
        &["concurrent-duplicates", "duplicate-in-flight"],
        &[],
    ),
    (
        Hole::NoFingerprint,
        &["other-body", "other-path", "other-query", "other-method"],
        &[],
    ),
    (Hole::NoScope, &["other-credential"], &[]),
    (Hole::CredentialInKey, &["rotated-credential"], &[]),
    (Hole::DropsRunOnHangUp, &["client-hangs-up"], &[]),
    (Hole::MixesAnswers, &["answers-kept-apart"], &[]),
    (Hole::CutsKeys, &["key-too-long"], &[]),
    (Hole::ShortMemory, &["late-duplicate", "retention"], &[]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_that_answers_show_are_seen_without_a_count() {
    each(WEAK_ROWS.iter().map(|row| (*row, false)).collect()).await;
}

/// How often a service is verified before its verdicts count as wrong: its windows are short, and a busy machine can
/// miss one.
const TRIES: usize = 3;

/// Runs several rows at a time, because they mostly sleep.
async fn each(rows: Vec<(Row, bool)>) {
    let turns = Arc::new(Semaphore::new(6));
    let mut checks = JoinSet::new();
    for ((hole, failed, warned), is_counted) in rows {
        let turns = turns.clone();
        checks.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            let mut wrong = None;
            for _ in 0..TRIES {
                wrong = check(hole, is_counted, failed, warned).await;
                if wrong.is_none() {
                    break;
                }
            }
            wrong
        });
    }
    let mut wrong = Vec::new();
    while let Some(done) = checks.join_next().await {
        wrong.extend(done.unwrap());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

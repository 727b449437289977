//! Each hole gets its own verdict, and services that are right get none, whatever their style.
//!
//! The sample service is right by default; a switch opens one hole. What fails and what warns is compared as a whole, so
//! that a false alarm is as much a failure as a miss.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod sample;

use std::time::Duration;

use refrain_verify::verify::{
    CASES, Counting, Operation, Plan, Report, Trouble, Verdict, html, junit, run, sarif, worse,
};
use sample::{Hole, Sample};

fn plan(url: &str, is_counted: bool) -> Plan {
    let mut plan = Plan::new(url.parse().unwrap(), 7);
    if is_counted {
        let url = format!("{url}/count");
        plan.counting = Counting::Url { url, pointer: None };
    }
    plan.patience = Duration::from_millis(500);
    plan.late = Duration::from_millis(500);
    plan.settle = Duration::from_millis(30);
    let mut operation = Operation::new("POST /payments?currency=1").unwrap();
    operation.body = br#"{"amount":20,"to":"bob"}"#.to_vec();
    operation.headers = vec![("Authorization".into(), "Bearer alice-1".into())];
    operation.set_content_type(None);
    let bearer = |name: &str| Some(("Authorization".to_owned(), format!("Bearer {name}")));
    operation.other_credential = bearer("mallory-1");
    operation.rotated_credential = bearer("alice-2");
    operation.bad_body = Some(br#"{"amount":"bad"}"#.to_vec());
    operation.failing_body = Some(br#"{"amount":"fails"}"#.to_vec());
    operation.retention = Some(Duration::from_millis(600));
    plan.operations.push(operation);
    plan
}

fn of(report: &Report, verdict: Verdict) -> Vec<&str> {
    let cases = report.operations[0].cases.iter();
    let cases = cases.filter(|case| case.verdict == verdict);
    cases.map(|case| &*case.id).collect()
}

/// Runs all cases: `failed` fail, `warned` warn, and nothing else does either.
async fn check(hole: Hole, is_counted: bool, failed: &[&str], warned: &[&str]) {
    let sample = Sample::start(hole).await;
    let report = run(&plan(&sample.url, is_counted), |_, _| {}).await.unwrap();
    let told: Vec<_> = report.operations[0]
        .cases
        .iter()
        .filter(|case| matches!(case.verdict, Verdict::Fail | Verdict::Warn))
        .map(|case| format!("{} {}: {}", case.verdict, case.id, case.findings.join("; ")))
        .collect();
    let found = (of(&report, Verdict::Fail), of(&report, Verdict::Warn));
    let wanted = (failed.to_vec(), warned.to_vec());
    assert_eq!(found, wanted, "{hole:?}, counted {is_counted}: {told:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_are_right_pass_whatever_their_style() {
    for hole in [Hole::Nothing, Hole::Waits, Hole::RouteScope] {
        for is_counted in [true, false] {
            check(hole, is_counted, &[], &[]).await;
        }
    }
    check(Hole::Faceless, true, &[], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_needs_a_process_is_skipped_on_a_service_that_is_right() {
    let sample = Sample::start(Hole::Nothing).await;
    let report = run(&plan(&sample.url, true), |_, _| {}).await.unwrap();
    assert_eq!(of(&report, Verdict::Skipped), ["paused-past-lease", "kill-mid-request"]);
    let all: Vec<_> = report.operations[0].cases.iter().map(|case| &*case.id).collect();
    assert_eq!(all, CASES.map(|case| case.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_answers_cannot_tell_is_skipped_and_not_passed() {
    let sample = Sample::start(Hole::Faceless).await;
    let report = run(&plan(&sample.url, false), |_, _| {}).await.unwrap();
    assert!(of(&report, Verdict::Skipped).contains(&"concurrent-duplicates"));
    assert!(of(&report, Verdict::Skipped).contains(&"sequential-duplicate"));
    assert!(report.operations[0].counting.contains("not at all"));
    assert!(!report.has_failed());
}

mod holes {
    use super::*;

    macro_rules! holes {
        ($($name:ident: $hole:ident $failed:expr, $warned:expr;)*) => {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                check(Hole::$hole, true, &$failed, &$warned).await;
            }
        )*};
    }

    const NO: [&str; 0] = [];

    holes! {
        refuses_completed_duplicates: Refuses NO, ["x"];
    }
}

//! A service under test must not break the reports with its responses: they stay well-formed with any content.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod sample;

use std::time::Duration;

use refrain_verify::verify::{
    CASES, CaseReport, CaseVerdict, Counting, Exchange, Operation, OperationReport, Plan, Report,
    Trouble, html, junit, run, sarif, worse,
};
use sample::{Hole, Sample};

const NASTY: &str =
    "</script><script>alert('1')</script>\" onload='x' ]]> & \u{0} \u{1b}[31m \u{ffff} ü";

fn case(id: &str, verdict: CaseVerdict) -> CaseReport {
    let exchange = Exchange {
        label: NASTY.into(),
        at_ms: 3,
        took_ms: 5,
        request: vec![NASTY.into()],
        request_body: NASTY.into(),
        status: Some(201),
        response: vec![NASTY.into()],
        response_body: NASTY.into(),
    };
    CaseReport {
        id: id.into(),
        title: NASTY.into(),
        verdict,
        findings: vec![NASTY.into()],
        explanation: NASTY.into(),
        hole: NASTY.into(),
        fix: NASTY.into(),
        took_ms: 12,
        exchanges: vec![exchange],
    }
}

fn report(cases: &[(&str, CaseVerdict)]) -> Report {
    Report {
        version: 1,
        target: NASTY.into(),
        seed: 7,
        took_ms: 1_234,
        operations: vec![OperationReport {
            left_out: None,
            operation: NASTY.into(),
            counting: NASTY.into(),
            is_weak: true,
            is_blind: false,
            cases: cases
                .iter()
                .map(|(id, verdict)| case(id, *verdict))
                .collect(),
        }],
    }
}

fn all() -> Report {
    report(&[
        ("sequential-duplicate", CaseVerdict::Fail),
        ("other-body", CaseVerdict::Warn),
        ("location", CaseVerdict::Skipped),
        ("late-duplicate", CaseVerdict::Pass),
    ])
}

/// Checks that tags are closed in order, and that quotes and ampersands are escaped.
fn check_well_formed(text: &str, void: &[&str]) {
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.find('>').expect("a tag without an end");
        let tag = &rest[..end];
        assert!(!tag.contains('<'), "{tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        rest = &rest[end + 1..];
        let name = tag
            .split([' ', '/'])
            .find(|it| !it.is_empty())
            .unwrap_or_default();
        match tag {
            _ if tag.starts_with(['?', '!']) || tag.ends_with('/') || void.contains(&name) => {}
            _ if tag.starts_with('/') => assert_eq!(open.pop().as_deref(), Some(name)),
            _ if name == "style" => {
                let end = rest.find("</style>").unwrap();
                rest = &rest[end + "</style>".len()..];
            }
            _ => open.push(name.to_owned()),
        }
    }
    check_text(rest);
    assert!(open.is_empty(), "{open:?}");
    assert!(!text.contains(['\u{0}', '\u{1b}', '\u{ffff}']));
}

fn check_text(text: &str) {
    assert!(!text.contains('>'), "{text}");
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert!(known.iter().any(|it| text[at..].starts_with(it)), "{text}");
    }
}

#[test]
fn html_and_xml_are_well_formed_for_any_response() {
    check_well_formed(&junit(&all()), &[]);
    let page = html(&all());
    check_well_formed(&page, &["meta", "br"]);
    assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("https://"));
}

#[test]
fn skipped_operation_is_reported_with_its_reason() {
    let mut report = all();
    let out = OperationReport::left_out("PUT /a", format!("no key {NASTY}"));
    report.operations.push(out);
    let xml = junit(&report);
    check_well_formed(&xml, &[]);
    assert!(
        xml.contains("tests=\"5\" failures=\"1\" skipped=\"2\""),
        "{xml}"
    );
    assert!(xml.contains("<skipped message=\"no key "), "{xml}");
    let page = html(&report);
    check_well_formed(&page, &["meta", "br"]);
    assert!(page.contains("PUT /a") && page.contains("left out</span> no key"));
    assert!(page.contains("1 operation tested, 1 left out"), "{page}");
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    // A report from before the field existed.
    let old = json.replace("\"left_out\"", "\"something_new\"");
    assert_eq!(
        serde_json::from_str::<Report>(&old).unwrap().operations[1].left_out,
        None
    );
}

#[test]
fn junit_counts_what_failed_and_what_was_skipped() {
    let xml = junit(&all());
    assert!(
        xml.contains("tests=\"4\" failures=\"1\" skipped=\"1\" time=\"1.234\""),
        "{xml}"
    );
    assert_eq!(xml.matches("<failure ").count(), 1);
    assert_eq!(xml.matches("<skipped ").count(), 1);
}

#[test]
fn sarif_names_a_rule_for_each_result() {
    let sarif = sarif(&all());
    let run = &sarif["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), CASES.len());
    let levels: Vec<_> = run["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (&it["ruleId"], &it["level"]))
        .collect();
    assert_eq!(levels.len(), 2);
    assert_eq!(
        (levels[0].0.as_str(), levels[0].1.as_str()),
        (Some("sequential-duplicate"), Some("error"))
    );
    assert_eq!(levels[1].1, "warning");
}

#[test]
fn baseline_reports_only_new_failures() {
    let before = report(&[
        ("a", CaseVerdict::Fail),
        ("b", CaseVerdict::Warn),
        ("c", CaseVerdict::Skipped),
    ]);
    let now = report(&[
        ("a", CaseVerdict::Fail),
        ("b", CaseVerdict::Fail),
        ("c", CaseVerdict::Fail),
        ("d", CaseVerdict::Warn),
    ]);
    let ids: Vec<_> = worse(&before, &now)
        .into_iter()
        .map(|it| it.chars().last().unwrap())
        .collect();
    assert_eq!(ids, ['b', 'c']);
    let text = serde_json::to_string(&now).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), now);
}

fn plan(url: &str, seed: u64) -> Plan {
    let mut plan = Plan::new(url.parse().unwrap(), seed);
    let url = format!("{url}/count").into();
    plan.counting = Counting::Url { url, pointer: None };
    plan.settle = Duration::from_millis(20);
    plan.only = vec!["sequential-duplicate".into()];
    let mut operation = Operation::new("POST /payments").unwrap();
    operation.body = br#"{"amount":20,"order":"{{unique}}"}"#.to_vec();
    plan.operations.push(operation);
    plan
}

#[tokio::test]
async fn a_seed_decides_everything_that_is_sent() {
    let mut said = Vec::new();
    for seed in [7, 7, 8] {
        let sample = Sample::start(Hole::Nothing).await;
        let report = run(&plan(&sample.url, seed), |_, _| {}).await.unwrap();
        let case = &report.operations[0].cases[0];
        assert_eq!(case.verdict, CaseVerdict::Pass, "{case:?}");
        let requests = case
            .exchanges
            .iter()
            .map(|it| (it.request.clone(), it.request_body.clone()));
        said.push(requests.collect::<Vec<_>>());
    }
    assert_eq!(said[0], said[1]);
    assert_ne!(said[0], said[2]);
}

#[tokio::test]
async fn a_seed_that_was_used_before_and_a_count_that_does_not_count_are_told() {
    let sample = Sample::start(Hole::Nothing).await;
    run(&plan(&sample.url, 7), |_, _| {}).await.unwrap();
    let used = plan(&sample.url, 7);
    let again = run(&used, |_, _| {});
    let again = tokio::time::timeout(Duration::from_secs(60), again)
        .await
        .unwrap();
    assert!(
        matches!(&again, Err(Trouble::Plan(why)) if why.contains("--seed")),
        "{again:?}"
    );
    let gone = run(&plan("http://127.0.0.1:9", 7), |_, _| {}).await;
    assert!(matches!(gone, Err(Trouble::Unreachable(_))), "{gone:?}");
}

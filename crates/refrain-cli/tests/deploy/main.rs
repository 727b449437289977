//! The dashboard and the alert rules in `deploy`: a panel of a metric that was renamed shows nothing,
//! and an alert on it never fires; both look as if all were well.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod known;
mod promql;
mod settings;
#[path = "../support/mod.rs"]
mod support;

use std::{collections::BTreeSet, fs, process::Command};

use known::{Known, repository};
use promql::{Selector, Uses};
use serde_json::Value;

/// Labels that Prometheus adds to every sample.
const ADDED: [&str; 2] = ["job", "instance"];

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let known = Known::collect();
    let mut faults = Vec::new();
    for (place, expression, shown) in alerts().iter().flat_map(alert_uses).chain(panels()) {
        let uses = match promql::parse(&expression) {
            Ok(uses) => uses,
            Err(error) => {
                faults.push(format!("{place}: {error}: {expression}"));
                continue;
            }
        };
        if uses.selectors.is_empty() {
            faults.push(format!("{place}: no metric in {expression}"));
        }
        faults.extend(check(&known, &uses, &shown).map(|fault| format!("{place}: {fault}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every metric, label and value that does not exist.
fn check<'a>(
    known: &'a Known,
    uses: &'a Uses,
    shown: &'a BTreeSet<String>,
) -> impl Iterator<Item = String> + 'a {
    let faults = uses
        .selectors
        .iter()
        .flat_map(|it| check_selector(known, it));
    let labels = |it: &Selector| known.labels.get(&it.metric).cloned().unwrap_or_default();
    let mut possible: BTreeSet<_> = uses.selectors.iter().flat_map(labels).collect();
    possible.extend(ADDED.map(String::from));
    let grouped = uses.grouped.difference(&possible);
    let grouped: Vec<_> = grouped
        .map(|it| format!("no metric has the label {it}"))
        .collect();
    let hidden = shown.difference(&uses.grouped);
    let hidden = hidden.map(|it| format!("the text shows {it}, which the result does not have"));
    faults.chain(grouped).chain(hidden)
}

fn check_selector(known: &Known, selector: &Selector) -> Vec<String> {
    let metric = &selector.metric;
    if metric == "up" {
        return Vec::new();
    }
    let Some(labels) = known.labels.get(metric) else {
        return vec![format!("there is no metric {metric}")];
    };
    let mut faults = Vec::new();
    for (label, pattern) in &selector.matchers {
        if ADDED.contains(&label.as_str()) {
            continue;
        }
        if !labels.contains(label) {
            faults.push(format!("{metric} has no label {label}"));
        }
        let values = pattern.split('|').filter(|it| !it.starts_with('$'));
        let missing = values.filter(|value| !known.has_value(metric, label, value));
        faults.extend(missing.map(|value| format!("{metric}: no {label} is {value}")));
    }
    faults
}

/// The alert rules.
fn alerts() -> Vec<Value> {
    let text = fs::read_to_string(repository("deploy/prometheus/alerts.yml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap().clone());
    rules.collect()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// Name and expression of an alert, and the labels that its texts show.
fn alert_uses(alert: &Value) -> Vec<(String, String, BTreeSet<String>)> {
    let texts = alert["annotations"].to_string();
    let labels = texts.split("$labels.").skip(1);
    let is_end = |it: char| !it.is_ascii_alphanumeric() && it != '_';
    let labels = labels.filter_map(|it| it.split(is_end).next());
    // The rule on `up` is not grouped, and so has all its labels.
    let is_grouped = text(alert, "expr").contains(" by (");
    let labels = labels.filter(|_| is_grouped).map(String::from);
    vec![(
        text(alert, "alert").to_owned(),
        text(alert, "expr").to_owned(),
        labels.collect(),
    )]
}

fn dashboard() -> Value {
    let text = fs::read_to_string(repository("deploy/grafana/refrain.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Title and expression of each query of the dashboard, and the labels that its legend shows.
fn panels() -> Vec<(String, String, BTreeSet<String>)> {
    let dashboard = dashboard();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let legend = text(target, "legendFormat").split("{{").skip(1);
            let labels = legend.filter_map(|it| Some(it.split_once("}}")?.0.to_owned()));
            let expression = text(target, "expr").to_owned();
            found.push((
                text(panel, "title").to_owned(),
                expression,
                labels.collect(),
            ));
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    for variable in variables.filter(|it| it["type"] == "query") {
        // label_values(SELECTOR, LABEL): the label must be one of the selector's.
        let query = text(variable, "definition");
        let inner = query.strip_prefix("label_values(").unwrap();
        let (selector, label) = inner.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        let expression = format!("count by ({label}) ({selector})");
        found.push((
            format!("variable {}", text(variable, "name")),
            expression,
            BTreeSet::new(),
        ));
    }
    found
}

/// An alert wakes an operator: it has to say what happened, and what to do.
#[test]
fn every_alert_says_what_to_do() {
    let alerts = alerts();
    assert!(alerts.len() > 20, "{}", alerts.len());
    let mut names = BTreeSet::new();
    for alert in &alerts {
        let name = text(alert, "alert");
        assert!(name.starts_with("Refrain") && names.insert(name), "{name}");
        let severity = text(&alert["labels"], "severity");
        assert!(["critical", "warning"].contains(&severity), "{name}");
        for part in ["summary", "description"] {
            assert!(
                text(&alert["annotations"], part).len() > 30,
                "{name}: {part}"
            );
        }
        check_command(name, text(&alert["annotations"], "command"));
    }
}

/// Asks the command for its help, which must have its flags.
fn check_command(alert: &str, command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    let Some((&"refrain", words)) = words.split_first() else {
        assert!(
            command.starts_with("curl -s http://{{ $labels.instance }}/readyz"),
            "{alert}"
        );
        return;
    };
    let (flags, names): (Vec<_>, Vec<_>) = words.iter().partition(|it| it.starts_with("--"));
    let is_name = |it: &&&str| it.bytes().all(|byte| byte.is_ascii_lowercase());
    let names = names.iter().take_while(|it| is_name(it)).take(2);
    let mut run = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = run.args(names.copied()).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{alert}: {command}: {help}");
    for flag in flags {
        assert!(
            help.contains(flag),
            "{alert}: {command}: no {flag} in\n{help}"
        );
    }
}

/// A value that another metric has is not accepted.
#[test]
fn values_of_labels_belong_to_their_metric() {
    let known = Known::collect();
    for (metric, label, value, expected) in [
        ("refrain_records", "state", "indeterminate", true),
        ("refrain_records", "state", "replayed", false),
        ("refrain_requests_total", "outcome", "replayed", true),
        ("refrain_requests_total", "outcome", "dead-lettered", false),
        ("refrain_messages_total", "outcome", "dead-lettered", true),
        ("refrain_store_errors_total", "op", "claim", true),
        ("refrain_store_errors_total", "store", "claim", false),
    ] {
        let found = known.has_value(metric, label, value);
        assert_eq!(found, expected, "{metric} {label} {value}");
    }
}

/// Prometheus itself checks the rules, and what fires when.
#[test]
fn prometheus_accepts_the_rules_and_their_tests() {
    for args in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
    ] {
        let mut promtool = Command::new("promtool");
        let ran = promtool
            .args(args)
            .current_dir(repository("deploy/prometheus"));
        let output = ran
            .output()
            .expect("promtool is missing: install the Debian package prometheus");
        let said = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&said)
        );
    }
}

/// A panel that ignores the choice of an operation says so, or it is read as if it were of that operation.
#[test]
fn panels_of_requests_name_the_choices_that_they_ignore() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    for panel in panels.filter(|it| it["targets"].is_array()) {
        let targets = panel["targets"].as_array().unwrap().iter();
        let ignores = |it: &Value| {
            !text(it, "expr").contains("$operation") && !text(it, "expr").contains("$consumer")
        };
        let is_marked = text(panel, "description").contains("All operations");
        assert_eq!(
            targets.clone().any(ignores),
            is_marked,
            "{}",
            panel["title"]
        );
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for name in ["job", "instance"] {
        let variable = variables.iter().find(|it| it["name"] == name).unwrap();
        let query = text(variable, "definition");
        assert!(
            query.starts_with("label_values(refrain_build_info"),
            "{query}"
        );
    }
}

#[test]
fn the_dashboard_is_well_formed() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let rows = panels.iter().filter(|it| it["type"] == "row");
    let rows: Vec<_> = rows.map(|it| text(it, "title")).collect();
    for row in [
        "Overview",
        "Requests by outcome",
        "Latency",
        "Duplicates",
        "Unknown outcomes",
        "Upstream",
        "Store",
        "Connections and buffers",
        "Observe mode",
        "Workers",
        "Operators",
    ] {
        assert!(rows.contains(&row), "no row {row} in {rows:?}");
    }
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{}", panel["id"]);
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(
                    x < 24 && taken.insert((x, y)),
                    "{} overlaps",
                    panel["title"]
                );
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
        }
    }
}

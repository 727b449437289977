//! SARIF report, for code scanners.

use serde_json::{Value, json};

use super::{CaseReport, CaseVerdict, OperationReport, Report};
use crate::verify::CASES;

/// Renders the report as SARIF 2.1.0: a rule for each case, a result for each failure and warning.
#[must_use]
pub fn sarif(report: &Report) -> Value {
    let rules = CASES.iter().map(|case| {
        json!({
            "id": case.id,
            "shortDescription": { "text": case.title },
            "fullDescription": { "text": case.explanation },
            "help": { "text": format!("{} {}", case.hole, case.fix) },
        })
    });
    let operations = report.operations.iter();
    let results = operations.flat_map(|operation| {
        let found = operation.cases.iter();
        let found =
            found.filter(|case| matches!(case.verdict, CaseVerdict::Fail | CaseVerdict::Warn));
        found.map(|case| result(report, operation, case))
    });
    sarif_log("refrain verify", rules.collect(), results.collect())
}

/// Returns a SARIF 2.1.0 log of one run of a tool.
#[must_use]
pub fn sarif_log(tool: &str, rules: Vec<Value>, results: Vec<Value>) -> Value {
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": tool,
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "results": results,
        }],
    })
}

fn result(report: &Report, operation: &OperationReport, case: &CaseReport) -> Value {
    let level = match case.verdict {
        CaseVerdict::Fail => "error",
        _ => "warning",
    };
    let name = format!("{} at {}", operation.operation, report.target);
    json!({
        "ruleId": case.id,
        "level": level,
        "message": { "text": format!("{}. {}", case.findings.join("; "), case.fix) },
        "locations": [{
            "logicalLocations": [{ "fullyQualifiedName": name, "kind": "resource" }],
        }],
        "partialFingerprints": { "case": format!("{} {}", operation.operation, case.id) },
    })
}

//! JUnit report, for test runners.

use super::{CaseReport, CaseVerdict, OperationReport, Report, escaped};

/// Renders the report as JUnit XML: a suite for each operation.
#[must_use]
pub fn junit(report: &Report) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    xml += &format!(
        "<testsuites name=\"refrain verify\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{}\">\n",
        report
            .operations
            .iter()
            .map(|it| it.cases.len() + left_out(it))
            .sum::<usize>(),
        report.count(CaseVerdict::Fail),
        report.count(CaseVerdict::Skipped) + report.operations.iter().map(left_out).sum::<usize>(),
        seconds(report.took_ms)
    );
    for operation in &report.operations {
        let count = |verdict| {
            operation
                .cases
                .iter()
                .filter(|it| it.verdict == verdict)
                .count()
        };
        let name = escaped(&operation.operation);
        xml += &format!(
            "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\">\n",
            operation.cases.len() + left_out(operation),
            count(CaseVerdict::Fail),
            count(CaseVerdict::Skipped) + left_out(operation)
        );
        if let Some(why) = &operation.left_out {
            xml += &format!(
                "    <testcase classname=\"{name}\" name=\"all cases\">\n      <skipped message=\"{}\"/>\n    </testcase>\n",
                escaped(why)
            );
        }
        xml.extend(operation.cases.iter().map(|it| case(&name, it)));
        xml += "  </testsuite>\n";
    }
    xml + "</testsuites>\n"
}

/// An operation that was not tested counts as one skipped test.
fn left_out(operation: &OperationReport) -> usize {
    usize::from(operation.left_out.is_some())
}

fn case(operation: &str, case: &CaseReport) -> String {
    let said = escaped(&case.findings.join("; "));
    let inner = match case.verdict {
        CaseVerdict::Pass => String::new(),
        CaseVerdict::Skipped => format!("      <skipped message=\"{said}\"/>\n"),
        CaseVerdict::Warn => format!("      <system-out>warning: {said}</system-out>\n"),
        CaseVerdict::Fail => {
            let text = escaped(&format!(
                "{}\nhole: {}\nfix: {}",
                case.title, case.hole, case.fix
            ));
            format!(
                "      <failure type=\"{}\" message=\"{said}\">{text}</failure>\n",
                case.id
            )
        }
    };
    let (id, time) = (escaped(&case.id), seconds(case.took_ms));
    format!(
        "    <testcase classname=\"{operation}\" name=\"{id}\" time=\"{time}\">\n{inner}    </testcase>\n"
    )
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03}", millis / 1000, millis % 1000)
}

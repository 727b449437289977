//! Specifications in the style of a bank, a shop, a SaaS and a receiver of webhooks, labelled by hand.
//! A classifier that goes by method and path words alone gets about three quarters of such operations right.

use std::{collections::HashMap, fs, path::Path};

use refrain_openapi::Document;
use refrain_plan::{Options, Planned, plan};

const SPECIFICATIONS: [&str; 6] = ["bank", "shop", "saas", "receiver", "travel", "utility"];

#[test]
fn nineteen_of_twenty_operations_are_classified_as_a_person_would() {
    let (mut right, mut all) = (0, 0);
    for name in SPECIFICATIONS {
        let (good, count) = score(name);
        assert!(count > 40, "{name} has only {count} operations");
        assert!(20 * good >= 19 * count, "{name}: {good} of {count}");
        right += good;
        all += count;
    }
    println!(
        "accuracy: {right} of {all}, {:.3}",
        f64::from(right) / f64::from(all)
    );
}

/// How many are right, and of how many; says what is not.
fn score(name: &str) -> (u32, u32) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/specs");
    let labels = fs::read_to_string(folder.join(format!("{name}.labels"))).unwrap();
    let document = Document::read(&folder.join(format!("{name}.yaml"))).unwrap();
    assert!(document.troubles().is_empty(), "{:?}", document.troubles());
    let plan = plan(&document, &Options::default());
    let labels: HashMap<_, _> = labels
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(label, of)| (of, label))
        .collect();
    assert_eq!(
        labels.len(),
        plan.operations.len(),
        "{name}: labels and operations"
    );
    let (mut right, mut sure_and_wrong) = (0, 0);
    for operation in &plan.operations {
        let of = format!("{} {}", operation.method, operation.path);
        let label = labels
            .get(of.as_str())
            .unwrap_or_else(|| panic!("{name}: no label for {of}"));
        match class(operation) == *label {
            true => right += 1,
            false => {
                sure_and_wrong += u32::from(operation.verdict.is_sure());
                println!("{name}: {of} is {label}, found {}", told(operation));
            }
        }
    }
    let all = u32::try_from(plan.operations.len()).unwrap();
    println!(
        "{name}: {right} of {all}, {:.3}; {sure_and_wrong} wrong and sure of it",
        f64::from(right) / f64::from(all)
    );
    (right, all)
}

fn class(operation: &Planned) -> String {
    let class = serde_json::to_value(operation.verdict.class).unwrap();
    class.as_str().unwrap().into()
}

fn told(operation: &Planned) -> String {
    let verdict = &operation.verdict;
    let evidence: Vec<_> = verdict
        .evidence
        .iter()
        .map(|it| format!("  {:?} {:+} {}", it.class, it.weight, it.text))
        .collect();
    format!(
        "{} ({})\n{}",
        class(operation),
        verdict.confidence,
        evidence.join("\n")
    )
}

//! Classification accuracy on descriptions that are labelled by hand: banks, shops, SaaS, webhook receivers, others.
//! A classifier that only uses the method and path words gets about three quarters of such operations right.
//!
//! Every description was labelled before it was first planned; `docs/plan.md` has its first score.

use std::{collections::HashMap, fs, ops::AddAssign, path::Path};

use refrain_openapi::Document;
use refrain_plan::{Options, Planned, plan};

const SPECIFICATIONS: &[&str] = &[
    "bank",
    "shop",
    "saas",
    "receiver",
    "travel",
    "utility",
    "openbanking",
    "rides",
    "payroll",
    "games",
    "market",
    "kontor",
    "hub",
    "psp",
    "clinic",
    "neobank",
    "cloud",
    "corebank",
    "store",
    "workspace",
    "relay",
    "ledger",
    "boutique",
    "desk",
    "intake",
    "credit",
    "outfitter",
    "savings",
    "bazaar",
    "treasury",
    "switchboard",
    "mutual",
    "studio",
    "grocer",
    "acquirer",
    "plant",
    "cantonal",
    "fleet",
    "union",
    "press",
    "parish",
    "thrift",
];

#[test]
fn nineteen_of_twenty_operations_are_classified_as_a_person_would() {
    let mut whole = Score::default();
    let mut poor = Vec::new();
    for name in SPECIFICATIONS {
        let score = score(name);
        let (good, count) = (score.right(), score.all());
        assert!(count > 40, "{name} has only {count} operations");
        if 20 * good < 19 * count {
            poor.push(format!("{name}: {good} of {count}"));
        }
        whole += score;
    }
    println!("accuracy: {}", whole.told());
    assert!(poor.is_empty(), "{poor:?}");
    // Wrong classes must be rare among the sure ones, so that a review of the unsure ones finds most errors.
    let [wrong, right] = whole.sure;
    assert!(
        wrong * 50 <= wrong + right,
        "{wrong} sure verdicts are wrong"
    );
    let share = |[wrong, right]: [u32; 2]| f64::from(right) / f64::from(wrong + right);
    assert!(share(whole.unsure) < share(whole.sure), "{}", whole.told());
}

/// Number of wrong and right classes (in this order), separately for sure and unsure verdicts.
#[derive(Default)]
struct Score {
    sure: [u32; 2],
    unsure: [u32; 2],
}

impl Score {
    fn right(&self) -> u32 {
        self.sure[1] + self.unsure[1]
    }

    fn all(&self) -> u32 {
        self.right() + self.sure[0] + self.unsure[0]
    }

    fn told(&self) -> String {
        let share = |[wrong, right]: [u32; 2]| match wrong + right {
            0 => "none".into(),
            all => format!(
                "{right} of {all} ({:.3})",
                f64::from(right) / f64::from(all)
            ),
        };
        let all = share([self.all() - self.right(), self.right()]);
        format!(
            "{all}; sure: {}; unsure: {}",
            share(self.sure),
            share(self.unsure)
        )
    }
}

impl AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        for at in 0..2 {
            self.sure[at] += other.sure[at];
            self.unsure[at] += other.unsure[at];
        }
    }
}

/// Scores one description, and prints every wrong class.
fn score(name: &str) -> Score {
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
    let mut score = Score::default();
    for operation in &plan.operations {
        let of = format!("{} {}", operation.method, operation.path);
        let label = labels
            .get(of.as_str())
            .unwrap_or_else(|| panic!("{name}: no label for {of}"));
        let is_right = class(operation) == *label;
        match operation.verdict.is_sure() {
            true => score.sure[usize::from(is_right)] += 1,
            false => score.unsure[usize::from(is_right)] += 1,
        }
        if !is_right {
            println!("{name}: {of} is {label}, found {}", told(operation));
        }
    }
    println!("{name}: {}", score.told());
    score
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

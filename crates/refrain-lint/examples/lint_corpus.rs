//! Prints precision and recall of the rules on the labelled corpus; `cargo xtask lint-corpus` runs it.

use std::{collections::BTreeMap, path::Path, process::ExitCode};

#[path = "../tests/corpus/score.rs"]
mod score;

use score::{Score, Table, score};

/// Minimum precision and recall of the rules.
const PRECISION_MIN: f64 = 0.95;
const RECALL_MIN: f64 = 0.85;
/// Parts of the corpus, in the order in which they were written.
const PARTS: &str = "pairs, job_runners, key_parts, services, wrappers, data_stores, async_frameworks, textbook, single_mistakes, indirect, clients_and_brokers, wrong_only, correct_only";

fn main() -> ExitCode {
    let part = std::env::args().nth(1).unwrap_or_default();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let table = score(&corpus, |name| name.contains(&part));
    if table.snippets.is_empty() {
        eprintln!(
            "no file of {} has `{part}` in its name; try {PARTS}",
            corpus.display()
        );
        return ExitCode::from(2);
    }
    println!(
        "RIGHT: found and labelled. WRONG: found, not labelled. MISSED: labelled, not found. Hints count.\n"
    );
    let Table {
        rules,
        languages,
        snippets,
        total,
        faults,
    } = table;
    print("RULE", &rules, |_| String::new());
    print("LANGUAGE", &languages, |name| {
        format!("{} snippets", snippets.get(name).unwrap_or(&0))
    });
    print("ALL", &BTreeMap::from([(String::new(), total)]), |_| {
        String::new()
    });
    for fault in &faults {
        println!("{fault}");
    }
    let good = total.precision() >= PRECISION_MIN && total.recall() >= RECALL_MIN;
    println!(
        "{}: precision has to be {PRECISION_MIN} and recall {RECALL_MIN} at least",
        if good { "good" } else { "not good enough" }
    );
    match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn print(title: &str, rows: &BTreeMap<String, Score>, more: impl Fn(&str) -> String) {
    println!(
        "{title:30} {:>5} {:>5} {:>6} {:>9} {:>6}",
        "RIGHT", "WRONG", "MISSED", "PRECISION", "RECALL"
    );
    for (name, score) in rows {
        let row = format!(
            "{name:30} {:5} {:5} {:6} {:9.2} {:6.2}  {}",
            score.right,
            score.wrong,
            score.missed,
            score.precision(),
            score.recall(),
            more(name)
        );
        println!("{}", row.trim_end());
    }
    println!();
}

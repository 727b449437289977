//! Rule against phrases that readers have to decode: each has a plain word in its place.

use super::{
    Finding,
    tree::{Tree, words},
};

/// Files that contain the phrases on purpose: this rule, its tests, and code of others that `refrain lint` reads.
const EXEMPT: [&str; 3] = [
    "xtask/src/tidy/phrases.rs",
    "xtask/src/tidy/tests.rs",
    "crates/refrain-lint/corpus/",
];

/// A phrase, as lower-case words, and the fix.
const PHRASES: [(&str, &str); 21] = [
    ("all the same", "write `anyway`"),
    ("anew", "write `again`"),
    ("at the least", "write `at least`"),
    ("at the most", "write `at most`"),
    ("became of", "name the outcome, the state or the result"),
    ("becomes of", "name the outcome, the state or the result"),
    ("can be had", "write `is available`"),
    ("cannot be had", "write `is unavailable`"),
    ("came of it", "name the outcome, the state or the result"),
    ("goes by", "write `uses` or `depends on`"),
    ("how manieth", "write `attempt number`"),
    ("look after", "name the action: check, repair, keep"),
    ("looked after", "name the action: check, repair, keep"),
    ("see to it", "write `make sure`"),
    ("sent away", "write `rejected`"),
    (
        "somebody",
        "name the client, the caller, the operator or the process",
    ),
    ("stood still", "write `stopped` or `stalled`"),
    ("that which", "name the thing"),
    ("whatever", "name the thing"),
    (
        "whoever",
        "name the client, the caller, the operator or the process",
    ),
    (
        "whomever",
        "name the client, the caller, the operator or the process",
    ),
];

/// Rule: no phrase of [`PHRASES`] in comments, messages or documentation.
pub(super) fn home_made(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_exempt = |path: &str| EXEMPT.iter().any(|exempt| path.starts_with(exempt));
    for file in tree.files.iter().filter(|file| !is_exempt(&file.path)) {
        for (at, line) in file.lines() {
            let lower = line.to_lowercase();
            let text = format!(
                " {} ",
                words(&lower)
                    .filter(|word| !word.is_empty())
                    .collect::<Vec<_>>()
                    .join(" ")
            );
            let found = PHRASES
                .iter()
                .filter(|(phrase, _)| text.contains(&format!(" {phrase} ")));
            findings.extend(found.map(|(phrase, fix)| {
                let message = format!("the phrase `{phrase}` is hard to understand; {fix}");
                Finding::new(&file.path, at, message)
            }));
        }
    }
    findings
}

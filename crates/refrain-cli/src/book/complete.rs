//! Tests that pages which claim to list every setting do so: a reader takes a missing setting for one that does not exist.

use clap::CommandFactory as _;
use refrain::policy::File;
use serde_json::Value;

use super::pages;
use crate::Cli;

/// Parts of the schema, each with the pages that together list all its settings.
const PARTS: [(&str, &[&str]); 7] = [
    (
        "/properties",
        &["docs/policy.md", "docs/proxy.md", "docs/worker.md"],
    ),
    ("/$defs/Proxy/properties", &["docs/proxy.md"]),
    ("/$defs/Operation/properties", &["docs/policy.md"]),
    ("/$defs/Signed/properties", &["docs/webhooks.md"]),
    ("/$defs/Worker/properties", &["docs/worker.md"]),
    ("/$defs/Authorization/properties", &["docs/worker.md"]),
    ("/$defs/Relay/properties", &["docs/outbox.md"]),
];

/// Whether a page mentions this setting: as code, or set in an example.
fn names(page: &str, name: &str) -> bool {
    let is_set = |line: &str| {
        let rest = line.trim_start().strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    // A name stands alone in backticks, before a value, or as a table.
    ["`", " ", "="]
        .iter()
        .any(|end| page.contains(&format!("`{name}{end}")))
        || page.contains(&format!("[{name}]"))
        || page.contains(&format!("{{ {name} ="))
        || page.contains(&format!(", {name} ="))
        || page.lines().any(is_set)
}

fn text_of(paths: &[&str]) -> String {
    let pages = pages::all();
    let meant = pages
        .iter()
        .filter(|page| paths.iter().any(|path| page.path.ends_with(path)));
    meant.map(|page| page.text.as_str()).collect()
}

#[test]
fn pages_that_claim_every_setting_have_it() {
    let schema = File::schema();
    let mut missing = Vec::new();
    for (part, paths) in PARTS {
        let page = text_of(paths);
        assert!(!page.is_empty(), "{paths:?} are no pages");
        let settings = schema.pointer(part).and_then(Value::as_object).unwrap();
        for name in settings.keys().filter(|name| !names(&page, name)) {
            missing.push(format!("{name} is not in {}", paths.join(" or ")));
        }
    }
    let proxy = text_of(&["docs/proxy.md"]);
    let command = Cli::command();
    let flags = command.find_subcommand("proxy").unwrap().get_arguments();
    for flag in flags.filter_map(|flag| flag.get_long()) {
        if !proxy.contains(&format!("--{flag}")) {
            missing.push(format!("--{flag} is not in docs/proxy.md"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

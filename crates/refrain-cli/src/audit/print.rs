//! The result of verifying a log, as text and as JSON.

use std::path::Path;

use refrain::audit::{Attempt, ChainHash, Check, Damage, Verified};
use serde_json::{Value, json};

use crate::output::{complain, say};

/// The most entries listed of each kind; `--json` lists all.
const LISTED_MAX: usize = 20;

pub(super) fn text(folder: &Path, found: &Verified, check: &Check) {
    let folder = folder.display();
    let files = counted(found.files as u64, "file", "files");
    let entries = counted(found.entries, "entry", "entries");
    let verdict = match found.damage_count {
        0 => "no damage".to_owned(),
        count => counted(count, "damaged place", "damaged places"),
    };
    say(format_args!("{folder}: {entries} in {files}, {verdict}"));
    for damage in found.damage.iter().take(LISTED_MAX) {
        say(format_args!("  {}", line(damage)));
    }
    more(found.damage_count, LISTED_MAX.min(found.damage.len()));
    for (name, end) in [("first", &found.first), ("last", &found.last)] {
        if let Some((seq, at)) = end {
            say(format_args!("{name:<6} entry {seq}, {at}"));
        }
    }
    if found.begins != ChainHash::START {
        say(format_args!("begins after {}", found.begins));
        if check.from.is_none() {
            say(
                "       compare it with the last hash of the files that were moved away: --from-hash HASH",
            );
        }
    }
    say(format_args!("head   {}", found.head));
    if check.head.is_none() && found.damage_count == 0 {
        say(
            "       store it elsewhere: --head HASH detects a log that was truncated or rewritten later",
        );
    }
    if found.unfinished > 0 {
        let bytes = counted(found.unfinished, "byte", "bytes");
        say(format_args!(
            "the last line is incomplete ({bytes}): it is being written, or a crash cut it off"
        ));
    }
    let loose = &found.loose;
    attempts(
        "without an end: still running, or their process was killed",
        &loose.open,
    );
    attempts(
        "with an unknown outcome that nobody has resolved",
        &loose.doubts,
    );
    attempts(
        "with an operator action that has no recorded result",
        &loose.actions,
    );
    if loose.unlisted > 0 {
        say(format_args!("{} more were not tracked", loose.unlisted));
    }
}

/// Prints damage to standard error.
pub(super) fn complain_of(found: &Verified) {
    for damage in found.damage.iter().take(LISTED_MAX) {
        complain(format_args!("refrain: {}", line(damage)));
    }
    if found.damage_count > LISTED_MAX as u64 {
        complain(format_args!(
            "refrain: {} damaged places in total; see `refrain audit verify`",
            found.damage_count
        ));
    }
}

fn line(damage: &Damage) -> String {
    match damage.line {
        // Line 0 stands for the log as a whole.
        0 => damage.what.clone(),
        _ => damage.to_string(),
    }
}

fn attempts(what: &str, attempts: &[Attempt]) {
    if attempts.is_empty() {
        return;
    }
    let records = counted(attempts.len() as u64, "record", "records");
    say(format_args!("{records} {what}"));
    for attempt in attempts.iter().take(LISTED_MAX) {
        let operation = attempt.operation.as_deref().unwrap_or_default();
        let line = format!(
            "  entry {}, {}  {}  {operation}",
            attempt.seq, attempt.at, attempt.record
        );
        say(line.trim_end());
    }
    more(attempts.len() as u64, LISTED_MAX.min(attempts.len()));
}

fn more(all: u64, listed: usize) {
    let left = all - listed as u64;
    if left > 0 {
        say(format_args!("  and {left} more; --json lists them"));
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

pub(super) fn json(folder: &Path, found: &Verified) -> Value {
    let end = |end: &Option<(u64, String)>| {
        let end = end.as_ref();
        end.map(|(seq, at)| json!({ "seq": seq, "at": at }))
    };
    let damage = found.damage.iter().map(|damage| {
        json!({
            "file": damage.file.display().to_string(),
            "line": damage.line,
            "seq": damage.seq,
            "kind": damage.kind,
            "what": damage.what,
        })
    });
    let loose = &found.loose;
    json!({
        "folder": folder.display().to_string(),
        "files": found.files,
        "entries": found.entries,
        "first": end(&found.first),
        "last": end(&found.last),
        "begins": found.begins.to_string(),
        "head": found.head.to_string(),
        "unfinished_bytes": found.unfinished,
        "damage_count": found.damage_count,
        "damage": damage.collect::<Vec<_>>(),
        "open": listed(&loose.open),
        "doubts": listed(&loose.doubts),
        "actions": listed(&loose.actions),
        "unlisted": loose.unlisted,
    })
}

fn listed(attempts: &[Attempt]) -> Value {
    let told = attempts.iter().map(|it| {
        json!({
            "seq": it.seq,
            "at": it.at,
            "record": it.record,
            "fence": it.fence,
            "operation": it.operation,
        })
    });
    told.collect()
}

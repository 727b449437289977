//! Keys that contain the attempt number.

use super::Slot;
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::{Kind, Piece, Project},
};

/// Names that frameworks use for the attempt number.
const COUNTS: [&str; 12] = [
    "*attemptsmade",
    "*request.retries",
    "*retry_count",
    "*retrycount",
    "->attempts()",
    "*attempt_number",
    "*attemptnumber",
    "*getattempt()",
    "*.attempt)",
    "*receivecount",
    "*receive_count",
    "*delivery_count",
];
/// Names of variables that usually hold an attempt number.
const COUNTERS: [&str; 11] = [
    "attempt",
    "attempts",
    "attemptno",
    "attemptcount",
    "attemptnum",
    "attemptindex",
    "retries",
    "tries",
    "tryno",
    "retrynumber",
    "retryindex",
];

/// Position where the attempt number becomes part of the key.
/// It is recognised by the names above, or as the counter in the head of a retry loop.
pub(super) fn counted(
    project: &Project,
    file: usize,
    slot: &Slot,
    pieces: &[Piece],
) -> Option<usize> {
    let source = &project.files[file];
    let own = pieces.iter().filter(|piece| {
        piece.file == file
            && piece.span.len() < 200
            && matches!(piece.kind, Kind::Own | Kind::Variable)
    });
    let mut own = own.collect::<Vec<_>>();
    let says = |piece: &&&Piece| {
        names::has_any(source.low(&piece.span), &COUNTS) || counter(source, &piece.span)
    };
    if let Some(piece) = own.iter().find(says) {
        return Some(piece.span.start);
    }
    let rerun = project.rerun(file, slot.item)?;
    let around = &source.items[rerun.around];
    if around.role != Role::Loop {
        let executed = |piece: &&&Piece| source.names(&piece.span).contains(&"executions".into());
        return own.iter().find(executed).map(|piece| piece.span.start);
    }
    let head = source.names(&around.value);
    let counts = |name: &String| {
        head.contains(name)
            && (names::has_any(name, &["attempt", "*tries", "*retr", "try"])
                || matches!(name.as_str(), "i" | "n" | "j" | "count"))
    };
    own.retain(|piece| around.holds(&piece.span));
    let found = own
        .iter()
        .find(|piece| source.names(&piece.span).iter().any(counts));
    found.map(|piece| piece.span.start)
}

/// Whether a byte range contains a counter by itself: `attempt`, but not `attempt.id` or `attempt(…)`.
fn counter(file: &File, span: &Span) -> bool {
    let names = file.names(span);
    let parts: Vec<&str> = file
        .low(span)
        .split_inclusive(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    parts.iter().enumerate().any(|(at, part)| {
        let word = names::fold(part);
        let next = parts.get(at + 1).copied().unwrap_or_default();
        let goes_on = part.ends_with(['.', '(', '[', ':'])
            || part.ends_with('-') && next == ">"
            || part.ends_with('?') && next == ".";
        COUNTERS.contains(&word.as_str()) && names.contains(&word) && !goes_on
    })
}

//! Printing that does not fail: a reader that has seen enough, such as `head`, is no reason to stop half-way.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Prints a line.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints without ending the line, at once.
pub(crate) fn show(text: impl Display) {
    let mut stdout = io::stdout();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints a line about what is wrong.
pub(crate) fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// So many of these.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

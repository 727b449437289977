//! Printing that ignores write errors: a reader that closes the pipe early, such as `head`, must not stop a command half-way.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Prints a line.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints without a newline, and flushes.
pub(crate) fn show(text: impl Display) {
    let mut stdout = io::stdout();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints an error line to standard error.
pub(crate) fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A count with its noun, in the plural where needed.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

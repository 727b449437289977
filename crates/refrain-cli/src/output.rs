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

/// Escapes control characters, except those that are `kept`, and marks that reverse the direction of text,
/// so that text from a server or a client cannot control the terminal.
pub(crate) fn harmless(text: &str, kept: &[char]) -> String {
    let is_direction = |char| matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match (char.is_control() || is_direction(char)) && !kept.contains(&char) {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
    }
    shown
}

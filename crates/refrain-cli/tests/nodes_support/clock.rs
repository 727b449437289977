//! A node with a wrong clock: an `LD_PRELOAD` library, compiled with the C compiler that Rust links with.

use std::{fs, path::Path, process::Command};

use crate::{proxy::Setup, wire::Message};

const SOURCE: &str = include_str!("clock.c");
const DAY: i64 = 24 * 60 * 60;

/// The same node with a clock that is ahead by this many seconds, or behind if negative.
pub(crate) fn with_clock_off(setup: Setup, seconds: i64) -> Setup {
    let (source, library) = (setup.file("clock.c"), setup.file("clock.so"));
    fs::write(&source, SOURCE).unwrap();
    compile(&source, &library);
    setup
        .variable("LD_PRELOAD", library.display())
        .variable("REFRAIN_TEST_CLOCK_OFF", seconds)
}

fn compile(source: &Path, library: &Path) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-O1", "-o"]);
    let output = command.arg(library).arg(source).output();
    let output = output.unwrap_or_else(|error| {
        panic!("this test needs a C compiler to build a wrong clock; {compiler}: {error}")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler}: {said}");
}

/// How many seconds one node's clock is ahead of the other's, according to their `Date` headers.
pub(crate) fn ahead(node: &Message, other: &Message) -> i64 {
    let difference = seconds(node) - seconds(other);
    // A step over midnight is not a step back by a day.
    (difference + DAY + DAY / 2).rem_euclid(DAY) - DAY / 2
}

/// Seconds since midnight in a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn seconds(answer: &Message) -> i64 {
    let date = answer.header("date").expect("a date");
    let time = date.split(' ').nth(4).expect("a time of day");
    time.split(':').fold(0, |sum, part| {
        sum * 60 + part.parse::<i64>().expect("a number")
    })
}

//! What the demo shows.

use std::{fmt::Write as _, io::IsTerminal as _, net::SocketAddr};

use crate::output;

pub(super) const INTRODUCTION: &str = "\
Thirty buyers pay 20 each to a service that charges first and then cuts a third of its answers and is too slow
with another third. A buyer without an answer sends the same payment with the same key again.
";

/// What came of one burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) payments: usize,
    pub(super) charges: usize,
    pub(super) charged_twice: usize,
    pub(super) lost: usize,
    pub(super) unanswered: usize,
}

impl Run {
    /// Every payment was charged once, and every buyer knows it.
    pub(super) fn is_good(&self) -> bool {
        self.charges == self.payments
            && [self.charged_twice, self.lost, self.unanswered] == [0, 0, 0]
    }
}

/// Both ledgers side by side, and what that means.
pub(super) fn comparison(bare: &Run, guarded: &Run) -> String {
    let rows = [
        ("payments", bare.payments, guarded.payments),
        ("charges", bare.charges, guarded.charges),
        ("charged twice", bare.charged_twice, guarded.charged_twice),
        ("lost", bare.lost, guarded.lost),
        ("without an answer", bare.unanswered, guarded.unanswered),
    ];
    let mut text = format!("\n{:17}  without Refrain  with Refrain\n", "");
    for (name, bare, guarded) in rows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:17}  {bare:>15}  {guarded:>12}");
    }
    let verdict = verdict(guarded);
    let (twice, payments) = (bare.charged_twice, bare.payments);
    text + &format!(
        "\nwithout Refrain: {twice} of {payments} payments were charged twice\nwith Refrain: {verdict}"
    )
}

fn verdict(guarded: &Run) -> String {
    if guarded.is_good() {
        return "every payment was charged once, although the service was killed in the middle"
            .into();
    }
    let Run {
        charged_twice,
        lost,
        unanswered,
        ..
    } = guarded;
    format!(
        "FAILED: {charged_twice} charged twice, {lost} lost, {unanswered} without an answer; please report this"
    )
}

/// What to try by hand.
pub(super) fn by_hand(address: SocketAddr) -> String {
    let pay = format!("curl -i http://{address}/v1/payments -H 'Idempotency-Key:");
    format!(
        "
The guarded service stays up at http://{address} for you to try:

  {pay} mine' -d amount=20
      201: paid. Send it again: the same answer with Idempotent-Replayed: true, and no second charge.
  {pay} mine' -d amount=99
      422 key-reused: the same key for another payment.
  {pay} cut-3' -d amount=20
      502 outcome-unknown: charged, then the answer was cut. Two seconds later the same line has found out.
  curl http://{address}/.well-known/refrain/problems/outcome-unknown
      The page that a problem's `type` leads to.

Ctrl-C ends it."
    )
}

/// One line that tells how a burst gets on: it changes in place on a terminal, and is only begun and ended elsewhere.
#[derive(Debug)]
pub(super) struct Line {
    name: &'static str,
    is_live: bool,
}

impl Line {
    pub(super) fn new(name: &'static str) -> Self {
        let is_live = std::io::stdout().is_terminal();
        Self { name, is_live }
    }

    pub(super) fn show(&self, state: &str) {
        if self.is_live {
            output::show(format_args!("\r\x1b[K{}: {state}", self.name));
        }
    }

    /// Something that happened, in a line of its own.
    pub(super) fn say(&self, what: &str) {
        let clear = if self.is_live { "\r\x1b[K" } else { "" };
        output::say(format_args!("{clear}{}: {what}", self.name));
    }

    pub(super) fn end(&self, state: &str) {
        self.say(state);
    }
}

#[cfg(test)]
mod tests {
    //! The exit code of the demo stands for the whole project in `.ci/run`: only a spotless run may pass.

    use super::*;

    const GOOD: Run = Run {
        payments: 30,
        charges: 30,
        charged_twice: 0,
        lost: 0,
        unanswered: 0,
    };

    #[test]
    fn only_a_spotless_run_is_good() {
        let cases = [
            (GOOD, true),
            (
                Run {
                    charges: 31,
                    ..GOOD
                },
                false,
            ),
            (
                Run {
                    charged_twice: 1,
                    ..GOOD
                },
                false,
            ),
            (Run { lost: 1, ..GOOD }, false),
            (
                Run {
                    unanswered: 1,
                    ..GOOD
                },
                false,
            ),
        ];
        for (run, is_good) in cases {
            assert_eq!(run.is_good(), is_good, "{run:?}");
            assert_eq!(comparison(&GOOD, &run).contains("FAILED"), !is_good);
        }
    }
}

//! The output of the demo.

use std::{fmt::Write as _, io::IsTerminal as _};

use super::{api::Api, proxy::Proxy, trouble::Trouble};
use crate::output;

pub(super) const INTRODUCTION: &str = "\
24 buyers pay 20 each to an API that loses some responses after it has charged, sends others too late,
and resets some connections before it charges. A buyer without a response retries the payment with the same key.
The policy of the proxy has a probe, GET /v1/payments?key={key}, which finds the result of a payment whose response was lost.
";

/// The result of one burst.
#[derive(Debug, Clone)]
pub(super) struct Run(pub(super) Vec<Payment>);

/// The result of one payment.
#[derive(Debug, Clone)]
pub(super) struct Payment {
    pub(super) key: String,
    pub(super) trouble: Option<Trouble>,
    pub(super) charges: usize,
    /// Whether its buyer received a success.
    pub(super) is_answered: bool,
}

impl Run {
    /// Whether every payment was charged once, and every buyer received a success.
    pub(super) fn is_good(&self) -> bool {
        self.0.iter().all(|it| it.charges == 1 && it.is_answered)
    }

    fn charges(&self) -> usize {
        self.0.iter().map(|payment| payment.charges).sum()
    }

    fn count(&self, is_so: fn(&Payment) -> bool) -> usize {
        self.0.iter().filter(|payment| is_so(payment)).count()
    }

    fn charged_twice(&self) -> usize {
        self.count(|payment| payment.charges > 1)
    }

    fn lost(&self) -> usize {
        self.count(|payment| payment.charges == 0)
    }

    fn unanswered(&self) -> usize {
        self.count(|payment| !payment.is_answered)
    }
}

/// Both ledgers side by side, with the totals and a verdict.
pub(super) fn comparison(direct: &Run, guarded: &Run) -> String {
    let mut text = format!(
        "\n{}\n",
        row("THE LEDGERS", "FAULT", "DIRECTLY", "THROUGH REFRAIN")
    );
    // Writing to a string does not fail.
    for (left, right) in direct.0.iter().zip(&guarded.0) {
        let trouble = left.trouble.map_or("", Trouble::describe);
        let _ = writeln!(
            text,
            "{}",
            row(&left.key, trouble, &amounts(left), &amounts(right))
        );
    }
    text.push('\n');
    for (name, count) in [
        ("charges", Run::charges as fn(&Run) -> usize),
        ("charged twice", Run::charged_twice),
        ("lost", Run::lost),
        ("no response", Run::unanswered),
    ] {
        let (left, right) = (count(direct).to_string(), count(guarded).to_string());
        let _ = writeln!(text, "{}", row(name, "", &left, &right));
    }
    let (twice, payments) = (direct.charged_twice(), direct.0.len());
    text + &format!(
        "\ndirectly: {twice} of {payments} payments were charged twice\nthrough Refrain: {}",
        verdict(guarded)
    )
}

/// The same comparison as JSON.
pub(super) fn json(direct: &Run, guarded: &Run) -> serde_json::Value {
    let counts = |run: &Run| {
        serde_json::json!({
            "payments": run.0.len(),
            "charges": run.charges(),
            "charged_twice": run.charged_twice(),
            "lost": run.lost(),
            "unanswered": run.unanswered(),
        })
    };
    let payments = direct.0.iter().zip(&guarded.0).map(|(left, right)| {
        serde_json::json!({
            "key": left.key,
            "trouble": left.trouble.map(Trouble::describe),
            "charges_directly": left.charges,
            "charges_through_refrain": right.charges,
        })
    });
    serde_json::json!({
        "good": guarded.is_good(),
        "directly": counts(direct),
        "through_refrain": counts(guarded),
        "payments": payments.collect::<Vec<_>>(),
    })
}

fn row(name: &str, trouble: &str, left: &str, right: &str) -> String {
    let row = format!("{name:17}  {trouble:11}  {left:15}  {right}");
    row.trim_end().into()
}

/// The charges of one payment, as in the ledger.
fn amounts(payment: &Payment) -> String {
    let amounts = vec!["20"; payment.charges].join(" + ");
    match payment.charges {
        0 => "LOST".into(),
        1 => amounts,
        _ => amounts + "  TWICE",
    }
}

fn verdict(guarded: &Run) -> String {
    if guarded.is_good() {
        return "every payment was charged once, although the proxy was killed during the run"
            .into();
    }
    let (twice, lost, unanswered) = (
        guarded.charged_twice(),
        guarded.lost(),
        guarded.unanswered(),
    );
    format!(
        "FAILED: {twice} charged twice, {lost} lost, {unanswered} without a response; please report this"
    )
}

/// Commands to try by hand.
pub(super) fn by_hand(proxy: &Proxy, api: &Api) -> String {
    let (proxy, admin, api) = (proxy.address(), proxy.admin(), api.address());
    let pay = format!("curl -i http://{proxy}/v1/payments -H 'Idempotency-Key:");
    format!(
        "
The demo stays up for you to try:

  the API          http://{api}
  through Refrain  http://{proxy}
  dashboard        http://{admin}

  {pay} mine' -d amount=20
      201: paid. Send it again: the same response with Idempotent-Replayed: true, and no second charge.
  {pay} mine' -d amount=99
      422 key-reused: the same key for another payment.
  {pay} lose-1' -d amount=20
      502 outcome-unknown: charged, and the response was lost. Send it again after two seconds: the probe has found the charge.
  curl -i http://{api}/v1/payments -H 'Idempotency-Key: other' -d amount=20
      The API without Refrain: every request charges.
  curl http://{api}/v1/payments
      The ledger, with every charge so far.
  curl http://{admin}/metrics
      The metrics of the proxy.

Press Ctrl-C to stop."
    )
}

/// The progress line of a burst: updated in place on a terminal, and printed only for events elsewhere.
#[derive(Debug)]
pub(super) struct Line {
    name: &'static str,
    is_live: bool,
    is_quiet: bool,
}

impl Line {
    pub(super) fn new(name: &'static str, is_quiet: bool) -> Self {
        Self {
            name,
            is_live: std::io::stdout().is_terminal() && !is_quiet,
            is_quiet,
        }
    }

    pub(super) fn show(&self, state: &str) {
        if self.is_live {
            output::show(format_args!("\r\x1b[K{}: {state}", self.name));
        }
    }

    /// Prints an event on its own line.
    pub(super) fn say(&self, what: &str) {
        if self.is_quiet {
            return;
        }
        let clear = if self.is_live { "\r\x1b[K" } else { "" };
        output::say(format_args!("{clear}{}: {what}", self.name));
    }
}

#[cfg(test)]
mod tests {
    //! `.ci/run` relies on the exit code of the demo: only a run without any fault may pass.

    use super::*;

    fn run(charges: usize, is_answered: bool) -> Run {
        let payment = |charges, is_answered| Payment {
            key: "payment-1".into(),
            trouble: Some(Trouble::Lost),
            charges,
            is_answered,
        };
        Run(vec![payment(1, true), payment(charges, is_answered)])
    }

    #[test]
    fn only_a_run_without_errors_is_good() {
        let good = run(1, true);
        for (charges, is_answered, is_good, words) in [
            (1, true, true, "every payment was charged once"),
            (2, true, false, "1 charged twice, 0 lost, 0 without"),
            (0, true, false, "0 charged twice, 1 lost, 0 without"),
            (1, false, false, "0 charged twice, 0 lost, 1 without"),
        ] {
            let run = run(charges, is_answered);
            assert_eq!(run.is_good(), is_good, "{run:?}");
            let text = comparison(&good, &run);
            assert!(text.contains(words), "{text}");
            assert_eq!(text.contains("FAILED"), !is_good, "{text}");
        }
    }

    #[test]
    fn report_shows_both_ledgers_side_by_side() {
        let text = comparison(&run(2, true), &run(1, true));
        let row = "payment-1          answer lost  20 + 20  TWICE   20";
        assert!(text.lines().any(|line| line == row), "{text}");
        assert!(text.contains("directly: 1 of 2 payments were charged twice"));
    }
}

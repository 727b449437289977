//! Results of a benchmark: printed at once, and collected for the JSON file.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{Setup, machine::Machine};

/// The figures of one benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    name: &'static str,
    command: String,
    figures: Vec<Figure>,
    targets: Vec<Target>,
}

/// A measured figure, from one or several rounds.
#[derive(Debug, Serialize)]
struct Figure {
    what: String,
    unit: &'static str,
    median: f64,
    min: f64,
    max: f64,
    /// Median absolute deviation, relative to the median.
    noise: f64,
    rounds: Vec<f64>,
}

/// A target and the measured value.
#[derive(Debug, Serialize)]
struct Target {
    what: String,
    /// Median of the rounds.
    value: f64,
    need: Need,
    is_reached: bool,
    /// How many rounds reach the target on their own; if they disagree, the machine was too noisy.
    rounds_reached: usize,
    rounds: usize,
}

/// A limit for a measured value.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Need {
    AtLeast(f64),
    AtMost(f64),
}

impl Report {
    /// Starts a report with the command and the machine.
    pub(crate) fn start(name: &'static str, setup: &Setup, machine: &Machine) -> Self {
        let options = &setup.options;
        let command = format!(
            "cargo xtask bench {name} --seconds {} --rounds {}{}",
            options.seconds,
            options.rounds,
            extra(name, options)
        );
        println!("== {name}\n$ {command}");
        println!(
            "{} cores, Linux {}, {} at {}; 1 KiB write + fdatasync, one thread: {:.0}/s, p99 {:.2} ms",
            machine.cores,
            machine.kernel,
            machine.file_system,
            setup.root.display(),
            machine.syncs_per_second,
            machine.sync_p99_ms
        );
        Self {
            name,
            command,
            figures: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// Records and prints a figure.
    pub(crate) fn figure(&mut self, what: impl Into<String>, unit: &'static str, rounds: &[f64]) {
        let figure = Figure::new(what.into(), unit, rounds);
        figure.print();
        self.figures.push(figure);
    }

    /// Compares the median of the rounds with a target, and counts the rounds that reach it.
    pub(crate) fn target(&mut self, what: impl Into<String>, rounds: &[f64], need: Need) {
        let target = Target::new(what.into(), rounds, need);
        target.print();
        self.targets.push(target);
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.targets.iter().all(|target| target.is_reached)
    }
}

/// Options that only this benchmark uses.
fn extra(name: &str, options: &crate::Options) -> String {
    let tasks: Vec<_> = options.tasks.iter().map(usize::to_string).collect();
    match name {
        "store" => format!(" --tasks {}", tasks.join(",")),
        "messages" | "postgres-sweep" | "store-million" => {
            format!(" --records {}", options.records)
        }
        _ => String::new(),
    }
}

impl Figure {
    fn new(what: String, unit: &'static str, rounds: &[f64]) -> Self {
        let middle = median(rounds);
        let distances: Vec<_> = rounds.iter().map(|value| (value - middle).abs()).collect();
        Self {
            what,
            unit,
            median: middle,
            min: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            max: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            noise: match middle {
                0.0 => 0.0,
                _ => median(&distances) / middle,
            },
            rounds: rounds.to_vec(),
        }
    }

    fn print(&self) {
        let Self {
            what, unit, median, ..
        } = self;
        match self.rounds.len() {
            1 => println!("  {what}: {} {unit}", short(*median)),
            _ => println!(
                "  {what}: {} {unit} ({}–{}, noise {:.0}%, {} rounds)",
                short(*median),
                short(self.min),
                short(self.max),
                self.noise * 100.0,
                self.rounds.len()
            ),
        }
    }
}

impl Target {
    fn new(what: String, rounds: &[f64], need: Need) -> Self {
        let value = median(rounds);
        Self {
            what,
            value,
            need,
            is_reached: need.is_met(value),
            rounds_reached: rounds.iter().filter(|value| need.is_met(**value)).count(),
            rounds: rounds.len(),
        }
    }

    fn print(&self) {
        let (sign, limit) = match self.need {
            Need::AtLeast(limit) => ("≥", limit),
            Need::AtMost(limit) => ("≤", limit),
        };
        let verdict = if self.is_reached { "reached" } else { "missed" };
        let value = short(self.value);
        print!(
            "  => {}: {value}, to reach {sign} {limit}: {verdict}",
            self.what
        );
        match self.rounds {
            1 => println!(),
            rounds => println!(" ({} of {rounds} rounds reach it)", self.rounds_reached),
        }
    }
}

impl Need {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }
}

/// The median; for an even number of values, the mean of the two middle ones.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        _ if sorted.is_empty() => f64::NAN,
        0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// Formats a value with its significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

/// Writes all reports as JSON.
pub(crate) fn write_json(path: &Path, machine: &Machine, reports: &[Report]) -> Result<()> {
    let all = serde_json::json!({ "machine": machine, "benchmarks": reports });
    let text = serde_json::to_string_pretty(&all)? + "\n";
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    //! A ratio is only as good as its arithmetic.

    use super::*;

    #[track_caller]
    fn check(rounds: &[f64], median: f64, noise: f64) {
        let figure = Figure::new("it".into(), "op/s", rounds);
        assert_eq!((figure.median, figure.noise), (median, noise));
    }

    #[test]
    fn one_bad_round_moves_neither_median_nor_noise_much() {
        check(&[100.0], 100.0, 0.0);
        check(&[90.0, 1.0, 100.0, 110.0, 100.0], 100.0, 0.1);
        check(&[4.0, 1.0, 2.0, 2.0], 2.0, 0.25);
    }

    #[test]
    fn a_limit_itself_is_reached() {
        for (need, value, is_met) in [
            (Need::AtLeast(0.6), 0.6, true),
            (Need::AtLeast(0.6), 0.59, false),
            (Need::AtMost(5.0), 5.0, true),
            (Need::AtMost(5.0), 5.01, false),
            (Need::AtLeast(0.6), f64::NAN, false),
        ] {
            assert_eq!(need.is_met(value), is_met, "{need:?} {value}");
        }
    }
}

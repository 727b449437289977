//! `refrain lint`: finds code that may execute an effect twice, or lose it.

use std::{path::PathBuf, process::ExitCode};

use clap::ValueEnum;
use refrain_lint::{Limits, Report, Rule, Rules, Severity, explanation, lint};
use serde_json::json;

use crate::output::say;

mod format;

/// Exit code: a finding of the `--fail-on` severity or worse.
const FOUND: u8 = 1;
/// Exit code: a path does not exist, or a rule is unknown.
const USAGE: u8 = 2;
/// Exit code: an invalid rule file.
const CONFIGURATION: u8 = 64;

/// Find code that may do the same thing twice, or lose it, when something is tried again
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain lint src                      everything under src that git does not ignore
  refrain lint . --fail-on error        exit 1 only for what is certainly wrong
  refrain lint . --format sarif > lint.sarif
                                        for code scanners; `github` annotates pull requests
  refrain lint . --rules lint-rules     with rules of your own, from every .toml there
  refrain lint --list                   all rules
  refrain lint --explain key-per-attempt
                                        what a rule means, with wrong and right code

Reads Python, JavaScript, TypeScript, Go, Java, Rust, Ruby and PHP, and SQL for which columns are unique.
A comment on the line or above it allows a finding: refrain-lint: allow(RULE) REASON

Exit codes: 0 nothing found, 1 something was, 2 wrong usage, 64 a bad rule.")]
pub(crate) struct Args {
    /// Files and folders
    #[arg(required_unless_present_any = ["list", "explain"])]
    paths: Vec<PathBuf>,
    /// A folder with rules of your own; may be given several times
    #[arg(long, value_name = "DIR")]
    rules: Vec<PathBuf>,
    /// Only this rule; may be given several times
    #[arg(long = "rule", value_name = "RULE")]
    only: Vec<String>,
    /// From which severity on a finding is a failure
    #[arg(long, value_name = "SEVERITY", default_value = "warning")]
    fail_on: FailOn,
    /// How findings are printed
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        conflicts_with = "json"
    )]
    format: Format,
    /// Print JSON: the same as --format json
    #[arg(long)]
    json: bool,
    /// Look at code that tests other code, too
    #[arg(long)]
    tests: bool,
    /// Look at what .gitignore names and at folders of others' code, too
    #[arg(long)]
    ignored: bool,
    /// The largest file that is looked at, in bytes
    #[arg(long, value_name = "N", default_value_t = Limits::default().file_bytes_max)]
    file_bytes_max: u64,
    /// Print all rules and stop
    #[arg(long)]
    list: bool,
    /// Explain a rule and stop
    #[arg(long, value_name = "RULE")]
    explain: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
    Sarif,
    Github,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FailOn {
    Error,
    Warning,
    Hint,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let rules = match rules(args) {
        Ok(rules) => rules,
        Err((code, why)) => {
            crate::output::complain(format_args!("refrain: {why}"));
            return Ok(code.into());
        }
    };
    if args.list {
        list(args, &rules);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(rule) = args.explain.as_ref().and_then(|id| rules.find(id)) {
        explain(args, rule);
        return Ok(ExitCode::SUCCESS);
    }
    let limits = Limits {
        file_bytes_max: args.file_bytes_max,
        tests: args.tests,
        ignored: args.ignored,
        ..Limits::default()
    };
    let report = match lint(&args.paths, &rules, &limits) {
        Ok(report) => report,
        Err(error) => {
            crate::output::complain(format_args!("refrain: {error}"));
            return Ok(USAGE.into());
        }
    };
    print(args, &rules, &report);
    let worst = match args.fail_on {
        FailOn::Error => Severity::Error,
        FailOn::Warning => Severity::Warning,
        FailOn::Hint => Severity::Hint,
    };
    let failed = report.count(worst) > 0;
    Ok(if failed {
        FOUND.into()
    } else {
        ExitCode::SUCCESS
    })
}

/// The rules in force, or the exit code and message of an error.
fn rules(args: &Args) -> Result<Rules, (u8, String)> {
    let bad = |error: refrain_lint::BadRule| (CONFIGURATION, error.to_string());
    let mut rules = Rules::built_in().map_err(bad)?;
    for folder in &args.rules {
        rules.add_folder(folder).map_err(bad)?;
    }
    let named = args.only.iter().chain(&args.explain);
    if let Some(unknown) = named.into_iter().find(|id| rules.find(id).is_none()) {
        let why = format!("there is no rule {unknown}; `refrain lint --list` has all");
        return Err((USAGE, why));
    }
    if !args.only.is_empty() {
        rules.rules.retain(|rule| args.only.contains(&rule.id));
    }
    Ok(rules)
}

fn list(args: &Args, rules: &Rules) {
    if is_json(args) {
        let all: Vec<_> = rules.rules.iter().map(format::rule).collect();
        return say(format_args!("{:#}", json!({ "rules": all })));
    }
    let width = rules.rules.iter().map(|rule| rule.id.len()).max();
    let width = width.unwrap_or(0);
    for rule in &rules.rules {
        say(format_args!(
            "{:width$}  {:7}  {}",
            rule.id, rule.severity, rule.title
        ));
    }
}

fn explain(args: &Args, rule: &Rule) {
    if is_json(args) {
        return say(format_args!("{:#}", format::rule(rule)));
    }
    say(explanation(rule));
}

fn is_json(args: &Args) -> bool {
    args.json || matches!(args.format, Format::Json)
}

fn print(args: &Args, rules: &Rules, report: &Report) {
    let format = if args.json { Format::Json } else { args.format };
    match format {
        Format::Text => format::text(report),
        Format::Json => say(format_args!("{:#}", json!(report))),
        Format::Sarif => say(format_args!("{:#}", format::sarif(rules, report))),
        Format::Github => format::github(report),
    }
    if !matches!(format, Format::Text | Format::Json) {
        for note in &report.notes {
            crate::output::complain(format_args!("refrain: {note}"));
        }
    }
}

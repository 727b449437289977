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

/// Find code that may execute an effect twice, or lose it, on a retry
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain lint src                      lint everything under src that git does not ignore
  refrain lint . --fail-on error        exit 1 only for errors
  refrain lint . --format sarif > lint.sarif
                                        print SARIF for code scanners; `github` annotates pull requests
  refrain lint . --rules lint-rules     add your own rules, from every .toml in the folder
  refrain lint --list                   list all rules
  refrain lint --explain key-per-attempt
                                        explain a rule, with wrong and right code

Reads Python, JavaScript, TypeScript, Go, Java, Rust, Ruby and PHP, and SQL to find unique columns.
A comment on the line or above it allows a finding: refrain-lint: allow(RULE) REASON

Exit codes: 0 no findings, 1 findings, 2 wrong usage, 64 invalid rule.")]
pub(crate) struct Args {
    /// Files and folders to lint
    #[arg(required_unless_present_any = ["list", "explain"])]
    paths: Vec<PathBuf>,
    /// Folder with your own rules; may be given several times
    #[arg(long, value_name = "DIR")]
    rules: Vec<PathBuf>,
    /// Apply only this rule; may be given several times
    #[arg(long = "rule", value_name = "RULE")]
    only: Vec<String>,
    /// Lowest severity that makes the command fail
    #[arg(long, value_name = "SEVERITY", default_value = "warning")]
    fail_on: FailOn,
    /// Output format
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
    /// Also lint test code
    #[arg(long)]
    tests: bool,
    /// Also lint ignored files (.gitignore) and folders of third-party code
    #[arg(long)]
    ignored: bool,
    /// Maximum size of a file, in bytes; larger files are skipped
    #[arg(long, value_name = "N", default_value_t = Limits::default().file_bytes_max)]
    file_bytes_max: u64,
    /// Print all rules, and exit
    #[arg(long)]
    list: bool,
    /// Explain a rule, and exit
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
        let why = format!("unknown rule {unknown}; `refrain lint --list` prints all rules");
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

//! `refrain explain`: prints a problem's documentation page, without a browser or a network.

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use refrain::http::Code;
use serde_json::{Value, json};

use crate::output::say;

/// Explain a problem code: what happened, and what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain explain                       list all codes with their advice
  refrain explain outcome-unknown       print the page of a code
  refrain explain in-flight --json      the same as JSON

The code is the member `code` of a response with the type application/problem+json.
Exit codes: 0 printed, 2 wrong usage or unknown code.")]
pub(crate) struct Args {
    /// Code to explain [default: list all codes]
    #[arg(value_parser = codes().try_map(find), hide_possible_values = true)]
    code: Option<Code>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match (args.code, args.json) {
        (Some(code), false) => say(code.page().trim_end()),
        (Some(code), true) => say(format_args!("{:#}", with_page(code))),
        (None, false) => say(listed()),
        (None, true) => {
            let codes: Vec<_> = Code::ALL.into_iter().map(in_brief).collect();
            say(format_args!("{:#}", json!({ "codes": codes })));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All codes as possible values, so that clap can suggest the nearest one and shells can complete it.
fn codes() -> PossibleValuesParser {
    PossibleValuesParser::new(Code::ALL.map(Code::code))
}

fn find(name: String) -> Result<Code, String> {
    let mut codes = Code::ALL.into_iter();
    let code = codes.find(|code| code.code() == name);
    code.ok_or_else(|| format!("unknown problem code {name}"))
}

fn listed() -> String {
    let width = Code::ALL.map(|code| code.code().len()).into_iter().max();
    let width = width.unwrap_or(0);
    let row = |code: &str, advice: &str, title: &str| format!("{code:width$}  {advice:9}  {title}");
    let mut rows = vec![row("CODE", "ADVICE", "WHAT HAPPENED")];
    rows.extend(Code::ALL.map(|code| row(code.code(), code.advice(), title(code))));
    rows.push("\n`refrain explain CODE` prints the page of a code.".into());
    rows.join("\n")
}

/// The heading of the problem's page.
fn title(code: Code) -> &'static str {
    let heading = code.page().lines().next().unwrap_or_default();
    heading.trim_start_matches("# ")
}

fn in_brief(code: Code) -> Value {
    json!({ "code": code.code(), "advice": code.advice(), "title": title(code) })
}

fn with_page(code: Code) -> Value {
    let mut json = in_brief(code);
    json["page"] = code.page().into();
    json
}

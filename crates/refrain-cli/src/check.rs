//! `refrain check`: reads a file as the proxy would, shows what it comes to, and reviews it.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use refrain::policy::{File, Settings, Warning};
use serde_json::json;

use crate::output::{say, show};

mod review;
mod summary;

use review::{Form, Review};

/// Something required is open.
const OPEN: u8 = 1;
/// A file that cannot be used.
const BAD_FILE: u8 = 64;

/// Check refrain.toml and show what it comes to, or review it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain check refrain.toml            what is guarded, and how
  refrain check refrain.toml --json     the same for a program
  refrain check refrain.toml --report   the review: what is done, and what is still open
  refrain check refrain.toml --report=html --verify-report verify.json > review.html
                                        the same as a page, with the last report of `refrain verify --json`
  refrain check refrain.toml --report=json --openapi api/openapi.yaml
                                        with this description of the API, instead of the one beside the file
  refrain check --schema > refrain.schema.json
                                        the JSON schema of the file, for editors

Only what matters most is in the table; --json shows every setting of every operation as it is resolved.

Exit codes: 0 the file is fine, and nothing required is open in the review; 1 something is; 2 wrong usage;
64 a file is bad or missing.")]
pub(crate) struct Args {
    /// The file to check
    #[arg(required_unless_present = "schema")]
    file: Option<PathBuf>,
    /// Print JSON: the resolved settings, the review, or what is wrong
    #[arg(long)]
    json: bool,
    /// Print the JSON schema of the file and stop
    #[arg(long, conflicts_with_all = ["file", "json", "report"])]
    schema: bool,
    /// Review the actual state instead: each line is done, open or not applicable
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "md")]
    report: Option<Form>,
    /// A report of `refrain verify --json`; may be given several times [default: verify.json beside the file, if it is there]
    #[arg(long = "verify-report", value_name = "FILE", requires = "report")]
    verify_reports: Vec<PathBuf>,
    /// The API's description, OpenAPI 3 or Swagger 2: are all its mutating paths in the file, as what they are? [default: the only one beside or below the file]
    #[arg(long, value_name = "FILE", requires = "report")]
    openapi: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(file) = args.file.as_deref().filter(|_| !args.schema) else {
        say(serde_json::to_string_pretty(&File::schema())?);
        return Ok(ExitCode::SUCCESS);
    };
    let settings = match File::read(file) {
        Ok(settings) => settings,
        Err(error) => {
            crate::output::complain(&error);
            if args.json || args.report == Some(Form::Json) {
                say(serde_json::to_string_pretty(&json!({ "error": error }))?);
            }
            return Ok(BAD_FILE.into());
        }
    };
    match args.report {
        Some(form) => Ok(reviewed(args, form, file, settings)),
        None if args.json => {
            say(serde_json::to_string_pretty(&Checked::of(&settings))?);
            Ok(ExitCode::SUCCESS)
        }
        None => {
            say(summary::summary(&file.display().to_string(), &settings));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn reviewed(args: &Args, form: Form, file: &Path, settings: Settings) -> ExitCode {
    match Review::of(
        file,
        settings,
        &args.verify_reports,
        args.openapi.as_deref(),
    ) {
        Ok(review) => {
            let form = if args.json { Form::Json } else { form };
            show(review.written(form));
            if review.is_open() {
                OPEN.into()
            } else {
                ExitCode::SUCCESS
            }
        }
        Err(why) => {
            crate::output::complain(format_args!("refrain: {why}"));
            BAD_FILE.into()
        }
    }
}

/// What the file comes to, for a program.
#[derive(serde::Serialize)]
struct Checked<'s> {
    #[serde(flatten)]
    settings: &'s Settings,
    warnings: Vec<Warning>,
}

impl<'s> Checked<'s> {
    fn of(settings: &'s Settings) -> Self {
        let warnings = settings.warnings().collect();
        Self { settings, warnings }
    }
}

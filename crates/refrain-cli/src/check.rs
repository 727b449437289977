//! `refrain check`: parses a file as the proxy does, prints the resulting settings, and reviews it.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use refrain::policy::{File, Secrets, Settings, Warning};
use serde_json::json;

use crate::{
    output::say,
    settings::{self, Flags, Loaded, Supports},
};

#[cfg(feature = "tools")]
mod review;
mod summary;

/// Exit code: the review has an open required line, or this build lacks a broker.
const OPEN: u8 = 1;
/// Exit code: the file is invalid or missing.
const BAD_FILE: u8 = 64;

/// Check refrain.toml and print the resolved settings, or review it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain check                         print what the refrain.toml of this folder guards, and how
  refrain check payments.toml           check another file
  refrain check refrain.toml --json     print every resolved setting as JSON
  refrain check refrain.toml --report   review the file: what is done, and what is open
  refrain check refrain.toml --report=html --verify-report verify.json > review.html
                                        the review as an HTML page, with the last report of `refrain verify --json`
  refrain check refrain.toml --report=json --openapi api/openapi.yaml
                                        the review with this API description, instead of the one beside the file
  refrain check --schema > refrain.schema.json
                                        print the JSON schema of the file, for editors

The table shows the most important settings; --json prints every resolved setting of every operation.

REFRAIN_STORE and the other variables of `refrain proxy` override the file here, too.

Exit codes: 0 the file is valid, and the review has no open required line; 1 it has one, or this build lacks a broker
that the file names; 2 wrong usage; 64 a file is invalid or missing.")]
pub(crate) struct Args {
    /// File to check [default: refrain.toml]
    file: Option<PathBuf>,
    /// Print JSON: the resolved settings, the review, or the errors
    #[arg(long)]
    json: bool,
    /// Print the JSON schema of the file, and exit
    #[arg(long, conflicts_with_all = ["file", "json", "report"])]
    schema: bool,
    /// Print a review instead: each line is done, open or not applicable
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "md")]
    report: Option<Form>,
    /// Report of `refrain verify --json`; may be given several times [default: verify.json beside the file, if it exists]
    #[arg(long = "verify-report", value_name = "FILE", requires = "report")]
    verify_reports: Vec<PathBuf>,
    /// OpenAPI 3 or Swagger 2 description: check that the file has all its mutating paths, with the right class [default: the only one beside or below the file]
    #[arg(long, value_name = "FILE", requires = "report")]
    openapi: Option<PathBuf>,
}

/// The form in which a review is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Markdown
    Md,
    /// Self-contained HTML page
    Html,
    /// JSON
    Json,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.schema {
        say(serde_json::to_string_pretty(&File::schema())?);
        return Ok(ExitCode::SUCCESS);
    }
    let is_json = args.json || args.report == Some(Form::Json);
    let Some(file) = settings::config(args.file.as_deref()) else {
        let message = format!(
            "no {} in this folder; pass the file, or create one with `refrain init`",
            settings::CONFIG
        );
        crate::output::complain(format_args!("refrain: {message}"));
        if is_json {
            say(serde_json::to_string_pretty(&json!({ "error": message }))?);
        }
        return Ok(BAD_FILE.into());
    };
    let loaded = match settings::load(Some(&file), Secrets::All, &Flags::default()) {
        Ok(loaded) => loaded,
        Err(failure) => {
            crate::output::complain(&failure);
            if is_json {
                say(serde_json::to_string_pretty(
                    &json!({ "error": failure.json() }),
                )?);
            }
            return Ok(BAD_FILE.into());
        }
    };
    if let Some(form) = args.report {
        return Ok(reviewed(args, form, &file, loaded.settings));
    }
    let (told, is_whole) = checked(args, &file, &loaded, refrain_brokers::check_support)?;
    say(told);
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => OPEN.into(),
    })
}

/// The resolved settings as text, and whether this build supports every broker that the file names.
fn checked(
    args: &Args,
    file: &Path,
    loaded: &Loaded,
    supports: Supports,
) -> anyhow::Result<(String, bool)> {
    let missing = missing_brokers(&loaded.settings, supports);
    let told = match args.json {
        true => serde_json::to_string_pretty(&Checked::of(&loaded.settings, &missing))?,
        false => summary::summary(&file.display().to_string(), loaded, &missing),
    };
    Ok((told, missing.is_empty()))
}

/// The workers and relays that this build cannot run, each with how to build one that can.
fn missing_brokers(settings: &Settings, supports: Supports) -> Vec<String> {
    let workers = settings.workers.iter();
    let workers = workers.map(|it| (format!("worker {}", it.name), &it.source));
    let relays = settings.relays.iter();
    let relays = relays.map(|it| (format!("relay {}", it.name), &it.to));
    let brokers = workers.chain(relays);
    brokers
        .filter_map(|(name, address)| {
            let error = supports(address).err()?;
            Some(format!("{name}: {error}"))
        })
        .collect()
}

#[cfg(not(feature = "tools"))]
fn reviewed(args: &Args, _: Form, _: &Path, _: Settings) -> ExitCode {
    let Args {
        verify_reports: _,
        openapi: _,
        ..
    } = args;
    crate::left_out::refused()
}

#[cfg(feature = "tools")]
fn reviewed(args: &Args, form: Form, file: &Path, settings: Settings) -> ExitCode {
    match review::Review::of(
        file,
        settings,
        &args.verify_reports,
        args.openapi.as_deref(),
    ) {
        Ok(review) => {
            let form = if args.json { Form::Json } else { form };
            crate::output::show(review.written(form));
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

/// The resolved settings, for `--json`.
#[derive(serde::Serialize)]
struct Checked<'s> {
    #[serde(flatten)]
    settings: &'s Settings,
    warnings: Vec<Warning>,
    /// Workers and relays whose broker this build does not support.
    unsupported: &'s [String],
}

impl<'s> Checked<'s> {
    fn of(settings: &'s Settings, unsupported: &'s [String]) -> Self {
        Self {
            settings,
            warnings: settings.warnings().collect(),
            unsupported,
        }
    }
}

#[cfg(test)]
mod tests {
    //! A file must not pass the check if the build cannot run its workers.

    use refrain::{Error, ErrorKind, policy::Address};

    use super::*;

    const FILE: &str = "[[worker]]\nname = \"a\"\nqueue = \"q\"\nsource = \"kafka://h\"\ndeliver = \"http://h/\"\n\
                        [[worker]]\nname = \"b\"\nqueue = \"q\"\nsource = \"redis://h\"\ndeliver = \"http://h/\"\n\
                        [[relay]]\noutbox = \"postgres://h/x\"\nto = \"kafka://u\"\n";

    fn without_kafka(address: &Address) -> refrain::Result<()> {
        match address.scheme() {
            "kafka" => Err(Error::new(ErrorKind::Unsupported, "built without Kafka")),
            _ => Ok(()),
        }
    }

    fn check(flags: &[&str], supports: Supports) -> (String, bool) {
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            args: Args,
        }
        let flags = ["check"].iter().chain(flags);
        let args = <Alone as clap::Parser>::parse_from(flags).args;
        let loaded = Loaded {
            settings: File::parse(FILE, "refrain.toml").unwrap(),
            overrides: Vec::new(),
        };
        checked(&args, Path::new("refrain.toml"), &loaded, supports).unwrap()
    }

    #[test]
    fn workers_and_relays_whose_broker_the_build_lacks_are_listed() {
        let (told, is_whole) = check(&[], without_kafka);
        let listed = "This build cannot run it:\n  worker a: built without Kafka\n  relay relay: built without Kafka\n";
        assert!(told.contains(listed), "{told}");
        assert!(!is_whole);
        let (told, is_whole) = check(&["--json"], without_kafka);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let listed = [
            "worker a: built without Kafka",
            "relay relay: built without Kafka",
        ];
        assert_eq!(told["unsupported"], json!(listed));
        assert!(!is_whole);
    }

    #[test]
    fn a_build_with_every_broker_can_run_the_file() {
        let (told, is_whole) = check(&[], |_| Ok(()));
        assert!(is_whole && !told.contains("This build"), "{told}");
        let (told, is_whole) = check(&["--json"], |_| Ok(()));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert!(is_whole && told["unsupported"] == json!([]), "{told}");
    }
}

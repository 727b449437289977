//! `refrain init`: a guide through the six stages that asks only for what it cannot detect.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use crate::{
    find::FoundFiles,
    output::{counted, say},
    plan::{self, Outcome},
    proxy::Failure,
};

mod answers;
mod ask;
mod existing;
mod files;
mod source;
mod stages;

use answers::Answers;
use ask::{Interview, NoAnswer};
use existing::Existing;
use source::Source;
use stages::{Choices, Given, Ground, Tell};

/// The standard name of the key header.
const KEY_HEADER: &str = "Idempotency-Key";

const USAGE: u8 = 2;
const BAD_CONFIGURATION: u8 = 64;
/// The exit code that shells use after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Set up a project in six stages: write the policy, the page for clients and the test plan
///
/// Reads the folder: API descriptions, source code, and deployment files that name databases.
/// Asks only for what it cannot detect, and explains the trade-off of each choice in one sentence.
/// Answers are stored: an interrupted run can be resumed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain init                       set up the project in this folder
  refrain init services/payments     set up the project in another folder
  refrain init --yes --json          no questions: detected values, and defaults for the rest
  refrain init --yes --upstream http://127.0.0.1:8080 --store postgres://refrain@db/refrain

Writes refrain.toml, verify.toml and the pages \"Retrying safely\"; keeps your edits.
Exit codes: 0 done, 2 wrong usage, 64 invalid file, 69 file not writable, 130 interrupted (the answers are kept).")]
pub(crate) struct Args {
    /// Folder of the project
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Use the default for every question
    #[arg(long)]
    yes: bool,
    /// Print the choices and the written files as JSON; needs --yes
    #[arg(long, requires = "yes")]
    json: bool,
    /// Discard the stored answers
    #[arg(long)]
    restart: bool,
    /// API description, instead of the detected one
    #[arg(long, value_name = "FILE")]
    openapi: Option<PathBuf>,
    /// Service to guard
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Store for keys and outcomes
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let has_person = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !args.yes && !has_person {
        crate::output::complain(format_args!(
            "refrain init: no terminal to ask questions on; pass --yes to use the defaults"
        ));
        return Ok(ExitCode::from(USAGE));
    }
    match guide(args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(NoAnswer::Stopped) => {
            say(format!(
                "\nStopped. Your answers are kept in {}; `refrain init {}` resumes here.",
                args.folder.join(answers::FILE).display(),
                quoted(&args.folder)
            ));
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(NoAnswer::Failed(error)) => {
            crate::output::complain(format_args!("refrain init: {error:#}"));
            Ok(ExitCode::from(BAD_CONFIGURATION))
        }
        Err(NoAnswer::NotWritten(failure)) => {
            crate::output::complain(&failure);
            Ok(failure.code())
        }
    }
}

fn guide(args: &Args) -> Result<(), NoAnswer> {
    let folder = args.folder.as_path();
    if !folder.is_dir() {
        let missing = anyhow::anyhow!("{} is not a folder", folder.display());
        return Err(missing.into());
    }
    // Before the first question, so that a failure does not waste the answers.
    plan::check_place(folder)?;
    check_writable(folder)?;
    let given = Given {
        openapi: args.openapi.clone(),
        upstream: args.upstream.clone(),
        store: args.store.clone(),
    };
    given.check()?;
    let answers = match args.restart {
        true => Answers::restart(folder)?,
        false => Answers::resume(folder)?,
    };
    let tell = Teller(args.json);
    if answers.len() > 0 {
        tell.say(&format!(
            "Resuming with {} from an earlier run; pass --restart to start over.",
            counted(answers.len(), "answer")
        ));
    }
    let mut interview = Interview {
        answers,
        takes_defaults: args.yes,
    };
    let ground = Ground {
        folder,
        found: FoundFiles::in_folder(folder),
        given,
        existing: Existing::read(folder)?,
        source: source::lint_folder(folder),
    };
    if ground.found.is_cut {
        tell.say("The folder is too large to search completely; pass the API description with --openapi if it was missed.");
    }
    let choices = stages::walk(&ground, &mut interview, &tell)?;
    let written = files::write(folder, &choices)?;
    interview.answers.forget()?;
    conclude(args, folder, &choices, ground.source, &written);
    Ok(())
}

/// Checks that files can be written to the folder, before any question.
fn check_writable(folder: &Path) -> Result<(), Failure> {
    let tried = tempfile::tempfile_in(folder).map(drop);
    tried.map_err(|error| {
        let why = std::io::Error::from(error.kind());
        Failure::Unavailable(format!("cannot write to {}: {why}", folder.display()))
    })
}

fn conclude(args: &Args, folder: &Path, choices: &Choices, source: Source, written: &[Outcome]) {
    if args.json {
        let report = json!({"choices": choices, "source": source.cut(), "written": written});
        say(report);
        return;
    }
    say("");
    written.iter().for_each(say);
    say(format!("\nIn the source: {}", source.describe(folder)));
    say("\nNext:");
    let next = next(folder, choices, &source);
    let width = next.iter().map(|(line, _)| line.chars().count()).max();
    for (line, does) in &next {
        say(format!("  {line:0$}   {does}", width.unwrap_or_default()));
    }
}

/// The commands to run next, each with its purpose.
fn next(folder: &Path, choices: &Choices, source: &Source) -> Vec<(String, &'static str)> {
    let file = |name: &str| quoted(&folder.join(name));
    let policy = file(plan::POLICY);
    let mut next = vec![(
        format!("refrain check {policy}"),
        "print what is guarded, and how",
    )];
    if !source.is_clean() {
        next.push((
            format!("refrain lint {}", quoted(folder)),
            "find code that may execute an effect twice",
        ));
    }
    let has_requests = choices.requests.is_some() || choices.messages.is_none();
    if has_requests {
        next.push((
            format!("refrain proxy --config {policy}"),
            "start the proxy",
        ));
    }
    if choices.messages.is_some() {
        next.push((
            format!("refrain work --config {policy}"),
            "start the workers",
        ));
    }
    if choices.requests.is_some() {
        let (plan, report) = (file(plan::VERIFY), file("verify.json"));
        next.push((
            format!("refrain verify --config {plan} --json {report}"),
            "test it, once service and proxy run",
        ));
    }
    next.push((
        format!("refrain check {policy} --report"),
        "review what is done, and what is open",
    ));
    next
}

/// A path quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "/._-+@:".contains(it);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Prints progress, unless the output is JSON.
struct Teller(bool);

impl Tell for Teller {
    fn stage(&self, number: usize, title: &str) {
        self.say(&format!("\n{number} of 6  {title}"));
    }

    fn say(&self, line: &str) {
        if !self.0 {
            say(line);
        }
    }
}

//! `refrain init`: a guide through the six stages that asks only for what it cannot detect.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use crate::{
    find::Found,
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

/// Go through the six stages, and write the policy, the page for clients and the tester's plan
///
/// Reads what is in the folder: descriptions of APIs, source, what names databases.
/// Asks only what it cannot find out, and says in a sentence what each choice costs.
/// What was answered is kept: stopping and going on later loses nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain init                       in the project's folder
  refrain init services/payments     in another
  refrain init --yes --json          without questions: what can be found out, defaults for the rest
  refrain init --yes --upstream http://127.0.0.1:8080 --store postgres://refrain@db/refrain

Writes refrain.toml, verify.toml and the pages \"Retrying safely\"; what you changed by hand stays.
Exit codes: 0 done, 2 wrong usage, 64 a file cannot be used, 69 one cannot be written, 130 stopped (the answers are kept).")]
pub(crate) struct Args {
    /// The project's folder
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Take the default for every question
    #[arg(long)]
    yes: bool,
    /// Print what was chosen and written as JSON; needs --yes
    #[arg(long, requires = "yes")]
    json: bool,
    /// Forget what was answered before
    #[arg(long)]
    restart: bool,
    /// The description of the API, instead of what is found
    #[arg(long, value_name = "FILE")]
    openapi: Option<PathBuf>,
    /// The service to be guarded
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where keys and outcomes are kept
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let has_person = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !args.yes && !has_person {
        crate::output::complain(format_args!(
            "refrain init: there is nobody to ask on this input; add --yes to take the defaults"
        ));
        return Ok(ExitCode::from(USAGE));
    }
    match guide(args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(NoAnswer::Stopped) => {
            say(format!(
                "\nStopped. Your answers are kept in {}; `refrain init {}` goes on from here.",
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
        let missing = anyhow::anyhow!("{} is no folder", folder.display());
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
            "Going on: {} from before; --restart begins anew.",
            counted(answers.len(), "answer")
        ));
    }
    let mut interview = Interview {
        answers,
        takes_defaults: args.yes,
    };
    let ground = Ground {
        folder,
        found: Found::in_folder(folder),
        given,
        existing: Existing::read(folder)?,
        source: source::of(folder),
    };
    if ground.found.is_cut {
        tell.say("The folder holds more than was looked at; name the description with --openapi if it was missed.");
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
        Failure::Unavailable(format!("{} cannot be written to: {why}", folder.display()))
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
    say(format!("\nIn the source: {}", source.told(folder)));
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
        "what is guarded, and how",
    )];
    if !source.is_clean() {
        next.push((
            format!("refrain lint {}", quoted(folder)),
            "code that may do the same thing twice",
        ));
    }
    let has_requests = choices.requests.is_some() || choices.messages.is_none();
    if has_requests {
        next.push((format!("refrain proxy --config {policy}"), "start it"));
    }
    if choices.messages.is_some() {
        next.push((
            format!("refrain work --config {policy}"),
            "deliver messages, each once",
        ));
    }
    if choices.requests.is_some() {
        let (plan, report) = (file(plan::VERIFY), file("verify.json"));
        next.push((
            format!("refrain verify --config {plan} --json {report}"),
            "prove it, once service and proxy are up",
        ));
    }
    next.push((
        format!("refrain check {policy} --report"),
        "what is done, and what is still open",
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

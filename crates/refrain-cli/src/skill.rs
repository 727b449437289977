//! `refrain skill`: the six stages as a skill for assistants, embedded in the binary.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::builder::PossibleValuesParser;

use crate::output::{say, show};

/// Exit code: a file was changed by hand.
const CHANGED: u8 = 1;
/// Exit code: the folder cannot be written to.
const UNAVAILABLE: u8 = 69;

/// The name of the skill's folder.
const NAME: &str = "refrain";

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        /// Each file, by its path in the skill's folder.
        const FILES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../skills/refrain/", $path)))),*];
    };
}

files![
    "SKILL.md",
    "references/answers.md",
    "references/keys.md",
    "references/policy.md",
    "references/verify.md",
];

/// Install or show the skill that guides an assistant through the six stages
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain skill install .claude/skills   write .claude/skills/refrain/SKILL.md and its references
  refrain skill show                     print SKILL.md
  refrain skill show references/keys.md  print another file of the skill

Exit codes: 0 done, 1 a file was changed by hand and nothing was written, 2 wrong usage, 69 folder not writable.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write the skill into a folder of skills
    Install {
        /// Folder of skills; the skill is written to its subfolder `refrain`
        dir: PathBuf,
        /// Overwrite files that differ
        #[arg(long)]
        force: bool,
    },
    /// Print a file of the skill
    Show {
        /// File to print
        #[arg(default_value = "SKILL.md", value_parser = PossibleValuesParser::new(FILES.iter().map(|(path, _)| *path)))]
        file: String,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Install { dir, force } => Ok(install(&dir.join(NAME), *force)),
        Command::Show { file } => {
            let found = FILES.iter().find(|(path, _)| path == file);
            show(found.map_or("", |(_, text)| text));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes the skill's files; writes none if one was changed by hand, because assistants would follow a mixed skill, too.
fn install(folder: &Path, force: bool) -> ExitCode {
    let unavailable = |path: &Path, error: &dyn std::fmt::Display| {
        crate::output::complain(format_args!("refrain: {}: {error}", path.display()));
        ExitCode::from(UNAVAILABLE)
    };
    let mut stale = Vec::new();
    let mut changed = Vec::new();
    for (name, text) in FILES {
        let path = folder.join(name);
        match fs::read(&path) {
            Ok(is) if is == text.as_bytes() => {}
            Ok(_) => {
                changed.push(path.display().to_string());
                stale.push((path, text));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => stale.push((path, text)),
            Err(error) => return unavailable(&path, &error),
        }
    }
    if !changed.is_empty() && !force {
        let files = changed.join(", ");
        crate::output::complain(format_args!(
            "refrain: differs from the skill of this version: {files}\n  nothing was written; pass --force to overwrite"
        ));
        return ExitCode::from(CHANGED);
    }
    for (path, text) in &stale {
        let parent = path.parent().unwrap_or(folder);
        if let Err(error) = fs::create_dir_all(parent).and_then(|()| fs::write(path, text)) {
            return unavailable(path, &error);
        }
        say(format!("wrote {}", path.display()));
    }
    if stale.is_empty() {
        say(format!("{} is up to date", folder.display()));
    }
    ExitCode::SUCCESS
}

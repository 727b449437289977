//! Tests that no page shows a command line that the command rejects:
//! every command line on every page, and in the command's own help, is parsed with the real parser.

use clap::{Command, CommandFactory as _, Parser as _, error::ErrorKind};

use super::{
    pages,
    shell::{arguments, joined},
};
use crate::Cli;

/// Languages of code blocks that show typed commands.
const TYPED: [&str; 4] = ["sh", "console", "bash", ""];

/// Why a command line is rejected, or `None` if it parses or does not run `refrain`.
fn fault(line: &str) -> Option<String> {
    let arguments = match arguments(line)? {
        Ok(arguments) => arguments,
        Err(fault) => return Some(fault),
    };
    // `…` stands for arguments that are left out, or for one argument: either reading may parse.
    let without = arguments.iter().filter(|word| *word != "…");
    rejected(without).and_then(|_| rejected(arguments.iter()))
}

/// The parser's error for these arguments, if any.
fn rejected<'a>(arguments: impl Iterator<Item = &'a String>) -> Option<String> {
    let error = Cli::try_parse_from(arguments).err()?;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        _ => Some(error.to_string()),
    }
}

#[test]
fn command_lines_in_code_blocks_parse() {
    let mut parsed = 0;
    let mut faults = Vec::new();
    for page in pages::all() {
        for block in page
            .blocks()
            .iter()
            .filter(|it| TYPED.contains(&it.language))
        {
            let is_typed = |line: &str| block.language != "console" || line.starts_with("$ ");
            for (at, line) in joined(&block.lines) {
                if !is_typed(&line) {
                    continue;
                }
                parsed += usize::from(arguments(&line).is_some());
                let fault = fault(&line);
                faults
                    .extend(fault.map(|it| format!("{} + {}: {line}\n{it}", block.place, at + 1)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(parsed > 20, "only {parsed} command lines were found");
}

/// Running text shows parts of command lines, so only the names of commands and flags are checked.
#[test]
fn commands_and_flags_in_running_text_exist() {
    let command = Cli::command();
    let mut faults = Vec::new();
    for page in pages::all() {
        for (at, line) in page.text.lines().enumerate() {
            let spans = line.split('`').skip(1).step_by(2);
            for span in spans.filter(|span| span.starts_with("refrain ")) {
                let fault = unknown(&command, span);
                faults.extend(fault.map(|it| format!("{}:{}: `{span}`: {it}", page.path, at + 1)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The first name in `refrain NAME --flag …` that the command does not have.
fn unknown(command: &Command, span: &str) -> Option<String> {
    let mut words = span.split_whitespace().skip(1);
    let name = words.next()?;
    if name.starts_with('-')
        || name
            .chars()
            .all(|it| it.is_uppercase() || !it.is_alphabetic())
    {
        return None;
    }
    let Some(command) = command.find_subcommand(name) else {
        return Some(format!("there is no command {name}"));
    };
    let flags = words.filter_map(|word| word.trim_start_matches('[').strip_prefix("--"));
    let flags = flags.map(|flag| flag.split(['=', ']', ',', '|']).next().unwrap_or_default());
    let mut strangers = flags.filter(|flag| !has_flag(command, flag));
    strangers.next().map(|flag| format!("there is no --{flag}"))
}

fn has_flag(command: &Command, flag: &str) -> bool {
    let is_own = |it: &clap::Arg| it.get_long() == Some(flag);
    let below = |it: &Command| has_flag(it, flag);
    flag == "help" || command.get_arguments().any(is_own) || command.get_subcommands().any(below)
}

#[test]
fn the_examples_of_every_help_parse() {
    let mut faults = Vec::new();
    let mut commands = vec![Cli::command()];
    let mut parsed = 0;
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().cloned());
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let lines: Vec<&str> = help.lines().map(without_remark).collect();
        for (_, line) in joined(&lines) {
            parsed += usize::from(arguments(&line).is_some());
            let fault = fault(&line);
            faults.extend(fault.map(|it| format!("help of {}: {line}\n{it}", command.get_name())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(parsed > 20, "only {parsed} examples were found");
}

/// The example without its remark, which comes after two spaces or more.
fn without_remark(line: &str) -> &str {
    let text = line.trim_start();
    text.split_once("  ").map_or(text, |(line, _)| line)
}

#[test]
fn unknown_commands_and_flags_are_reported() {
    let command = Cli::command();
    let wrong = [
        "refrain proxy --upstreem http://127.0.0.1:1",
        "refrain verify --op",
        "refrain records show",
        "refrain explain no-such-code",
    ];
    for line in wrong {
        assert!(fault(line).is_some(), "{line}");
    }
    for span in ["refrain proxi", "refrain check --shema"] {
        assert!(unknown(&command, span).is_some(), "{span}");
    }
    for span in [
        "refrain check --schema",
        "refrain records resolve --never-happened",
        "refrain COMMAND",
    ] {
        assert_eq!(unknown(&command, span), None);
    }
}

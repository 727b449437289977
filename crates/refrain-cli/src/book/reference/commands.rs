//! Every command with its help text.

use clap::{Command, CommandFactory as _};

use super::check;
use crate::Cli;

#[test]
fn commands() {
    let mut root = Cli::command().bin_name("refrain");
    root.build();
    let mut page = String::from(
        "# Commands\n\n\
         The output of `refrain COMMAND --help`.\n\
         Exit codes are the same for all commands: 0 success, 1 a check found problems, 2 wrong usage, 64 bad configuration, 69 a required resource is unavailable.\n\n",
    );
    add(&mut root, "refrain", &mut page);
    check("commands.md", &(page.trim_end().to_owned() + "\n"));
}

/// Adds the command's help, followed by that of its subcommands.
fn add(command: &mut Command, name: &str, page: &mut String) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    *page += &format!("## {name}\n\n```text\n{}\n```\n\n", lines.join("\n"));
    let below = command.get_subcommands_mut();
    for command in below.filter(|it| !it.is_hide_set() && it.get_name() != "help") {
        let name = format!("{name} {}", command.get_name());
        add(command, &name, page);
    }
    let end = page.trim_end().len();
    page.truncate(end);
    *page += "\n\n";
}

//! `refrain completions`: prints a shell completion script.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::output::show;

/// Print a shell completion script
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain completions bash > ~/.local/share/bash-completion/completions/refrain
  refrain completions zsh > \"${fpath[1]}/_refrain\"
  refrain completions fish > ~/.config/fish/completions/refrain.fish

Exit codes: 0 printed, 2 wrong usage.")]
pub(crate) struct Args {
    /// Shell to complete in
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    show(String::from_utf8(script)?);
    Ok(ExitCode::SUCCESS)
}

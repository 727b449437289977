//! A developer command that this build leaves out: accepts any arguments, and prints how to rebuild.

use std::{ffi::OsString, process::ExitCode};

/// Exit code: this build lacks the command.
const LEFT_OUT: u8 = 64;

/// Not in this build, which has no developer tools
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// The arguments of the command, which are ignored
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Args { arguments: _ } = args;
    Ok(refused())
}

/// Prints how to build with the developer tools.
pub(crate) fn refused() -> ExitCode {
    crate::output::complain(
        "refrain: built without developer tools; rebuild with: cargo build --release --features lint,tools",
    );
    LEFT_OUT.into()
}

#[cfg(test)]
mod tests {
    //! A script that calls a developer tool of a build without them must fail with the reason, not with a usage error.

    use clap::Parser as _;

    use crate::Cli;

    #[test]
    #[cfg(not(feature = "tools"))]
    fn tools_accept_the_arguments_that_they_would_have() {
        for line in [
            &["refrain", "verify", "http://127.0.0.1:1", "--op", "POST /a"][..],
            &["refrain", "plan", "--help"],
            &["refrain", "init"],
            &["refrain", "chaos", "--upstream=http://127.0.0.1:1", "-x"],
        ] {
            assert!(Cli::try_parse_from(line).is_ok(), "{line:?}");
        }
    }

    #[test]
    #[cfg(not(feature = "lint"))]
    fn lint_accepts_the_arguments_that_it_would_have() {
        let parsed = Cli::try_parse_from(["refrain", "lint", "--json", "src"]);
        assert!(parsed.is_ok(), "{:?}", parsed.err());
    }
}

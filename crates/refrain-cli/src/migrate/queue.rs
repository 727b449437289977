//! `refrain migrate --queue`: the table of the message queues in a database.

use std::process::ExitCode;

use refrain::policy::Address;
use refrain_brokers::postgres::{SCHEMA, migrate};

use crate::output::say;

const USAGE: u8 = 2;
const UNREACHABLE: u8 = 69;

/// Prints the statements, or creates the table at this address.
pub(super) fn run(address: Option<Address>, is_printed: bool) -> anyhow::Result<ExitCode> {
    if is_printed {
        say(SCHEMA.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(address) = address else {
        crate::output::complain(format_args!(
            "refrain migrate: no database; pass --store postgres://USER@HOST/DATABASE, or --print"
        ));
        return Ok(USAGE.into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(match runtime.block_on(migrate(address.as_str())) {
        Ok(is_new) => {
            let what = if is_new { "created" } else { "already exists" };
            say(format_args!("queues at {address}: table {what}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            crate::output::complain(format_args!("refrain migrate: {error}"));
            UNREACHABLE.into()
        }
    })
}

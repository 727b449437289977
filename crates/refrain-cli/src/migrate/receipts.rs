//! `refrain migrate --receipts`: the table to which exactly-once operations write, in the service's own database.

use std::process::ExitCode;

use refrain::policy::Address;
use refrain_stores::receipts::{PostgresReceipts, SCHEMA};

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
    let making = async {
        PostgresReceipts::migrate(&address).await?;
        // Checks the table, because another one of that name may exist already.
        PostgresReceipts::open(&address).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(match runtime.block_on(making) {
        Ok(_) => {
            say(format_args!("receipts at {address}: table is ready"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            crate::output::complain(format_args!("refrain migrate: {error}"));
            UNREACHABLE.into()
        }
    })
}

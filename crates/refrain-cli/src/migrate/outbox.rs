//! `refrain migrate --outbox`: the table to which services append messages, in the service's own database.

use std::process::ExitCode;

use refrain::policy::Address;
use refrain_stores::postgres::{PostgresOutbox, outbox};

use crate::output::{say, show};

const USAGE: u8 = 2;
const UNREACHABLE: u8 = 69;

/// Prints the statements, or creates the table at this address.
pub(super) fn run(address: Option<Address>, is_printed: bool) -> anyhow::Result<ExitCode> {
    if is_printed {
        return Ok(
            match outbox::script(address.as_ref().map(Address::as_str)) {
                Ok(script) => {
                    show(script);
                    ExitCode::SUCCESS
                }
                Err(error) => refused(&error.to_string(), UNREACHABLE),
            },
        );
    }
    let Some(address) = address else {
        let message = "no database; pass --store postgres://USER@HOST/DATABASE, or --print";
        return Ok(refused(message, USAGE));
    };
    let making = async {
        outbox::migrate(address.as_str()).await?;
        // Checks the table, because another one of that name may exist already.
        PostgresOutbox::open(address.as_str()).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(match runtime.block_on(making) {
        Ok(_) => {
            say(format_args!("outbox at {address}: table is ready"));
            ExitCode::SUCCESS
        }
        Err(error) => refused(&error.to_string(), UNREACHABLE),
    })
}

fn refused(message: &str, code: u8) -> ExitCode {
    crate::output::complain(format_args!("refrain migrate: {message}"));
    code.into()
}

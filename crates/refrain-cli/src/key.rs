//! `refrain key`: derives a key from an entity, an action and parameters, as the library and the proxy do.

use std::{
    fs,
    io::{self, Read},
    process::ExitCode,
};

use clap::builder::NonEmptyStringValueParser;
use refrain::{
    Key,
    fingerprint::{JSON_DEPTH_MAX, Json, NotJson},
};
use serde_json::json;

use crate::output::say;

const USAGE: u8 = 2;

/// The most bytes of parameters that are read: as many as the largest body that a policy allows.
const PARAMS_BYTES_MAX: u64 = 64 << 20;

/// Derive a key from an entity, an action and its parameters
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain key --entity invoice-7 --action pay --params '{\"amount\": 20, \"currency\": \"EUR\"}'
  refrain key --entity invoice-7 --action pay --params @payment.json
  jq .payment order.json | refrain key --entity invoice-7 --action pay --params -

The same entity, action and parameters give the same key on every machine and in every version.
The order of members and the white space in the parameters do not matter.
To send the key: curl -H \"Idempotency-Key: $(refrain key …)\" …

Exit codes: 0 key printed, 2 wrong usage or invalid parameters.")]
pub(crate) struct Args {
    /// Entity that the action is for, such as invoice-7
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    entity: String,
    /// Action, such as pay
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    action: String,
    /// Parameters as JSON; @FILE reads them from a file, - or @- from standard input
    #[arg(long, value_name = "JSON|@FILE|-", allow_negative_numbers = true)]
    params: String,
    /// Also accept parameters that are not JSON, and derive the key from their bytes
    #[arg(long)]
    bytes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    Ok(match derived(args) {
        Ok(text) => {
            say(text);
            ExitCode::SUCCESS
        }
        Err(message) => {
            crate::output::complain(format_args!("refrain key: {message}"));
            if args.json {
                say(format_args!("{:#}", json!({ "error": message })));
            }
            USAGE.into()
        }
    })
}

/// The text to print, or the error about the parameters.
fn derived(args: &Args) -> Result<String, String> {
    let (place, params) = read(&args.params)?;
    let form = match Json::parse(&params) {
        Ok(_) => "json",
        Err(_) if args.bytes => "bytes",
        Err(reason) => return Err(format!("{place} {}", refusal(reason, &params))),
    };
    let key = Key::derive(&args.entity, &args.action, &params);
    if !args.json {
        return Ok(key.as_str().into());
    }
    let json = json!({
        "key": key.as_str(),
        "entity": args.entity,
        "action": args.action,
        "params_form": form,
    });
    Ok(format!("{json:#}"))
}

/// The source of the parameters (for error messages), and their bytes.
fn read(params: &str) -> Result<(String, Vec<u8>), String> {
    let (place, bytes) = match (params, params.strip_prefix('@')) {
        ("-" | "@-", _) => ("stdin".to_owned(), capped(io::stdin().lock())),
        (_, Some(path)) => (path.to_owned(), fs::File::open(path).and_then(capped)),
        _ => ("--params".into(), Ok(params.as_bytes().to_vec())),
    };
    match bytes {
        Ok(bytes) if bytes.len() as u64 > PARAMS_BYTES_MAX => Err(format!(
            "{place} has more than {PARAMS_BYTES_MAX} bytes; derive the key from a digest of the parameters instead"
        )),
        Ok(bytes) => Ok((place, bytes)),
        Err(error) => Err(format!(
            "{place} cannot be read: {error}; check the path after @ and its permissions"
        )),
    }
}

/// Reads up to one byte over the limit, which is enough to detect that the input is too large.
fn capped(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(PARAMS_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Why the parameters are rejected, and what to do.
fn refusal(reason: NotJson, params: &[u8]) -> String {
    let why = match reason {
        NotJson::DuplicateName => {
            return "has an object with a duplicate member; remove one, or use the raw bytes with --bytes"
                .into();
        }
        NotJson::TooDeep => format!("is nested deeper than {JSON_DEPTH_MAX}"),
        _ => match serde_json::from_slice::<serde_json::Value>(params) {
            Err(error) => format!("is not JSON: {error}"),
            Ok(_) => "is not JSON".into(),
        },
    };
    format!("{why}; fix it (a JSON string needs double quotes), or use the raw bytes with --bytes")
}

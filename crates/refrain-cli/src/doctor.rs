//! `refrain doctor`: looks for what will go wrong before it does, and names the fix of each finding.

use std::{fmt, path::PathBuf, process::ExitCode};

use refrain::policy::{Secrets, Settings};
use serde::Serialize;
use serde_json::json;

use crate::{
    client::{ADMIN, Client, RequestError, TlsFlags},
    output::{harmless, say},
    proxy::Failure,
    settings::{self, Flags},
};

mod machine;
mod nodes;
mod store;

/// Exit code: a finding has to be fixed.
const FOUND: u8 = 1;

/// Check store, clocks, permissions, ports and limits, and name the fix of each finding
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain doctor                        check the refrain.toml of this folder, and this machine
  refrain doctor --config payments.toml --json
  refrain doctor --strict               warnings count as errors, for a pipeline
  refrain doctor --node http://10.0.0.5:8378 --node http://10.0.0.6:8378
                                        also compare the versions and clocks of running nodes
  refrain doctor --probe                only ask the running proxy whether it is ready, for a health check

It needs no running proxy, and changes nothing, except that a Redis server without a store gets the mark of one.
The environment variables of `refrain proxy` override the file here, too, and REFRAIN_ADMIN_TOKEN is the token of nodes.

Exit codes: 0 nothing to fix, perhaps warnings, 1 something to fix, 2 wrong usage, 64 bad configuration,
69 with --probe: no proxy answers.")]
pub(crate) struct Args {
    /// Configuration file [default: refrain.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Admin address of a node; may be given several times
    #[arg(long = "node", value_name = "URL")]
    nodes: Vec<String>,
    /// Count warnings as errors
    #[arg(long)]
    strict: bool,
    /// Only ask the admin address whether the proxy is ready
    #[arg(long, conflicts_with_all = ["nodes", "strict"])]
    probe: bool,
    #[command(flatten)]
    tls: TlsFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// What was checked.
    check: &'static str,
    message: String,
    /// How to fix it; empty if nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    fix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Error,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Ok, check, message, "")
    }

    fn warning(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Warning, check, message, fix)
    }

    fn error(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Error, check, message, fix)
    }

    fn new(
        level: Level,
        check: &'static str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (message, fix) = (message.into(), fix.into());
        Self {
            level,
            check,
            message,
            fix,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let message = harmless(&self.message, &[]);
        write!(f, "{level:8} {:11} {message}", self.check)?;
        match self.fix.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{:20} fix: {}", "", harmless(&self.fix, &[])),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if args.probe {
        return Ok(runtime.block_on(probe(args)));
    }
    let settings = match load(args) {
        Ok(settings) => settings,
        Err(failure) => {
            crate::output::complain(&failure);
            if args.json {
                say(format_args!("{:#}", json!({ "error": failure.json() })));
            }
            return Ok(failure.code());
        }
    };
    let findings = runtime.block_on(examine(&settings, args));
    // A connection that still waits for an answer must not delay the end.
    runtime.shutdown_background();
    Ok(report(args, &findings))
}

fn load(args: &Args) -> Result<Settings, Failure> {
    let file = settings::config(args.config.as_deref());
    let loaded = settings::load(file.as_deref(), Secrets::All, &Flags::default())?;
    crate::proxy::admin_tokens(loaded.settings.admin, &loaded.settings.admin_hosts)?;
    Ok(loaded.settings)
}

async fn examine(settings: &Settings, args: &Args) -> Vec<Finding> {
    let file = settings::config(args.config.as_deref());
    let mut findings = vec![match &file {
        Some(file) => Finding::ok("settings", format!("{} is valid", file.display())),
        None => Finding::ok(
            "settings",
            "no refrain.toml in this folder; defaults and environment are checked",
        ),
    }];
    findings.extend(settings.warnings().map(|warning| {
        let message = format!("{}: {}", warning.name, warning.message);
        Finding::warning("settings", message, warning.help)
    }));
    findings.extend(file.as_deref().and_then(machine::readable_secrets));
    findings.extend(store::check(settings).await);
    findings.extend(machine::check(settings).await);
    findings.extend(nodes::check(&args.nodes, &args.tls).await);
    findings
}

fn report(args: &Args, findings: &[Finding]) -> ExitCode {
    if args.json {
        say(format_args!("{:#}", json!({ "findings": findings })));
    } else {
        findings.iter().for_each(say);
    }
    let worst = findings.iter().map(|it| it.level).max();
    let limit = match args.strict {
        true => Level::Warning,
        false => Level::Error,
    };
    match worst {
        Some(worst) if worst >= limit => FOUND.into(),
        _ => ExitCode::SUCCESS,
    }
}

/// Asks the running proxy whether it is ready.
async fn probe(args: &Args) -> ExitCode {
    let ready = async {
        let client = Client::new(&ADMIN, None, None, &args.tls)?;
        client.get("/readyz").await
    };
    let (message, code) = match ready.await {
        Ok(_) => ("ready".to_owned(), ExitCode::SUCCESS),
        // `/readyz` has a reason in place of an error.
        Err(error @ RequestError::Refused { .. }) => (error.to_string(), FOUND.into()),
        Err(error) => (error.to_string(), error.code().into()),
    };
    match args.json {
        true => say(format_args!("{:#}", json!({ "message": message }))),
        false => say(message),
    }
    code
}

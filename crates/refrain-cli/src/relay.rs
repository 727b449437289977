//! `refrain relay`: publishes messages from outboxes, at least once and in order.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use refrain::{
    consume::{Backlog, Outbox, Refused, Relay, RelayCounts},
    policy::{File, RelaySettings, Secrets},
};
use refrain_stores::postgres::PostgresOutbox;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    output::say,
    proxy::{Failure, Signals, log_to_stderr},
    settings::{self, Supports, quoted, value},
};

/// Exit code: a refused message waits for an operator.
const REFUSED: u8 = 1;
/// The most refused messages that are shown.
const SHOWN_MAX: usize = 1_000;

/// Publish the messages of outboxes to brokers
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain relay --outbox postgres://app@db/app --to redis://127.0.0.1:6379
                                        publish until SIGTERM or Ctrl-C
  refrain relay --config refrain.toml   run every [[relay]] of the file
  refrain relay --config refrain.toml --once --json
                                        publish all waiting messages, print the counts, and exit
  refrain relay --config refrain.toml --refused
                                        list the messages that the broker refused
  refrain relay --config refrain.toml --redrive
                                        retry the refused messages

A relay in refrain.toml:
  [[relay]]
  outbox     = \"postgres://app@127.0.0.1/app\"
  to         = \"redis://127.0.0.1:6379\"
  on_refusal = \"hold\"                   # or \"park\": set a refused message aside, and continue its group

`refrain migrate --outbox` creates the table. Several relays may share an outbox: each skips the messages that another one holds.
Each message is published at least once, always with the same id, and in order within its group.
SIGTERM and Ctrl-C let the current messages finish; a second signal stops at once.
Flags override the environment (REFRAIN_OUTBOX, REFRAIN_TO, REFRAIN_LOG; append _FILE to name a file that holds the value),
which overrides the file. If the file has several relays, --outbox and --to need --relay NAME.
Only the secrets of the selected relays are read.

Exit codes: 0 stopped by a signal, or everything is published, 1 refused messages wait for an operator, 2 wrong usage,
64 bad configuration, 69 outbox or broker unreachable.")]
pub(crate) struct Args {
    /// Database with the outbox: postgres://…
    #[arg(long, value_name = "URL")]
    outbox: Option<String>,
    /// Broker to publish to, such as redis://…
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Configuration file with at least one [[relay]] [default: refrain.toml, unless --outbox and --to are given]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Run only this relay; may be given several times
    #[arg(long = "relay", value_name = "NAME")]
    relays: Vec<String>,
    /// Publish all waiting messages, and exit
    #[arg(long)]
    once: bool,
    /// List the messages that the broker refused, and exit
    #[arg(long, conflicts_with = "once")]
    refused: bool,
    /// Mark refused messages for another attempt, and exit
    #[arg(long, conflicts_with_all = ["once", "refused"])]
    redrive: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Log level on standard error: error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        let (relays, file) = chosen(args, refrain_brokers::check_support)?;
        log_to_stderr(&value("log", args.log.as_deref())?)?;
        match (args.refused, args.redrive) {
            (true, _) => show_refused(args, &relays).await,
            (_, true) => redrive(args, &relays).await,
            _ if args.once => once(args, &relays).await,
            _ => relay(args, &relays, file.as_deref()).await,
        }
    });
    // The tasks that still run were told to stop and had their time.
    runtime.shutdown_background();
    Ok(done.unwrap_or_else(|failure: Failure| {
        crate::output::complain(&failure);
        failure.code()
    }))
}

/// The selected relays, and the file that they come from; flags and environment override its settings.
fn chosen(
    args: &Args,
    supports: Supports,
) -> Result<(Vec<RelaySettings>, Option<PathBuf>), Failure> {
    let outbox = value("outbox", args.outbox.as_deref())?;
    let to = value("to", args.to.as_deref())?;
    let named = named(outbox.as_deref(), to.as_deref())?;
    let file = match (&args.config, &outbox, &to) {
        (None, Some(_), Some(_)) => None,
        (config, ..) => settings::config(config.as_deref()),
    };
    let bad = |message: String| Err(Failure::Configuration(format!("refrain: {message}")));
    let overrides = [("outbox", outbox.as_deref()), ("to", to.as_deref())];
    let overrides = overrides
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let overrides: Vec<_> = overrides.collect();
    let (relays, place) = match &file {
        Some(file) => {
            let read = File::read_with(file, Secrets::Relays(&args.relays), &overrides)?;
            (read.relays, file.display().to_string())
        }
        None if overrides.len() == 2 => (named, "the command line".into()),
        None => {
            return bad(
                "no outbox or no broker; pass --outbox postgres://… and --to redis://…, \
                        or --config FILE with a [[relay]]"
                    .into(),
            );
        }
    };
    if relays.is_empty() {
        return bad(format!(
            "{place} has no [[relay]]; `refrain relay --help` shows an example"
        ));
    }
    let names: Vec<_> = relays.iter().map(|relay| relay.name.clone()).collect();
    if let Some(unknown) = args.relays.iter().find(|name| !names.contains(name)) {
        let names = names.join(", ");
        return bad(format!("{place} has no relay `{unknown}`; it has {names}"));
    }
    let is_meant =
        |relay: &RelaySettings| args.relays.is_empty() || args.relays.contains(&relay.name);
    let relays: Vec<_> = relays.into_iter().filter(is_meant).collect();
    if let ([(name, _), ..], [_, _, ..]) = (&overrides[..], &relays[..]) {
        return bad(format!(
            "`{name}` is set by flag or environment, but {place} has several relays; select one with --relay NAME"
        ));
    }
    for relay in &relays {
        supports(&relay.to)?;
    }
    Ok((relays, file))
}

/// The relay from flags and environment. A placeholder address stands for a missing one, so that the other is validated.
fn named(outbox: Option<&str>, to: Option<&str>) -> Result<Vec<RelaySettings>, Failure> {
    let text = format!(
        "[[relay]]\noutbox = {}\nto = {}\n",
        quoted(outbox.unwrap_or("postgres://h/x")),
        quoted(to.unwrap_or("redis://h"))
    );
    Ok(File::parse(&text, "flags and environment")?.relays)
}

struct Ready {
    name: String,
    outbox: Arc<PostgresOutbox>,
    relay: Relay,
}

async fn open(settings: &RelaySettings) -> Result<Ready, Failure> {
    let outbox = open_outbox(settings).await?;
    let publisher = refrain_brokers::open_publisher(settings.to.as_str()).await?;
    let relay = Relay::new(outbox.clone(), publisher).with_options(settings.options());
    Ok(Ready {
        name: settings.name.clone(),
        outbox,
        relay,
    })
}

async fn open_outbox(settings: &RelaySettings) -> Result<Arc<PostgresOutbox>, Failure> {
    Ok(Arc::new(
        PostgresOutbox::open(settings.outbox.as_str()).await?,
    ))
}

/// Publishes until a signal.
async fn relay(
    args: &Args,
    relays: &[RelaySettings],
    file: Option<&Path>,
) -> Result<ExitCode, Failure> {
    let (mut signals, mut told) = (Signals::new()?, Signals::new()?);
    let (stop, stopping) = watch::channel(false);
    let mut running = JoinSet::new();
    let mut ready = Vec::new();
    if let (Some(file), false) = (file, args.json) {
        say(format!("settings from {}", file.display()));
    }
    for settings in relays {
        let it = open(settings).await?;
        let (relay, mut stopping) = (it.relay.clone(), stopping.clone());
        running.spawn(async move {
            let stop = async move {
                // An error means that the sender was dropped, which is a stop, too.
                let _ = stopping.wait_for(|stop| *stop).await;
            };
            relay.run(stop).await;
        });
        ready.push(it);
        if !args.json {
            let RelaySettings {
                name, outbox, to, ..
            } = settings;
            say(format!("relay {name}: from the outbox at {outbox} to {to}"));
        }
    }
    signals.next().await;
    stop.send_replace(true);
    if !args.json {
        say("stopping: no new messages; the current messages finish");
    }
    let insisted = async {
        told.next().await;
        told.next().await;
    };
    tokio::select! {
        () = async { while running.join_next().await.is_some() {} } => {}
        () = insisted => say("stopped at once; the current messages will be published again"),
    }
    let mut reports = Vec::new();
    for it in &ready {
        // The outbox itself may be down, which must not prevent an orderly stop.
        let backlog = it.outbox.backlog().await.ok();
        reports.push((it.name.clone(), it.relay.counters().read(), backlog));
    }
    report(args, &reports);
    Ok(ExitCode::SUCCESS)
}

/// Publishes the messages that are there, and ends.
async fn once(args: &Args, relays: &[RelaySettings]) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new()?;
    let mut reports = Vec::new();
    let mut failed = None;
    for settings in relays {
        let it = open(settings).await?;
        let drained = it.relay.drain_until(signals.next()).await;
        let counts = it.relay.counters().read();
        let backlog = match drained {
            Ok(backlog) => Some(backlog),
            Err(error) => {
                failed.get_or_insert(Failure::Unavailable(format!("relay {}: {error}", it.name)));
                it.outbox.backlog().await.ok()
            }
        };
        reports.push((it.name, counts, backlog));
    }
    report(args, &reports);
    match failed {
        Some(failure) => Err(failure),
        None => Ok(code(
            reports
                .iter()
                .filter_map(|(_, _, backlog)| *backlog)
                .any(|it| it.refused > 0),
        )),
    }
}

fn code(is_refused: bool) -> ExitCode {
    match is_refused {
        true => REFUSED.into(),
        false => ExitCode::SUCCESS,
    }
}

fn report(args: &Args, reports: &[(String, RelayCounts, Option<Backlog>)]) {
    if args.json {
        let relays = reports.iter().map(|(name, counts, backlog)| {
            let told = json!({
                "published": counts.published,
                "failed": counts.failed,
                "refused": counts.refused,
                "given_up": counts.given_up,
                "waiting": backlog.map(|it| it.waiting),
                "waiting_for_a_person": backlog.map(|it| it.refused),
                "oldest_seconds": backlog.and_then(|it| it.oldest).map(|age| age.as_secs()),
            });
            (name.clone(), told)
        });
        return say(json!({ "relays": Value::Object(relays.collect()) }));
    }
    for (name, counts, backlog) in reports {
        let RelayCounts {
            published,
            failed,
            refused,
            ..
        } = counts;
        let left = backlog.map_or("backlog unknown".into(), |it| {
            format!(
                "{} waiting, {} of them for an operator",
                it.waiting + it.refused,
                it.refused
            )
        });
        say(format!(
            "relay {name}: {published} published, {failed} failed attempts, {refused} refused; {left}"
        ));
    }
}

/// Prints the refused messages, which wait for an operator.
async fn show_refused(args: &Args, relays: &[RelaySettings]) -> Result<ExitCode, Failure> {
    let mut all = Vec::new();
    for settings in relays {
        let outbox = open_outbox(settings).await?;
        all.push((settings.name.clone(), outbox.refused(SHOWN_MAX).await?));
    }
    let is_refused = all.iter().any(|(_, refused)| !refused.is_empty());
    if args.json {
        let relays = all.iter().map(|(name, refused)| {
            let refused: Vec<_> = refused.iter().map(refused_json).collect();
            (name.clone(), Value::from(refused))
        });
        say(json!({ "relays": Value::Object(relays.collect()) }));
        return Ok(code(is_refused));
    }
    for (name, refused) in &all {
        say(format!("relay {name}: {} refused", refused.len()));
        for it in refused {
            let group = it.group.as_deref().map_or(String::new(), |group| {
                let waits = if it.is_held { ", which is on hold" } else { "" };
                format!(", group {group}{waits}")
            });
            let seconds = it.age.as_secs();
            say(format!(
                "  {} to {}{group}, {seconds}s old, message {}: {}",
                it.id, it.destination, it.message_id, it.error
            ));
        }
    }
    if is_refused {
        say(
            "\nFix the cause, then run this command with --redrive; or discard a message with DELETE FROM refrain_outbox WHERE id = …",
        );
    }
    Ok(code(is_refused))
}

fn refused_json(refused: &Refused) -> Value {
    json!({
        "id": refused.id,
        "message_id": refused.message_id,
        "destination": refused.destination,
        "group": refused.group,
        "group_waits": refused.is_held,
        "error": refused.error,
        "age_seconds": refused.age.as_secs(),
    })
}

async fn redrive(args: &Args, relays: &[RelaySettings]) -> Result<ExitCode, Failure> {
    let mut counts = serde_json::Map::new();
    for settings in relays {
        let redriven = open_outbox(settings).await?.redrive().await?;
        counts.insert(settings.name.clone(), redriven.into());
        if !args.json {
            let name = &settings.name;
            say(format!(
                "relay {name}: {redriven} marked for another attempt"
            ));
        }
    }
    if args.json {
        say(json!({ "relays": counts }));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    //! A relay on a build without its broker must not start: its messages would stay in the outbox.

    use refrain::{Error, ErrorKind, policy::Address};

    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_relay_whose_broker_the_build_lacks_is_bad_configuration() {
        let words = ["relay", "--outbox", "postgres://h/x", "--to", "kafka://h"];
        let args = <Alone as clap::Parser>::parse_from(words).args;
        let lacks = |_: &Address| Err(Error::new(ErrorKind::Unsupported, "built without Kafka"));
        let failure = chosen(&args, lacks).unwrap_err();
        assert_eq!(failure.to_string(), "refrain: built without Kafka");
        assert_eq!(
            format!("{:?}", failure.code()),
            format!("{:?}", ExitCode::from(64))
        );
        assert!(chosen(&args, |_| Ok(())).is_ok());
    }
}

//! `refrain chaos`: a proxy that injects faults, and the commands that change the rules of a running one.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use refrain_verify::chaos::{Chaos, Rule, Trust, router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    client::{Client, ControlEndpoint, Trouble},
    output::say,
    proxy::{Failure, Signals, listen, log_to_stderr},
};

/// How to reach the control address of a running chaos proxy.
const CONTROL: ControlEndpoint = ControlEndpoint {
    name: "control address",
    flag: "--control",
    setting: "chaos",
    otherwise: "http://127.0.0.1:8380",
    command: "refrain chaos",
};

/// The most bytes of a rules file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Break things on purpose between clients and a service
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  refrain chaos --upstream http://127.0.0.1:3000 --rule 'POST /v1/payments drop-answer 30%'
  refrain chaos add 'POST /v1/* twice:2s x5'      from now on, five times
  refrain chaos list                              the rules, and how often each struck
  refrain chaos log                               what was done to which request
  refrain chaos clear                             from now on everything passes

A rule is ROUTE FAULT [SHARE] [xTIMES]. The first that matches, and whose dice fall so, counts.
  drop-answer      the service runs it and answers; the client's connection is closed instead
  twice, twice:2s  the service gets it twice: at once, or again later
  delay:500ms      the request is held up            delay-answer:500ms  its answer is
  cut:100          the answer ends at byte 100       slow:1KiB           it trickles, per second
  reset-before     the client sees a reset, the service nothing
  reset-after      the client sees a reset, the service runs it
  reorder          held back until another one has overtaken it, or a second has passed (reorder:5s)

With the same --seed the same requests of a rule are struck, in the order in which they come.
Exit codes: 0 fine, 1 refused, 2 wrong usage, 64 a bad rule or upstream, 69 an address cannot be had or reached."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The service, such as http://127.0.0.1:3000 or https://staging.example
    #[arg(long, value_name = "URL", required = true)]
    upstream: Option<String>,
    /// The certificates of the authorities to trust, in PEM [default: those that the machine trusts]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Do not check who answers with TLS
    #[arg(long)]
    insecure: bool,
    /// Where clients are served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8379")]
    listen: SocketAddr,
    /// Where rules are taken while it runs; on this machine alone
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8380")]
    control: SocketAddr,
    /// A rule; may be given several times
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// A file with a rule on each line; # begins a comment
    #[arg(long = "rules", value_name = "FILE")]
    file: Option<PathBuf>,
    /// What the dice go by [default: random, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// What is logged to standard error: error, warn, info, debug or trace [default: info, a line for each fault]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// One more rule for a running proxy
    Add {
        /// ROUTE FAULT [SHARE] [xTIMES]
        rule: String,
        #[command(flatten)]
        asked: ControlOptions,
    },
    /// The rules of a running proxy, and how often each struck
    List {
        #[command(flatten)]
        asked: ControlOptions,
    },
    /// Take away one rule of a running proxy, or all
    Clear {
        /// Which; all if none is named
        number: Option<u64>,
        #[command(flatten)]
        asked: ControlOptions,
    },
    /// What a running proxy did to which request
    Log {
        /// Only what came behind this event
        #[arg(long, default_value_t = 0)]
        after: u64,
        #[command(flatten)]
        asked: ControlOptions,
    },
}

#[derive(Debug, clap::Args)]
struct ControlOptions {
    /// The control address of the running proxy [default: REFRAIN_CHAOS, or http://127.0.0.1:8380]
    #[arg(long, value_name = "URL")]
    control: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if let Some(command) = &args.command {
        return Ok(runtime.block_on(ask(command)));
    }
    match runtime.block_on(serve(args)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            crate::output::complain(&failure);
            Ok(failure.code())
        }
    }
}

async fn serve(args: &Args) -> Result<(), Failure> {
    let bad = |error| Failure::Configuration(format!("refrain: {error}"));
    let mut signals = Signals::new()?;
    log_to_stderr(&Some(args.log.clone().unwrap_or_else(|| "info".into())))?;
    let upstream = args.upstream.as_deref().unwrap_or_default();
    let seed = args.seed.unwrap_or_else(rand::random);
    let trust = match (args.insecure, &args.cacert) {
        (true, _) => Trust::Anybody,
        (false, Some(file)) => Trust::File(file.clone()),
        (false, None) => Trust::Machine,
    };
    let chaos = Chaos::trusting(upstream, seed, &trust).map_err(bad)?;
    for rule in rules(args)? {
        chaos.rules().add(rule).map_err(bad)?;
    }
    if !args.control.ip().is_loopback() {
        let message = "refrain: --control is for this machine alone; write 127.0.0.1:PORT".into();
        return Err(Failure::Configuration(message));
    }
    let (listener, control) = (listen(args.listen).await?, listen(args.control).await?);
    greet(&chaos, upstream, &listener, &control)?;
    let routes = router(chaos.clone());
    let control = tokio::spawn(async move { axum::serve(control, routes).await });
    chaos.clone().serve(listener, signals.next()).await?;
    control.abort();
    say(format!(
        "stopped; {} requests were struck, {} passed",
        chaos.journal().count(),
        chaos.passed()
    ));
    Ok(())
}

fn greet(
    chaos: &Chaos,
    upstream: &str,
    listener: &TcpListener,
    control: &TcpListener,
) -> Result<(), Failure> {
    let (address, control) = (listener.local_addr()?, control.local_addr()?);
    say(format!(
        "chaos    http://{address} in front of {upstream}, seed {}\ncontrol  http://{control}",
        chaos.rules().seed()
    ));
    for listed in chaos.rules().list() {
        say(format!("rule {}   {}", listed.number, listed.rule));
    }
    if chaos.rules().list().is_empty() {
        say(format!(
            "no rules yet; everything passes. Try: refrain chaos add 'POST /* drop-answer 30%' --control http://{control}"
        ));
    }
    Ok(())
}

fn rules(args: &Args) -> Result<Vec<Rule>, Failure> {
    let parse = |text: &str, place: String| {
        let bad = |error| Failure::Configuration(format!("refrain: {place}{error}"));
        text.parse::<Rule>().map_err(bad)
    };
    let mut rules = Vec::new();
    if let Some(file) = &args.file {
        let name = file.display();
        let unread =
            |why: String| Failure::Configuration(format!("refrain: --rules {name}: {why}"));
        let length = std::fs::metadata(file).map_err(|error| unread(error.to_string()))?;
        if length.len() > FILE_BYTES_MAX {
            return Err(unread("it is larger than 1 MiB".into()));
        }
        let text = std::fs::read_to_string(file).map_err(|error| unread(error.to_string()))?;
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                rules.push(parse(line, format!("{name}:{}: ", at + 1))?);
            }
        }
    }
    for rule in &args.rules {
        rules.push(parse(rule, "--rule: ".into())?);
    }
    Ok(rules)
}

async fn ask(command: &Command) -> ExitCode {
    let asked = match command {
        Command::Add { asked, .. }
        | Command::List { asked }
        | Command::Clear { asked, .. }
        | Command::Log { asked, .. } => asked,
    };
    match answer(command, asked).await {
        Ok(answer) if asked.json => say(&answer),
        Ok(answer) => print(command, &answer),
        Err(trouble) => {
            if asked.json {
                say(trouble.json());
            }
            crate::output::complain(format_args!("refrain: {trouble}"));
            return trouble.code().into();
        }
    }
    ExitCode::SUCCESS
}

async fn answer(command: &Command, asked: &ControlOptions) -> Result<Value, Trouble> {
    let client = Client::new(&CONTROL, asked.control.as_deref(), None)?;
    match command {
        Command::Add { rule, .. } => client.post("/rules", &json!({ "rule": rule })).await,
        Command::List { .. } => client.get("/").await,
        Command::Clear { number: None, .. } => client.delete("/rules", &json!({})).await,
        Command::Clear {
            number: Some(number),
            ..
        } => client.delete(&format!("/rules/{number}"), &json!({})).await,
        Command::Log { after, .. } => client.get(&format!("/log?after={after}")).await,
    }
}

fn print(command: &Command, answer: &Value) {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    };
    let each = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    match command {
        Command::Add { .. } => say(format!(
            "rule {}   {}",
            text(&answer["number"]),
            text(&answer["rule"])
        )),
        Command::Clear { .. } => say(format!("{} taken away", text(&answer["removed"]))),
        Command::List { .. } => {
            for rule in each("rules") {
                say(format!(
                    "rule {}   {}   struck {} of {}",
                    text(&rule["number"]),
                    text(&rule["rule"]),
                    text(&rule["hit"]),
                    text(&rule["matched"])
                ));
            }
            say(format!("{} passed untouched", text(&answer["passed"])));
        }
        Command::Log { .. } => {
            for event in each("events") {
                say(format!(
                    "{:>5}  {:>8} ms  rule {}  {} {} {}  upstream {}  {}",
                    text(&event["number"]),
                    text(&event["at_ms"]),
                    text(&event["rule"]),
                    text(&event["fault"]),
                    text(&event["method"]),
                    text(&event["path"]),
                    text(&event["upstream"]),
                    event["note"].as_str().unwrap_or_default()
                ));
            }
        }
    }
}

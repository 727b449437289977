//! `refrain chaos`: a proxy that injects faults, and the commands that change the rules of a running one.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use refrain_verify::chaos::{Chaos, Rule, Trust, router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    client::{Client, ControlEndpoint, RequestError, TlsFlags},
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

/// Inject faults between clients and a service
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  refrain chaos --upstream http://127.0.0.1:3000 --rule 'POST /v1/payments drop-answer 30%'
  refrain chaos add 'POST /v1/* twice:2s x5'      add a rule for five requests
  refrain chaos list                              list the rules with their hit counts
  refrain chaos log                               list the injected faults by request
  refrain chaos clear                             remove all rules

A rule is ROUTE FAULT [SHARE] [xTIMES]. SHARE is the probability of a hit. The first rule that matches and hits applies.
  drop-answer          the service executes and responds; the connection to the client is closed without the response
  twice, twice:2s      send the request to the service twice: at once, or again after 2 s
  delay:500ms          delay the request
  delay-answer:500ms   delay the response
  cut:100              cut the response body after 100 bytes
  slow:1KiB            send the response body at 1 KiB/s
  reset-before         reset the connection to the client; the service does not get the request
  reset-after          reset the connection to the client; the service executes the request
  reorder, reorder:5s  hold the request until another one has overtaken it, for at most 1 s or 5 s

With the same --seed a rule hits the same requests, counted in their order of arrival.
Exit codes: 0 success, 1 refused, 2 wrong usage, 64 invalid rule or upstream, 69 address unavailable or unreachable."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Service behind the proxy, such as http://127.0.0.1:3000 or https://staging.example
    #[arg(long, value_name = "URL", required = true)]
    upstream: Option<String>,
    /// PEM file with the CA certificates to trust [default: those of the system]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Do not verify TLS certificates
    #[arg(long)]
    insecure: bool,
    /// Address for clients
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8379")]
    listen: SocketAddr,
    /// Control address, for rules at run time; loopback only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8380")]
    control: SocketAddr,
    /// Rule: ROUTE FAULT [SHARE] [xTIMES]; may be given several times
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// File with one rule on each line; # starts a comment
    #[arg(long = "rules", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Random seed [default: random, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Log level on standard error: error, warn, info, debug or trace [default: info, a line for each fault]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a rule to a running chaos proxy
    Add {
        /// Rule: ROUTE FAULT [SHARE] [xTIMES]
        rule: String,
        #[command(flatten)]
        asked: ControlOptions,
    },
    /// List the rules of a running chaos proxy, with their hit counts
    List {
        #[command(flatten)]
        asked: ControlOptions,
    },
    /// Remove a rule of a running chaos proxy, or all
    Clear {
        /// Number of the rule [default: all rules]
        number: Option<u64>,
        #[command(flatten)]
        asked: ControlOptions,
    },
    /// List the faults that a running chaos proxy injected
    Log {
        /// Only events after this number
        #[arg(long, default_value_t = 0)]
        after: u64,
        #[command(flatten)]
        asked: ControlOptions,
    },
}

#[derive(Debug, clap::Args)]
struct ControlOptions {
    /// Control address of the running chaos proxy [default: REFRAIN_CHAOS, or http://127.0.0.1:8380]
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
        return Ok(runtime.block_on(run_command(command)));
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
        let message = "refrain: --control must be a loopback address; use 127.0.0.1:PORT".into();
        return Err(Failure::Configuration(message));
    }
    let (listener, control) = (listen(args.listen).await?, listen(args.control).await?);
    greet(&chaos, upstream, &listener, &control)?;
    let routes = router(chaos.clone());
    let control = tokio::spawn(async move { axum::serve(control, routes).await });
    chaos.clone().serve(listener, signals.next()).await?;
    control.abort();
    say(format!(
        "stopped; {} requests hit, {} passed",
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
    let mut text = format!(
        "chaos    http://{address} in front of {upstream}, seed {}\ncontrol  http://{control}",
        chaos.rules().seed()
    );
    for listed in chaos.rules().list() {
        text += &format!("\nrule {}   {}", listed.number, listed.rule);
    }
    if chaos.rules().list().is_empty() {
        text += &format!(
            "\nno rules: all requests pass. Try: refrain chaos add 'POST /* drop-answer 30%' --control http://{control}"
        );
    }
    say(text);
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
            return Err(unread("larger than 1 MiB".into()));
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

async fn run_command(command: &Command) -> ExitCode {
    let asked = match command {
        Command::Add { asked, .. }
        | Command::List { asked }
        | Command::Clear { asked, .. }
        | Command::Log { asked, .. } => asked,
    };
    match send_command(command, asked).await {
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

async fn send_command(command: &Command, asked: &ControlOptions) -> Result<Value, RequestError> {
    let client = Client::new(
        &CONTROL,
        asked.control.as_deref(),
        None,
        &TlsFlags::default(),
    )?;
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
        Command::Clear { .. } => say(format!("{} removed", text(&answer["removed"]))),
        Command::List { .. } => {
            for rule in each("rules") {
                say(format!(
                    "rule {}   {}   hit {} of {}",
                    text(&rule["number"]),
                    text(&rule["rule"]),
                    text(&rule["hit"]),
                    text(&rule["matched"])
                ));
            }
            say(format!("{} passed unchanged", text(&answer["passed"])));
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

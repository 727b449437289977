//! `refrain verify --worker`: the same tests for a consumer of messages.

use std::{path::Path, sync::Arc};

use refrain::{
    Guarantee,
    consume::{Broker, Source},
    policy::{Address, schemes::broker_usage},
};
use refrain_verify::verify::{
    self, Counting, Process, Report,
    worker::{self, File, Lines, Plan, Template},
};

use super::{Args, agree, bad, counting, print_status, progress, seed, time, trouble, trust};
use crate::proxy::Failure;

/// Flags for consumers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --worker")]
pub(crate) struct WorkerArgs {
    /// Test a message consumer through its broker
    #[arg(long, conflicts_with_all = ["url", "op", "openapi"])]
    worker: bool,
    #[arg(long, value_name = "URL", requires = "worker", help = broker_help())]
    broker: Option<Address>,
    /// Queue, stream or subject that the consumer reads
    #[arg(long, value_name = "NAME", requires = "worker")]
    queue: Option<String>,
    /// Message id of the transport; {id} and {n} are filled in
    #[arg(long, value_name = "TEXT", requires = "worker")]
    message_id: Option<String>,
    /// Guarantee of the consumer: at-least-once, at-most-once or exactly-once
    #[arg(long, value_name = "GUARANTEE", requires = "worker", value_parser = guarantee)]
    guarantee: Option<Guarantee>,
    /// Number of consumers that each get every message and count into the same ledger
    #[arg(long, value_name = "N", requires = "worker")]
    consumers: Option<u64>,
    /// Queue of the consumer's dead letters
    #[arg(long, value_name = "NAME", requires = "worker")]
    dead_letter: Option<String>,
    /// Body that fails until it is a dead letter, and succeeds after that
    #[arg(long, value_name = "BODY", requires = "worker")]
    poison_body: Option<String>,
    /// Command that redrives dead letters [default: the message is published again]
    #[arg(long, value_name = "COMMAND", requires = "worker")]
    redrive_command: Option<String>,
}

impl WorkerArgs {
    pub(super) fn is_meant(&self) -> bool {
        self.worker
    }
}

fn broker_help() -> String {
    format!("The broker: {}", broker_usage())
}

fn guarantee(text: &str) -> Result<Guarantee, String> {
    let named = serde_json::from_value(text.into());
    named.map_err(|_| "use at-least-once, at-most-once or exactly-once".into())
}

pub(super) async fn run(args: &Args) -> Result<Report, Failure> {
    let file = args.config.as_deref().map(File::read).transpose();
    let file = file.map_err(bad)?.unwrap_or_default();
    let plan = plan(args, &file)?;
    agree(args, &plan.broker.to_string(), is_here(&plan.broker))?;
    let publisher = refrain_brokers::open_publisher(plan.broker.as_str()).await?;
    let dead = match args
        .worker
        .dead_letter
        .as_ref()
        .or(file.dead_letter.as_ref())
    {
        Some(queue) => Some(open_dead_letters(plan.broker.as_str(), queue, plan.seed).await?),
        None => None,
    };
    let place = format!("{} at {}, seed {}", plan.queue, plan.broker, plan.seed);
    print_status(args, place);
    let lines = Lines { publisher, dead };
    let mut named = String::new();
    let report = worker::run(&plan, &lines, |template, case| {
        progress(args, &mut named, &template.name, case);
    });
    report.await.map_err(trouble)
}

/// Opens the queue of dead letters under its own consumer name: with brokers that give every consumer all messages, no other consumer loses any.
async fn open_dead_letters(
    broker: &str,
    queue: &str,
    seed: u64,
) -> Result<Arc<dyn Broker>, Failure> {
    let source = Source::new(broker, queue, format!("refrain-verify-{seed}"));
    Ok(refrain_brokers::open(&source).await?)
}

fn plan(args: &Args, file: &File) -> Result<Plan, Failure> {
    let told = &args.worker;
    let one = |flag: &Option<String>, filed: &Option<String>| flag.clone().or(filed.clone());
    let broker = (told.broker.clone().or(file.broker.clone()))
        .ok_or_else(|| bad("no broker; pass --broker redis://127.0.0.1"))?;
    let queue = one(&told.queue, &file.queue)
        .ok_or_else(|| bad("no queue; pass --queue NAME, which the consumer reads"))?;
    let mut plan = Plan::new(broker, &queue, seed(args));
    plan.late = time("late", &args.late)?;
    if let Some(patience) = &args.patience {
        plan.patience = time("patience", patience)?;
    }
    if let Some(settle) = &args.settle {
        plan.settle = time("settle", settle)?;
    }
    plan.concurrent = args.concurrent;
    plan.only.clone_from(&args.only);
    plan.guarantee = told.guarantee.or(file.guarantee).unwrap_or(plan.guarantee);
    plan.consumers = told.consumers.or(file.consumers).unwrap_or(1);
    plan.redrive = one(&told.redrive_command, &file.redrive_command);
    let counting = counting(args).map_err(bad)?;
    let counting = counting.or_else(|| file.counting.clone());
    plan.counting = counting.unwrap_or(Counting::Answers);
    plan.trust = trust(args).unwrap_or_default();
    plan.process = Process {
        command: one(&args.restart_command, &file.process.command),
        pid: args.pid.or(file.process.pid),
    };
    plan.messages = match &args.body {
        Some(text) => vec![message(args, text).map_err(bad)?],
        None => file.messages.clone(),
    };
    Ok(plan)
}

fn message(args: &Args, text: &str) -> Result<Template, verify::BadPlan> {
    let body = |text: &String| verify::body(text, Path::new(""));
    let other = |text: &Option<String>| text.as_ref().map(body).transpose();
    let mut template = Template::new("message", body(&text.to_owned())?);
    let headers = args.headers.iter().map(|it| verify::header(it));
    template.headers = headers.collect::<Result<_, _>>()?;
    template.set_content_type(args.content_type.as_deref());
    template.message_id.clone_from(&args.worker.message_id);
    template.slow_body = other(&args.slow_body)?;
    template.failing_body = other(&args.failing_body)?;
    template.poison_body = other(&args.worker.poison_body)?;
    Ok(template)
}

/// Whether all hosts of the broker's address are loopback names or addresses.
fn is_here(broker: &Address) -> bool {
    let shown = broker.to_string();
    let rest = shown.split_once("://").map_or("", |(_, rest)| rest);
    let rest = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = rest.rsplit('@').next().unwrap_or_default();
    hosts.split(',').all(|host| {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_address = |ip: std::net::IpAddr| ip.is_loopback();
        name == "localhost" || name.parse().is_ok_and(is_address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_local_from_remote_addresses() {
        for (broker, here) in [
            ("redis://127.0.0.1", true),
            ("redis://user:pw@localhost:6379/0", true),
            ("nats://127.0.0.1:1,127.0.0.1:2", true),
            ("amqp://[::1]:5672/%2f", true),
            ("nats://127.0.0.1:1,queue.example:2", false),
            ("redis://localhost@queue.example", false),
            ("postgres://app@db/app", false),
            ("redis://", false),
        ] {
            assert_eq!(is_here(&Address::new(broker)), here, "{broker}");
        }
    }
}

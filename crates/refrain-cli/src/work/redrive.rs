//! `refrain work --redrive`: publishes dead letters again, and reports how many there were.

use refrain::{
    AuditLog, Engine, Error, ErrorKind,
    consume::{Redrive, Redriven, Source},
    engine::OperatorAction,
    policy::{WorkerSettings, schemes::Backend},
};
use serde_json::{Value, json};

use super::{Args, chosen, close, dead_source};
use crate::{
    output::say,
    proxy::{Failure, Signals, log_to_stderr, open_store},
    settings,
};

pub(super) async fn redrive(args: &Args) -> Result<(), Failure> {
    let (settings, workers) = chosen(args)?;
    log_to_stderr(&settings::value("log", args.log.as_deref())?)?;
    if workers.iter().all(|worker| worker.dead_letter.is_none()) {
        let names: Vec<_> = workers.iter().map(|worker| &*worker.name).collect();
        return Err(Failure::Configuration(format!(
            "refrain: nothing to redrive: {} has no `dead_letter`; set its dead-letter queue in {}",
            names.join(", "),
            args.config.display()
        )));
    }
    let mut signals = Signals::new()?;
    // A separate log, because a worker may be running and writing to the main one.
    let log = AuditLog::lazy(settings.audit_folder().join("redrive"))?;
    let engine = Engine::new(open_store(&settings).await?).with_audit(log);
    let mut done = Vec::new();
    for worker in &workers {
        let Some(dead_letter) = &worker.dead_letter else {
            say(format!("worker {}: no `dead_letter` set", worker.name));
            continue;
        };
        let redriven = tokio::select! {
            redriven = redrive_worker(worker, dead_letter, &engine, args.at_most, None) => redriven,
            () = signals.next() => {
                say("stopped; dead letters that were not redriven stay in their queue");
                return Ok(());
            }
        };
        let redriven = redriven.map_err(|error| unread(worker, dead_letter, error))?;
        done.push((worker, dead_letter, redriven));
    }
    if args.json {
        let workers = done.iter().map(|(worker, _, it)| {
            let told = json!({ "sent": it.sent, "skipped": it.skipped, "left": it.left });
            (worker.name.clone(), told)
        });
        say(json!({ "workers": Value::Object(workers.collect()) }));
        return Ok(());
    }
    for (worker, dead_letter, it) in done {
        say(format!(
            "worker {}: {}",
            worker.name,
            describe_redriven(dead_letter, it)
        ));
    }
    Ok(())
}

/// Redrives the dead letters of one worker. `action` is written to the audit log.
pub(super) async fn redrive_worker(
    worker: &WorkerSettings,
    dead_letter: &str,
    engine: &Engine,
    at_most: Option<u64>,
    action: Option<OperatorAction<'_>>,
) -> refrain::Result<Redriven> {
    let source = dead_source(worker, dead_letter);
    let dead = refrain_brokers::open(&source).await?;
    let to = refrain_brokers::open_publisher(worker.source.as_str()).await?;
    let mut redrive = Redrive::new(dead.clone(), to, engine.clone());
    let broker = Backend::named(worker.source.scheme()).and_then(|it| it.broker);
    redrive = match broker.is_some_and(|it| it.redrives_to_queue) {
        true => redrive.with_destination(&worker.queue),
        false => redrive.with_fallback(&worker.queue),
    };
    if let Some(at_most) = at_most {
        redrive = redrive.with_at_most(at_most);
    }
    if let Some(action) = action {
        redrive = redrive.with_action(action)?;
    }
    let redriven = redrive.run().await;
    close(&*dead).await;
    let redriven = redriven?;
    if redriven == Redriven::default() && at_most != Some(0) {
        check_held(&source).await?;
    }
    Ok(redriven)
}

/// Fails if the queue has dead letters although it delivered none: another consumer holds them, such as a redrive that
/// was killed.
async fn check_held(source: &Source) -> refrain::Result<()> {
    if refrain_brokers::dead_letters(source, 1).await?.is_empty() {
        return Ok(());
    }
    let message = format!(
        "it has dead letters that were not delivered, because another redrive, running or killed, holds them; run the command again after {} s",
        source.ack_wait.max(Redrive::LEFT_FOR).as_secs()
    );
    Err(Error::new(ErrorKind::Unavailable, message))
}

fn describe_redriven(dead_letter: &str, it: Redriven) -> String {
    if it == Redriven::default() {
        return format!("no dead letters in {dead_letter}");
    }
    format!(
        "{} redriven, {} skipped because their effect has happened, {} left",
        it.sent, it.skipped, it.left
    )
}

/// The failure for a queue whose dead letters could not all be read.
fn unread(worker: &WorkerSettings, dead_letter: &str, error: refrain::Error) -> Failure {
    let what = format!(
        "worker `{}`: cannot read all dead letters in {dead_letter}",
        worker.name
    );
    match Failure::from(error) {
        Failure::Configuration(why) => {
            let why = why.trim_start_matches("refrain: ");
            Failure::Configuration(format!("refrain: {what}: {why}"))
        }
        Failure::Unavailable(why) => Failure::Unavailable(format!("{what}: {why}")),
        file @ Failure::File(_) => file,
    }
}

//! `refrain work --dead-letters`: lists the dead letters without taking any, and without opening a store.

use refrain::consume::DeadLetter;
use serde_json::{Value, json};

use super::{Args, chosen, dead_source};
use crate::{
    output::{counted, say},
    proxy::{Failure, log_to_stderr},
    settings,
};

/// The default number of dead letters listed.
const SHOWN: u64 = 100;
/// The most dead letters listed.
const SHOWN_MAX: u64 = 10_000;

pub(super) async fn list(args: &Args) -> Result<(), Failure> {
    let (_, workers) = chosen(args)?;
    log_to_stderr(&settings::value("log", args.log.as_deref())?)?;
    let at_most = args.at_most.unwrap_or(SHOWN).min(SHOWN_MAX);
    let at_most = usize::try_from(at_most).unwrap_or(usize::MAX);
    let mut listed = serde_json::Map::new();
    for worker in &workers {
        let name = &worker.name;
        let Some(queue) = &worker.dead_letter else {
            if !args.json {
                say(format!("worker {name}: no `dead_letter` set"));
            }
            continue;
        };
        // One more than listed shows whether there are more.
        let source = dead_source(worker, queue);
        let mut letters = refrain_brokers::dead_letters(&source, at_most + 1).await?;
        let are_all = letters.len() <= at_most;
        letters.truncate(at_most);
        if args.json {
            let told = json!({ "queue": queue, "letters": letters, "are_all": are_all });
            listed.insert(name.clone(), told);
            continue;
        }
        let count = counted(letters.len(), "dead letter");
        let more = if are_all { "" } else { " and more" };
        say(format!("worker {name}: {count}{more} in {queue}"));
        for letter in &letters {
            say(line(letter));
        }
    }
    if args.json {
        say(json!({ "workers": Value::Object(listed) }));
    }
    Ok(())
}

fn line(letter: &DeadLetter) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let time = letter.time.map(|time| time.rfc3339());
    let attempts = letter.attempts.map(|attempts| attempts.to_string());
    format!(
        "  {}  {}, {} attempts, key digest {}, record {}, {} redrives, {} bytes: {}",
        text(&time),
        text(&letter.reason),
        text(&attempts),
        text(&letter.key_digest),
        text(&letter.record),
        letter.redrives,
        letter.payload_bytes,
        text(&letter.last_failure),
    )
}

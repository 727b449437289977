//! `refrain.toml`: generates a new policy, or merges the plan into an edited one.

use std::collections::{HashMap, HashSet};

use refrain::policy::Class;
use serde::Serialize;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use super::{class_name, line};
use crate::{Consumer, Plan, Planned};

/// Prefix of the comment that records the last planned class.
const PLANNED: &str = "# plan: ";
/// Number of reasons in an operation's comment.
const REASONS_MAX: usize = 3;

/// A policy file, and its differences from the previous one.
#[derive(Debug, Serialize)]
pub struct Merged {
    /// Text of the file.
    pub text: String,
    /// Differences between the API and the previous file.
    pub drift: Vec<Drift>,
}

/// One difference between the API and the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// `new`, `gone`, `changed`, or `kept` if a person chose another class.
    pub kind: &'static str,
    /// The operation or worker.
    pub name: String,
    /// Description of the difference.
    pub message: String,
}

/// Writes the policy of a plan, as a new file or merged into the text of an existing one.
///
/// Everything that a person wrote is kept. Classes that only the plan wrote follow the API.
///
/// # Errors
/// When the existing text is invalid TOML, with the position.
pub fn policy(
    plan: &Plan,
    existing: Option<&str>,
    upstream: Option<&str>,
) -> Result<Merged, String> {
    let fresh = opening(plan, upstream);
    let mut document: DocumentMut = existing
        .unwrap_or(&fresh)
        .parse()
        .map_err(|error| format!("{error}"))?;
    let mut drift = Vec::new();
    let entries: Vec<_> = plan
        .operations
        .iter()
        .filter(|it| it.is_in_policy())
        .map(Entry::of)
        .collect();
    merge(&mut document, "operation", "match", &entries, &mut drift)?;
    let workers: Vec<_> = plan.consumers.iter().map(Entry::of_worker).collect();
    merge(&mut document, "worker", "name", &workers, &mut drift)?;
    if existing.is_none() {
        drift.clear();
    }
    let text = document.to_string() + &closing(plan, existing);
    Ok(Merged { text, drift })
}

fn opening(plan: &Plan, upstream: Option<&str>) -> String {
    let unsure = plan
        .operations
        .iter()
        .filter(|it| it.is_in_policy() && !it.verdict.is_sure())
        .count();
    let guarded = plan
        .operations
        .iter()
        .filter(|it| it.is_in_policy() && it.verdict.class != Class::Read)
        .count();
    let told = match unsure {
        0 => String::new(),
        1 => "# One of them is marked `unsure`: read the reasons and decide.\n".into(),
        count => format!("# {count} of them are marked `unsure`: read the reasons and decide.\n"),
    };
    let operations = match guarded {
        1 => "operation is",
        _ => "operations are",
    };
    let counted = match plan.operations.is_empty() {
        true => String::new(),
        false => format!(
            "# {guarded} {operations} guarded. Operations that only read with GET are omitted.\n"
        ),
    };
    let upstream = upstream.unwrap_or("http://127.0.0.1:3000");
    format!(
        "# The policy of {}, generated from its description by `refrain plan`.\n\
         {counted}{told}\
         # Edit it freely: running `refrain plan` again keeps your changes, and reports changes in the API.\n\
         # `refrain check refrain.toml` shows the resulting settings.\n\n\
         upstream = {}   # your service\n\
         store = \"file:refrain-data\"   # several processes share postgres://… or redis://…\n",
        line(&plan.title),
        value(upstream)
    )
}

/// Comment that lists the operations that the policy cannot guard; only in a new file.
fn closing(plan: &Plan, existing: Option<&str>) -> String {
    let sent: Vec<_> = plan.operations.iter().filter(|it| !it.is_served).collect();
    let unmatched: Vec<_> = plan
        .operations
        .iter()
        .filter(|it| it.is_served && it.pattern.is_none() && it.verdict.class != Class::Read)
        .collect();
    let mut text = String::new();
    if existing.is_some() {
        return text;
    }
    if !sent.is_empty() {
        text.push_str(
            "\n# Sent by this API, not to it. Their receivers guard them with class = \"event\":\n",
        );
        sent.iter()
            .for_each(|it| text.push_str(&format!("#   {}\n", line(&it.name()))));
    }
    if !unmatched.is_empty() {
        text.push_str("\n# No pattern distinguishes these from another operation, or matches their path; they get the settings of the other operation:\n");
        unmatched.iter().for_each(|it| {
            text.push_str(&format!(
                "#   {} ({})\n",
                line(&it.name()),
                class_name(it.verdict.class)
            ));
        });
    }
    text
}

/// A table that the plan adds to the file.
struct Entry {
    name: String,
    /// Planned class; recorded in a comment, so that the next run can compare.
    planned: &'static str,
    comment: Vec<String>,
    settings: Vec<(&'static str, Item)>,
}

impl Entry {
    fn of(planned: &Planned) -> Self {
        let verdict = &planned.verdict;
        let class = class_name(verdict.class);
        let mut comment = Vec::new();
        comment.extend(planned.summary.as_ref().map(line));
        if !verdict.is_sure() {
            let other = verdict
                .runner_up
                .map(|it| format!(", or {}", class_name(it)))
                .unwrap_or_default();
            comment.push(format!(
                "unsure ({:.2}): {class}{other}? Reasons:",
                verdict.confidence
            ));
        }
        let reasons = verdict
            .evidence
            .iter()
            .filter(|it| it.class == verdict.class && it.weight > 0);
        comment.extend(
            reasons
                .take(REASONS_MAX)
                .map(|it| format!("- {}", line(&it.text))),
        );
        let mut settings = vec![("match", value(planned.pattern.clone().unwrap_or_default()))];
        let keys = &planned.keys;
        match (keys.sender, verdict.class) {
            (Some(sender), Class::Event) => {
                settings.push(("webhook", value(sender)));
                let variable = sender.to_uppercase().replace('-', "_");
                comment.push(format!(
                    "add: signature = {{ secret_env = \"{variable}_WEBHOOK_SECRET\" }}"
                ));
            }
            (_, class) => settings.push(("class", value(class_name(class)))),
        }
        match (&keys.event, &keys.header, verdict.class) {
            (_, _, Class::Read) => {}
            (Some(event), _, Class::Event) if keys.sender.is_none() => {
                settings.push(("key", value(event)));
            }
            (None, _, Class::Event) if keys.sender.is_none() => {
                comment.push("found no event id: set it, such as key = \"body:/id\", or deliveries are not deduplicated".into());
            }
            (_, Some(header), _) => settings.push(("key", value(format!("header:{header}")))),
            _ => {}
        }
        for natural in &keys.natural {
            let header = keys.client_header();
            comment.push(format!(
                "for clients without keys: key = [\"header:{header}\", \"{}\"]",
                natural.source
            ));
            comment.push(format!("  risk: {}", natural.risk));
        }
        Self {
            name: planned.pattern.clone().unwrap_or_default(),
            planned: class,
            comment,
            settings,
        }
    }

    fn of_worker(consumer: &Consumer) -> Self {
        let mut comment: Vec<_> = consumer
            .evidence
            .iter()
            .map(|it| format!("- {}", line(it)))
            .collect();
        if !consumer.messages.is_empty() {
            comment.insert(
                0,
                format!("messages: {}", line(&consumer.messages.join(", "))),
            );
        }
        if consumer.source.is_none() {
            comment.push("the description names no supported broker: correct `source`".into());
        }
        if consumer.channel.contains('{') {
            comment
                .push("`queue` has a parameter: write the name of the queue on the broker".into());
        }
        if consumer.key.is_empty() {
            comment.push("found no id in the messages: using the id that the broker assigns, which differs if a publisher sends a message twice".into());
            for natural in &consumer.natural {
                comment.push(format!("or: key = \"{}\"", natural.source));
                comment.push(format!("  risk: {}", natural.risk));
            }
        }
        let source = consumer
            .source
            .clone()
            .unwrap_or("nats://127.0.0.1:4222".into());
        let mut settings = vec![
            ("name", value(&consumer.name)),
            ("source", value(source)),
            ("queue", value(&consumer.channel)),
            (
                "deliver",
                value(format!("http://127.0.0.1:3000/events/{}", consumer.name)),
            ),
            ("dead_letter", value(format!("{}.dead", consumer.channel))),
        ];
        if !consumer.key.is_empty() {
            settings.push(("key", value(consumer.key.iter().collect::<Array>())));
        }
        if consumer.is_monetary {
            settings.push(("retention", value("30d")));
            settings.push(("remember", value("365d")));
        }
        let planned = if consumer.is_monetary {
            "monetary"
        } else {
            "event"
        };
        Self {
            name: consumer.name.clone(),
            planned,
            comment,
            settings,
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        for (name, item) in &self.settings {
            table.insert(name, item.clone());
        }
        let mut prefix = format!("\n{PLANNED}{}\n", self.planned);
        self.comment
            .iter()
            .for_each(|it| prefix.push_str(&format!("# {it}\n")));
        table.decor_mut().set_prefix(prefix);
        table
    }
}

/// Adds missing tables, each after its predecessor in the API, and updates changed classes.
fn merge(
    document: &mut DocumentMut,
    list: &str,
    key: &str,
    entries: &[Entry],
    drift: &mut Vec<Drift>,
) -> Result<(), String> {
    let there = match document.remove(list) {
        None => ArrayOfTables::new(),
        Some(Item::ArrayOfTables(tables)) => tables,
        Some(_) => {
            return Err(format!(
                "`{list}` is not a list of tables; write [[{list}]]"
            ));
        }
    };
    let name_of = |table: &Table| {
        table
            .get(key)
            .and_then(Item::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let known: HashSet<String> = there.iter().map(name_of).collect();
    let wanted: HashMap<&str, &Entry> = entries.iter().map(|it| (it.name.as_str(), it)).collect();
    let mut behind: HashMap<&str, Vec<Table>> = HashMap::new();
    let mut before = "";
    for entry in entries {
        match known.contains(&entry.name) {
            true => before = &entry.name,
            false => {
                let message = format!(
                    "is in the API but not in the file: added as {}",
                    entry.planned
                );
                drift.push(Drift {
                    kind: "new",
                    name: entry.name.clone(),
                    message,
                });
                behind.entry(before).or_default().push(entry.table());
            }
        }
    }
    let mut merged = ArrayOfTables::new();
    behind
        .remove("")
        .into_iter()
        .flatten()
        .for_each(|table| merged.push(table));
    for mut table in there {
        let name = name_of(&table);
        follow(&mut table, wanted.get(name.as_str()).copied(), &name, drift);
        merged.push(table);
        behind
            .remove(name.as_str())
            .into_iter()
            .flatten()
            .for_each(|table| merged.push(table));
    }
    if !merged.is_empty() {
        document.insert(list, Item::ArrayOfTables(merged));
    }
    Ok(())
}

/// Updates an existing table to the plan, and reports differences.
fn follow(table: &mut Table, entry: Option<&Entry>, name: &str, drift: &mut Vec<Drift>) {
    let prefix = table
        .decor()
        .prefix()
        .and_then(|it| it.as_str())
        .unwrap_or_default()
        .to_owned();
    let last = prefix
        .lines()
        .find_map(|line| line.trim().strip_prefix(PLANNED))
        .map(str::trim);
    let class = table.get("class").and_then(Item::as_str).map(str::to_owned);
    let mut tell = |kind, message: String| {
        drift.push(Drift {
            kind,
            name: name.into(),
            message,
        });
    };
    let (last, entry) = match (last, entry) {
        (Some(_), None) => {
            return tell(
                "gone",
                "is in the file but no longer in the API: remove it when no client calls it".into(),
            );
        }
        (None, _) => return,
        (Some(last), Some(entry)) if last == entry.planned => return,
        (Some(last), Some(entry)) => (last, entry),
    };
    let is_untouched = class.as_deref().is_none_or(|class| class == last);
    match is_untouched {
        true => tell(
            "changed",
            format!("was {last} and is now {}", entry.planned),
        ),
        false => tell(
            "kept",
            format!(
                "was {last} and is now {}; you chose {}",
                entry.planned,
                class.unwrap_or_default()
            ),
        ),
    }
    let mark = |class: &str| format!("{PLANNED}{class}");
    table
        .decor_mut()
        .set_prefix(prefix.replacen(&mark(last), &mark(entry.planned), 1));
    if is_untouched && table.contains_key("class") {
        table["class"] = value(entry.planned);
    }
}

//! Consumers of an AsyncAPI document: one for each channel that the application receives from.

use std::collections::HashSet;

use refrain::policy::schemes::brokers;
use refrain_openapi::{Direction, Document, Message, View};
use serde::Serialize;

use crate::{
    keys::{NaturalKey, Sent, best_id, gather, propose},
    text::plain,
    words,
};

/// Maximum length of a worker name, in characters.
const NAME_MAX: usize = 64;

/// A channel that the application consumes.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Consumer {
    /// Name of its worker.
    pub name: String,
    /// Address of the broker, if the document has one of a supported broker.
    pub source: Option<String>,
    /// Topic, queue or subject.
    pub channel: String,
    /// Names of its messages.
    pub messages: Vec<String>,
    /// Sources of a message's key, in policy syntax; empty if the description has none better than the default.
    pub key: Vec<String>,
    /// Whether its messages move money.
    pub is_monetary: bool,
    /// Reasons for the key and for `is_monetary`.
    pub evidence: Vec<String>,
    /// Natural keys that could be used instead.
    pub natural: Vec<NaturalKey>,
}

pub(crate) fn all(document: &Document) -> Vec<Consumer> {
    let mut consumers: Vec<Consumer> = Vec::new();
    let mut names = HashSet::new();
    let received = document
        .messages()
        .into_iter()
        .filter(|it| it.direction == Direction::Receive);
    for message in received {
        let at = consumers
            .iter()
            .position(|it| it.channel == message.channel);
        let at = at.unwrap_or_else(|| {
            consumers.push(Consumer {
                name: name(&message, &mut names),
                source: source(document),
                channel: message.channel.into(),
                messages: Vec::new(),
                key: Vec::new(),
                is_monetary: false,
                evidence: Vec::new(),
                natural: Vec::new(),
            });
            consumers.len() - 1
        });
        consumers[at].add(&message);
    }
    consumers
}

impl Consumer {
    fn add(&mut self, message: &Message<'_>) {
        self.messages.extend(message.name.map(String::from));
        self.add_key(message);
        let payload = message.payload();
        let mut members = Vec::new();
        payload
            .into_iter()
            .for_each(|it| gather(it, "", 0, &mut members));
        let amount = members
            .iter()
            .find(|(_, name)| words::AMOUNT.contains(&name.as_str()) || name.ends_with("amount"));
        let named = plain(&format!(
            "{} {}",
            message.channel,
            message.name.unwrap_or_default()
        ));
        let word = words::MONEY.iter().find(|word| named.contains(**word));
        if let (Some((pointer, _)), Some(word)) = (amount, word) {
            let amount = pointer.rsplit('/').next().unwrap_or_default();
            self.is_monetary = true;
            self.say(format!(
                "`{amount}` in the payload and `{word}` in its name: it moves money"
            ));
        }
        if self.natural.is_empty() {
            self.natural = propose(&members, self.is_monetary, Sent::Message);
        }
    }

    fn add_key(&mut self, message: &Message<'_>) {
        let content_type = message.view().text("contentType").unwrap_or_default();
        let payload = message
            .payload()
            .map(|it| it.properties())
            .unwrap_or_default();
        let headers = message
            .headers()
            .map(|it| it.properties())
            .unwrap_or_default();
        let has = |name: &str| payload.iter().any(|(it, _)| *it == name);
        if content_type.contains("cloudevents") || has("specversion") && has("source") {
            self.take_key(
                "cloudevents".into(),
                "its messages are CloudEvents, whose source and id are unique together",
            );
        }
        let header = headers.iter().map(|(name, _)| *name);
        let keyed = header
            .clone()
            .find(|name| plain(name).contains("idempotencykey"));
        if let Some(name) = keyed.or_else(|| best_id(header)) {
            self.take_key(format!("header:{name}"), "the header names the message");
        }
        if let Some(name) = best_id(payload.iter().map(|(name, _)| *name)) {
            self.take_key(format!("body:/{name}"), "the member names the message");
        }
    }

    fn take_key(&mut self, source: String, why: &str) {
        if !self.key.contains(&source) {
            self.say(format!("key from {source}: {why}"));
            self.key.push(source);
        }
    }

    fn say(&mut self, text: String) {
        if !self.evidence.contains(&text) {
            self.evidence.push(text);
        }
    }
}

/// Unique worker name from the operation or else the channel, with only characters that brokers accept.
fn name(message: &Message<'_>, taken: &mut HashSet<String>) -> String {
    let text = message.operation.unwrap_or(message.channel);
    let is_fit = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let fit = text
        .chars()
        .map(|char| if is_fit(char) { char } else { '-' });
    let fit: String = fit.take(NAME_MAX - 4).collect();
    let fit = fit.trim_matches('-');
    let fit = if fit.is_empty() { "consumer" } else { fit };
    let mut name = fit.to_owned();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{fit}-{number}");
        number += 1;
    }
    name
}

/// Address of the first server that is a supported broker.
fn source(document: &Document) -> Option<String> {
    let servers = document.view().get("servers")?;
    servers.members().find_map(|(_, server)| address(server))
}

fn address(server: View<'_>) -> Option<String> {
    let scheme = scheme(&server.text("protocol")?.to_lowercase())?;
    let url = server.text("host").or_else(|| server.text("url"))?;
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let is_plain = !host.is_empty() && !host.contains(['{', '@', ' ']);
    is_plain.then(|| format!("{scheme}://{host}"))
}

/// Scheme of the broker with this protocol: its scheme of the same name, or else its usual one.
fn scheme(protocol: &str) -> Option<&'static str> {
    let mut brokers = brokers().map(|(_, it)| it);
    let broker = brokers.find(|it| it.protocols.contains(&protocol))?;
    let schemes = broker.schemes;
    schemes
        .iter()
        .find(|it| **it == protocol)
        .or(schemes.first())
        .copied()
}

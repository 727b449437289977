//! Messages of AsyncAPI documents: their channel, direction, payload and headers.

use crate::{Document, Flavour, Schema, View};

/// Direction of a message, seen from the application that the document describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The application receives the message.
    Receive,
    /// The application sends the message.
    Send,
}

/// A message in a channel.
#[derive(Debug, Clone)]
pub struct Message<'d> {
    /// Direction of the message.
    pub direction: Direction,
    /// Address of the channel: a topic, queue or subject.
    pub channel: &'d str,
    /// `operationId` in version 2, the name of the operation in version 3.
    pub operation: Option<&'d str>,
    /// Name of the message.
    pub name: Option<&'d str>,
    view: View<'d>,
    channel_view: View<'d>,
}

impl<'d> Message<'d> {
    /// Schema of the payload.
    #[must_use]
    pub fn payload(&self) -> Option<Schema<'d>> {
        let payload = self.view.get("payload")?;
        // Version 3 allows a wrapper that adds `schemaFormat` to the schema.
        Some(Schema::new(
            payload
                .get("schema")
                .filter(|_| payload.get("schemaFormat").is_some())
                .unwrap_or(payload),
        ))
    }

    /// Schema of the headers.
    #[must_use]
    pub fn headers(&self) -> Option<Schema<'d>> {
        self.view.get("headers").map(Schema::new)
    }

    /// View of the message.
    #[must_use]
    pub fn view(&self) -> View<'d> {
        self.view
    }

    /// View of the channel.
    #[must_use]
    pub fn channel_view(&self) -> View<'d> {
        self.channel_view
    }
}

pub(crate) fn all(document: &Document) -> Vec<Message<'_>> {
    match document.flavour() {
        Flavour::AsyncApi2 => of_channels(document),
        Flavour::AsyncApi3 => of_operations(document),
        _ => Vec::new(),
    }
}

fn of_channels(document: &Document) -> Vec<Message<'_>> {
    // In version 2, `publish` describes what others do: the application receives the message.
    const WAYS: [(&str, Direction); 2] = [
        ("publish", Direction::Receive),
        ("subscribe", Direction::Send),
    ];
    let mut found = Vec::new();
    let channels = document
        .view()
        .get("channels")
        .into_iter()
        .flat_map(|it| it.members());
    for (channel, channel_view) in channels {
        for (member, view) in channel_view.members() {
            let Some((_, direction)) = WAYS.into_iter().find(|(way, _)| *way == member) else {
                continue;
            };
            let Some(message) = view.get("message") else {
                continue;
            };
            let several: Vec<_> = message
                .get("oneOf")
                .into_iter()
                .flat_map(|it| it.items())
                .collect();
            let messages = if several.is_empty() {
                vec![message]
            } else {
                several
            };
            found.extend(messages.into_iter().map(|message| Message {
                direction,
                channel,
                operation: view.text("operationId"),
                name: message.text("name").or(message.ref_name()),
                view: message,
                channel_view,
            }));
        }
    }
    found
}

fn of_operations(document: &Document) -> Vec<Message<'_>> {
    let mut found = Vec::new();
    let operations = document
        .view()
        .get("operations")
        .into_iter()
        .flat_map(|it| it.members());
    for (operation, view) in operations {
        let direction = match view.text("action") {
            Some("receive") => Direction::Receive,
            _ => Direction::Send,
        };
        let Some(channel_view) = view.get("channel") else {
            continue;
        };
        let channel = channel_view
            .text("address")
            .or(channel_view.ref_name())
            .unwrap_or(operation);
        let named: Vec<_> = view
            .get("messages")
            .into_iter()
            .flat_map(|it| it.items())
            .collect();
        let all = || {
            channel_view
                .get("messages")
                .into_iter()
                .flat_map(|it| it.members())
        };
        let messages: Vec<_> = match named.is_empty() {
            true => all().map(|(name, view)| (Some(name), view)).collect(),
            false => named
                .into_iter()
                .map(|view| (view.ref_name(), view))
                .collect(),
        };
        found.extend(messages.into_iter().map(|(name, view)| Message {
            direction,
            channel,
            operation: Some(operation),
            name: view.text("name").or(name),
            view,
            channel_view,
        }));
    }
    found
}

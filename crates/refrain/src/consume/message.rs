//! A message, whatever transport carries it.

use std::fmt;

use bytes::Bytes;

use crate::fingerprint::Fields;

/// The most bytes that all headers of a message may take, names included.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// A message, as it is published and as it is delivered.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// What it says.
    pub payload: Bytes,
    /// What is said about it, in order. Names are looked up without regard to case.
    pub headers: Vec<(String, Bytes)>,
    /// What the transport itself calls the message and its redeliveries:
    /// `Nats-Msg-Id`, AMQP `message-id`, SQS deduplication id or message id.
    pub id: Option<String>,
    /// The subject, routing key, stream or topic that it was published under.
    pub subject: String,
    /// Messages of one group are handled in order, where the broker orders: an aggregate, a Kafka key, an SQS message group.
    pub group: Option<String>,
    /// The media type of the payload, where the transport tells.
    pub content_type: Option<String>,
    /// Where it lies in its log, where the transport keeps one.
    pub position: Option<Position>,
}

/// Where a message lies in its log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Position {
    /// The log: a topic, or a stream.
    pub log: String,
    /// Which part of the log.
    pub partition: u32,
    /// The place in that part: it grows, and is never used twice.
    pub offset: String,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.log, self.partition, self.offset)
    }
}

impl Message {
    /// A message that says this.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// The same message with the id that the transport's own deduplication goes by.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same message in a group, whose messages keep their order.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The same message with a media type.
    #[must_use]
    pub fn with_content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// The same message with one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        let is_named = |(field, _): &&(String, Bytes)| field.eq_ignore_ascii_case(name);
        self.headers.iter().find(is_named).map(|(_, value)| value)
    }

    /// Puts this header in the place of all of its name.
    pub fn set_header(&mut self, name: &str, value: impl Into<Bytes>) {
        self.remove_header(name);
        self.headers.push((name.into(), value.into()));
    }

    /// Takes off all headers of this name.
    pub fn remove_header(&mut self, name: &str) {
        self.headers
            .retain(|(field, _)| !field.eq_ignore_ascii_case(name));
    }
}

impl Fields for Message {
    fn each(&self, name: &str, show: &mut dyn FnMut(&[u8])) {
        let is_named = |(field, _): &&(String, Bytes)| field.eq_ignore_ascii_case(name);
        let named = self.headers.iter().filter(is_named);
        named.for_each(|(_, value)| show(value));
    }
}

/// Without what it says: that may be anybody's secret.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("subject", &self.subject)
            .field("id", &self.id)
            .field("group", &self.group)
            .field("position", &self.position)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

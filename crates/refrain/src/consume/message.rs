//! Message type, independent of the transport, and the input of handlers.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{Fence, Key, RecordId, fingerprint::Fields};

/// Maximum size of all headers of a message in bytes, names included.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// A published or delivered message.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Payload.
    pub payload: Bytes,
    /// Headers, in order. Name lookup ignores case.
    pub headers: Vec<(String, Bytes)>,
    /// Message ID of the transport, shared by redeliveries:
    /// `Nats-Msg-Id`, AMQP `message-id`, SQS deduplication ID or message ID.
    pub id: Option<String>,
    /// Subject, routing key, stream or topic that it was published to.
    pub subject: String,
    /// Ordering group: an aggregate, a Kafka key, an SQS message group. If the broker orders, its messages
    /// are handled in order.
    pub group: Option<String>,
    /// Media type of the payload, if the transport reports it.
    pub content_type: Option<String>,
    /// Position in the log, if the transport keeps one.
    pub position: Option<Position>,
}

/// Position of a message in a log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Position {
    /// Topic or stream.
    pub log: String,
    /// Partition number.
    pub partition: u32,
    /// Offset in the partition: it increases, and is never reused.
    pub offset: String,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.log, self.partition, self.offset)
    }
}

impl Message {
    /// Creates a message with this payload.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// Sets the message ID, which the transport uses for deduplication.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the ordering group.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets the media type.
    #[must_use]
    pub fn with_content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Returns the first header with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        let is_named = |(field, _): &&(String, Bytes)| field.eq_ignore_ascii_case(name);
        self.headers.iter().find(is_named).map(|(_, value)| value)
    }

    /// Replaces all headers with this name.
    pub fn set_header(&mut self, name: &str, value: impl Into<Bytes>) {
        self.remove_header(name);
        self.headers.push((name.into(), value.into()));
    }

    /// Removes all headers with this name.
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

/// Omits the payload, which may be confidential.
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

/// One message to handle.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// The delivered message.
    pub message: Arc<Message>,
    /// Key of the effect. Pass it to downstream systems as their idempotency key.
    pub key: Key,
    /// Identity of the record.
    pub record: RecordId,
    /// Fence (fencing token). Pass it to the resource that the handler changes, which can reject overtaken holders.
    pub fence: Fence,
    /// Attempt number, starting at 1. If above 1, an earlier attempt may have taken effect.
    pub attempt: u32,
}

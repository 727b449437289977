//! Input of handlers.

use std::sync::Arc;

use super::Message;
use crate::{Fence, Key, RecordId};

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

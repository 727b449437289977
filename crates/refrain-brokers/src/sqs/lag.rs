//! Reads the approximate counts that SQS keeps of a queue.

use std::collections::HashMap;

use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use refrain::{Result, consume::Lag};

use super::{SqsQueue, errors::convert_error};

const WAITING: Attribute = Attribute::ApproximateNumberOfMessages;
const DELAYED: Attribute = Attribute::ApproximateNumberOfMessagesDelayed;
const HELD: Attribute = Attribute::ApproximateNumberOfMessagesNotVisible;

pub(super) async fn lag(seat: &SqsQueue) -> Result<Lag> {
    let asking = seat.client.get_queue_attributes().queue_url(&seat.url);
    let asking = asking.set_attribute_names(Some(vec![WAITING, DELAYED, HELD]));
    let found = asking.send().await;
    let found = found.map_err(|error| convert_error(&seat.queue, error))?;
    let counts = found.attributes.unwrap_or_default();
    let waiting = count(&counts, &WAITING) + count(&counts, &DELAYED);
    let lag = Lag::waiting(waiting).with_unacknowledged(count(&counts, &HELD));
    Ok(lag.approximate())
}

fn count(counts: &HashMap<Attribute, String>, name: &Attribute) -> u64 {
    let text = counts.get(name);
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

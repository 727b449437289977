//! Reads the approximate counts that SQS keeps of a queue.

use std::collections::HashMap;

use aws_sdk_sqs::{Client, types::QueueAttributeName as Attribute};
use refrain::{
    Result,
    consume::{Lag, Source},
};

use super::{SqsPublisher, SqsQueue, errors::convert_error};

const WAITING: Attribute = Attribute::ApproximateNumberOfMessages;
const DELAYED: Attribute = Attribute::ApproximateNumberOfMessagesDelayed;
const HELD: Attribute = Attribute::ApproximateNumberOfMessagesNotVisible;

pub(super) async fn lag(seat: &SqsQueue) -> Result<Lag> {
    read(&seat.client, &seat.queue, &seat.url).await
}

pub(crate) async fn lag_of(source: &Source) -> Result<Lag> {
    let publisher = SqsPublisher::connect(source.url.as_str()).await?;
    let url = publisher.url(&source.queue).await?;
    read(&publisher.client, &source.queue, &url).await
}

async fn read(client: &Client, queue: &str, url: &str) -> Result<Lag> {
    let asking = client.get_queue_attributes().queue_url(url);
    let asking = asking.set_attribute_names(Some(vec![WAITING, DELAYED, HELD]));
    let found = asking.send().await;
    let found = found.map_err(|error| convert_error(queue, error))?;
    let counts = found.attributes.unwrap_or_default();
    let waiting = count(&counts, &WAITING) + count(&counts, &DELAYED);
    let lag = Lag::waiting(waiting).with_unacknowledged(count(&counts, &HELD));
    Ok(lag.approximate())
}

fn count(counts: &HashMap<Attribute, String>, name: &Attribute) -> u64 {
    let text = counts.get(name);
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

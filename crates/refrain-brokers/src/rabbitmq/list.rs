//! Lists the dead letters of a queue: gets them on one channel and closes the channel, which returns them to
//! the queue.

use lapin::{Channel, options::BasicGetOptions};
use refrain::{
    Result,
    clock::Timestamp,
    consume::{DeadLetter, Source},
};

use super::{
    address::Address,
    codec,
    connect::{self, GOODBYE, RabbitConnection},
    errors, queues,
};

pub(crate) async fn dead_letters(source: &Source, at_most: usize) -> Result<Vec<DeadLetter>> {
    let desk = RabbitConnection::new(Address::parse(source.url.as_str())?);
    let connection = desk.connection().await?;
    let queue = queues::name(&source.queue)?;
    if !queues::exists(&connection, desk.server(), &queue).await? {
        return Ok(Vec::new());
    }
    let channel = connect::channel(&connection, desk.server()).await?;
    let letters = read(&channel, desk.server(), &source.queue, at_most).await?;
    // Waits until the server has returned the letters, so that a redrive started next finds them.
    let closing = channel.close(GOODBYE, "listed".into());
    errors::wait_for_reply(desk.server(), closing).await?;
    desk.close().await;
    Ok(letters)
}

async fn read(
    channel: &Channel,
    server: &str,
    queue: &str,
    at_most: usize,
) -> Result<Vec<DeadLetter>> {
    let mut letters = Vec::new();
    while letters.len() < at_most {
        let getting = channel.basic_get(queues::name(queue)?, BasicGetOptions::default());
        let Some(mut found) = errors::wait_for_reply(server, getting).await? else {
            break;
        };
        let payload = std::mem::take(&mut found.delivery.data).into();
        let (message, _) = codec::message_of(&found.delivery, payload);
        // RabbitMQ keeps no time of its own; the publisher may have set one.
        let seconds = *found.delivery.properties.timestamp();
        let time = seconds.map(|seconds| Timestamp(seconds.saturating_mul(1_000)));
        letters.push(DeadLetter::of(&message, time));
    }
    Ok(letters)
}

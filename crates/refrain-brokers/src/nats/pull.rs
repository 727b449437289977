//! Pulling: returns the available messages; if there are none, waits for the next message and those that
//! arrived with it.
//!
//! No request stays open after its pull ends: a message sent to an abandoned request is redelivered only
//! after `ack_wait`.

use std::{cmp::min, time::Duration};

use async_nats::jetstream::consumer::pull::{Batch, BatchError};
use futures_util::StreamExt as _;
use refrain::{Error, ErrorKind, Result, consume::Delivery};
use tokio::time::{sleep, timeout};

use super::{ANSWER, Nats, codec, errors, ticket::JetTicket};

/// Maximum number of messages per request.
const BATCH_MAX: usize = 1_000;
/// Time for the round trip to the server, added to the caller's `wait`. A server that is silent for longer
/// is unavailable.
const SLACK: Duration = Duration::from_secs(3);
/// The server's request expires up to this much before our own deadline, so that no message is sent after
/// we stop listening.
const MARGIN_MAX: Duration = Duration::from_millis(50);
/// Expiry of a request for the messages that are available now.
const AT_ONCE: Duration = Duration::from_millis(500);
/// Pause between attempts while the server starts.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn pull(nats: &Nats, at_most: usize, wait: Duration) -> Result<Vec<Delivery>> {
    let at_most = min(at_most, BATCH_MAX);
    let mut got = Vec::new();
    if at_most == 0 {
        return Ok(got);
    }
    let link = &nats.publisher.link;
    if timeout(wait, link.wait_until_up()).await.is_err() {
        return Err(errors::disconnected(&link.server));
    }
    // Until the server has said that there are no messages, no answer means that it is unavailable.
    let mut state = Err(errors::unavailable(&link.server, "no reply in time"));
    let trying = pull_with_retries(nats, at_most, wait, &mut got, &mut state);
    let ended = timeout(wait + SLACK, trying).await;
    match ended {
        _ if !got.is_empty() => Ok(got),
        Ok(done) => done.map(|()| got),
        Err(_) if link.is_up() => state.map(|()| got),
        Err(_) => Err(errors::disconnected(&link.server)),
    }
}

/// Retries while the server is starting; the caller's timeout ends the loop.
async fn pull_with_retries(
    nats: &Nats,
    at_most: usize,
    wait: Duration,
    got: &mut Vec<Delivery>,
    state: &mut Result<()>,
) -> Result<()> {
    loop {
        match attempt(nats, at_most, wait, got, state).await {
            Err(error) if error.is_retryable() && got.is_empty() => *state = Err(error),
            done => return done,
        }
        sleep(PAUSE).await;
        nats.publisher.link.wait_until_up().await;
    }
}

async fn attempt(
    nats: &Nats,
    at_most: usize,
    wait: Duration,
    got: &mut Vec<Delivery>,
    state: &mut Result<()>,
) -> Result<()> {
    fetch_available(nats, at_most, got).await?;
    *state = Ok(());
    let margin = min(wait / 10, MARGIN_MAX);
    if !got.is_empty() || wait <= margin {
        return Ok(());
    }
    let next = nats.consumer.batch().max_messages(1).expires(wait - margin);
    collect(nats, next.messages().await, got).await?;
    if got.is_empty() || at_most == 1 {
        return Ok(());
    }
    fetch_available(nats, at_most - 1, got).await
}

async fn fetch_available(nats: &Nats, at_most: usize, got: &mut Vec<Delivery>) -> Result<()> {
    let fetch = nats.consumer.fetch().max_messages(at_most).expires(AT_ONCE);
    let collecting = async { collect(nats, fetch.messages().await, got).await };
    // The client ends a request without a reply as if there were no messages, a little later than this.
    timeout(ANSWER, collecting)
        .await
        .unwrap_or_else(|_| Err(errors::unavailable(nats.publisher.server(), "no reply")))
}

/// Collects all messages that a request returns.
async fn collect(
    nats: &Nats,
    batch: Result<Batch, BatchError>,
    got: &mut Vec<Delivery>,
) -> Result<()> {
    let server = nats.publisher.server();
    let mut batch = batch.map_err(|error| errors::unavailable(server, error))?;
    while let Some(next) = batch.next().await {
        let next = next.map_err(|error| delivery_error(nats, &error.to_string()))?;
        let parts = codec::message_of(&next).zip(next.reply.clone());
        let Some(((message, attempt), reply)) = parts else {
            continue;
        };
        let ticket = Box::new(JetTicket::new(&nats.publisher, reply));
        got.push(Delivery {
            message,
            attempt,
            ticket,
        });
    }
    Ok(())
}

fn delivery_error(nats: &Nats, why: &str) -> Error {
    let info = nats.consumer.cached_info();
    let message = format!(
        "the consumer {:?} of the stream {:?} at NATS {} delivers no messages: {why}; if it was deleted, restart Refrain to create it again",
        info.name,
        info.stream_name,
        nats.publisher.server()
    );
    Error::new(ErrorKind::Unavailable, message)
}

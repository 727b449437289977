//! Pulling: what is there at once; if there is nothing, the next message, and what came with it.
//!
//! Nothing is asked for that is not waited for: a message that the server sends to nobody
//! comes again only when its patience ends.

use std::{cmp::min, time::Duration};

use async_nats::jetstream::consumer::pull::{Batch, BatchError};
use futures_util::StreamExt as _;
use refrain::{Error, ErrorKind, Result, consume::Delivery};
use tokio::time::{sleep, timeout};

use super::{Nats, codec, ticket::JetTicket, trouble};

/// How many are asked for at once, whatever the caller wants.
const BATCH_MAX: usize = 1_000;
/// For the way to the server and back.
const SLACK: Duration = Duration::from_secs(1);
/// The server ends a request this much before we stop listening, so that nothing is sent to nobody.
const MARGIN_MAX: Duration = Duration::from_millis(50);
/// How long the server may take for what is there at once.
const AT_ONCE: Duration = Duration::from_millis(500);
/// Between attempts while a server comes up.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn pull(nats: &Nats, at_most: usize, wait: Duration) -> Result<Vec<Delivery>> {
    let at_most = min(at_most, BATCH_MAX);
    let mut got = Vec::new();
    if at_most == 0 {
        return Ok(got);
    }
    let link = &nats.publisher.link;
    if timeout(wait, link.up()).await.is_err() {
        return Err(trouble::down(&link.server));
    }
    let mut trouble = None;
    let trying = insist(nats, at_most, wait, &mut got, &mut trouble);
    let ended = timeout(wait + SLACK, trying).await;
    match (ended, trouble) {
        _ if !got.is_empty() => Ok(got),
        (Ok(done), _) => done.map(|()| got),
        (Err(_), Some(trouble)) => Err(trouble),
        (Err(_), None) if link.is_up() => Ok(got),
        (Err(_), None) => Err(trouble::down(&link.server)),
    }
}

/// Tries again while the server only comes up; the caller ends it.
async fn insist(
    nats: &Nats,
    at_most: usize,
    wait: Duration,
    got: &mut Vec<Delivery>,
    trouble: &mut Option<Error>,
) -> Result<()> {
    loop {
        match attempt(nats, at_most, wait, got).await {
            Err(error) if error.is_retryable() && got.is_empty() => *trouble = Some(error),
            done => return done,
        }
        sleep(PAUSE).await;
        nats.publisher.link.up().await;
    }
}

async fn attempt(
    nats: &Nats,
    at_most: usize,
    wait: Duration,
    got: &mut Vec<Delivery>,
) -> Result<()> {
    at_once(nats, at_most, got).await?;
    let margin = min(wait / 10, MARGIN_MAX);
    if !got.is_empty() || wait <= margin {
        return Ok(());
    }
    let next = nats.consumer.batch().max_messages(1).expires(wait - margin);
    collect(nats, next.messages().await, got).await?;
    if got.is_empty() || at_most == 1 {
        return Ok(());
    }
    at_once(nats, at_most - 1, got).await
}

async fn at_once(nats: &Nats, at_most: usize, got: &mut Vec<Delivery>) -> Result<()> {
    let fetch = nats.consumer.fetch().max_messages(at_most).expires(AT_ONCE);
    collect(nats, fetch.messages().await, got).await
}

/// Takes everything that a request brings.
async fn collect(
    nats: &Nats,
    batch: Result<Batch, BatchError>,
    got: &mut Vec<Delivery>,
) -> Result<()> {
    let server = nats.publisher.server();
    let mut batch = batch.map_err(|error| trouble::unavailable(server, error))?;
    while let Some(next) = batch.next().await {
        let next = next.map_err(|error| cannot(nats, &error.to_string()))?;
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

fn cannot(nats: &Nats, why: &str) -> Error {
    let info = nats.consumer.cached_info();
    let message = format!(
        "the consumer {:?} of the stream {:?} at NATS {} hands out nothing: {why}; \
         if it was deleted, start again to make it anew",
        info.name,
        info.stream_name,
        nats.publisher.server()
    );
    Error::new(ErrorKind::Unavailable, message)
}

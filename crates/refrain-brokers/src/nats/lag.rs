//! Reads the counts that the server keeps of a consumer.

use std::error::Error as StdError;

use async_nats::jetstream::{consumer::Info, context::ConsumerInfoErrorKind, stream::Stream};
use futures_util::TryStreamExt as _;
use refrain::{
    Error, Result,
    consume::{Lag, Source},
};

use super::{Nats, NatsPublisher, errors, streams};

pub(super) async fn lag(nats: &Nats) -> Result<Lag> {
    let info = nats.consumer.get_info().await;
    let name = &nats.consumer.cached_info().name;
    let info = info.map_err(|error| unreadable(&nats.publisher, name, &error))?;
    Ok(counts(&info))
}

pub(crate) async fn lag_of(source: &Source) -> Result<Lag> {
    let nats = NatsPublisher::connect(source.url.as_str()).await?;
    let Some((settings, filter)) = streams::locate(&nats, &source.queue).await? else {
        return Ok(Lag::waiting(0));
    };
    let stream = nats.context.get_stream(&settings.name).await;
    let stream = stream.map_err(|error| unreadable(&nats, &settings.name, &error))?;
    match stream.consumer_info(&source.consumer).await {
        Ok(info) => Ok(counts(&info)),
        Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
            undelivered(&nats, &stream, filter).await
        }
        Err(error) => Err(unreadable(&nats, &source.consumer, &error)),
    }
}

fn counts(info: &Info) -> Lag {
    Lag::waiting(info.num_pending).with_unacknowledged(info.num_ack_pending as u64)
}

/// All messages of the stream, or of one subject: no consumer has received any.
async fn undelivered(nats: &NatsPublisher, stream: &Stream, filter: Option<String>) -> Result<Lag> {
    let Some(subject) = filter else {
        return Ok(Lag::waiting(stream.cached_info().state.messages));
    };
    let counting = async {
        let subjects = stream.info_with_subjects(&subject).await?;
        let sum = async |sum, (_, count)| Ok(sum + count as u64);
        subjects.try_fold(0, sum).await
    };
    let counted = counting.await;
    let counted = counted.map_err(|error| unreadable(nats, &subject, &error))?;
    Ok(Lag::waiting(counted))
}

/// The error for a stream or a consumer whose state cannot be read.
fn unreadable(nats: &NatsPublisher, name: &str, error: &(dyn StdError + 'static)) -> Error {
    let what = format!("cannot read the state of {name:?}");
    errors::convert_error(nats.server(), &what, None, error)
}

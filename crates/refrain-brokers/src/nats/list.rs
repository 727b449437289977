//! Lists the dead letters of a stream without consuming them, from the first one that the consumer has not
//! acknowledged.

use async_nats::{
    HeaderMap,
    jetstream::stream::{RawMessageErrorKind, Stream},
};
use refrain::{
    Result,
    clock::Timestamp,
    consume::{DeadLetter, Message, Source},
};

use super::{NatsPublisher, codec, errors, streams};

/// Wildcard that matches every subject.
const ANY: &str = ">";

pub(crate) async fn dead_letters(source: &Source, at_most: usize) -> Result<Vec<DeadLetter>> {
    let nats = NatsPublisher::connect(source.url.as_str()).await?;
    let Some((settings, filter)) = streams::locate(&nats, &source.queue).await? else {
        return Ok(Vec::new());
    };
    let what = format!("cannot list the stream {:?}", settings.name);
    let failed = |error: &(dyn std::error::Error + 'static)| {
        errors::convert_error(nats.server(), &what, None, error)
    };
    let stream = nats.context.get_stream(&settings.name).await;
    let stream = stream.map_err(|error| failed(&error))?;
    let subject = filter.as_deref().unwrap_or(ANY);
    let mut letters = Vec::new();
    let mut next = first_open(&stream, &source.consumer).await;
    while letters.len() < at_most {
        let found = match stream.get_first_raw_message_by_subject(subject, next).await {
            Ok(found) => found,
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => break,
            Err(error) => return Err(failed(&error)),
        };
        next = found.sequence + 1;
        let millis = found.time.unix_timestamp_nanos() / 1_000_000;
        let time = u64::try_from(millis).ok().map(Timestamp);
        letters.push(DeadLetter::of(
            &message(found.payload, &found.headers),
            time,
        ));
    }
    Ok(letters)
}

/// Sequence number of the first message that the consumer has not acknowledged; 1 if the consumer does not exist.
async fn first_open(stream: &Stream, consumer: &str) -> u64 {
    match stream.consumer_info(consumer).await {
        Ok(info) => info.ack_floor.stream_sequence + 1,
        Err(_) => 1,
    }
}

fn message(payload: bytes::Bytes, headers: &HeaderMap) -> Message {
    let mut message = Message::new(payload);
    codec::take_headers(&mut message, headers);
    message
}

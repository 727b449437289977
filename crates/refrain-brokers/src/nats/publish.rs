//! Publishing: done when JetStream says under which number it holds the message.

use async_nats::jetstream::{
    Error as Refusal,
    context::{PublishError, PublishErrorKind},
    message::PublishMessage,
    stream,
};
use refrain::{Error, ErrorKind, Result, consume::Message};

use super::{NatsPublisher, codec, streams, trouble};

/// Publishes under a subject; where no stream takes it, to the stream of that name, and else to one that is made.
pub(super) async fn publish(
    nats: &NatsPublisher,
    destination: &str,
    message: &Message,
) -> Result<()> {
    let outgoing = PublishMessage::build()
        .payload(message.payload.clone())
        .headers(codec::headers_of(message)?);
    match send(nats, destination, outgoing.clone()).await {
        Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {}
        done => return done.map_err(|error| failed(nats, destination, &error)),
    }
    let subject = match streams::locate(nats, destination).await? {
        Some((stream, _)) => subject_of(nats, destination, &stream)?,
        None => {
            streams::make(nats, destination).await?;
            destination.to_owned()
        }
    };
    let sent = send(nats, &subject, outgoing).await;
    sent.map_err(|error| failed(nats, destination, &error))
}

async fn send(
    nats: &NatsPublisher,
    subject: &str,
    message: PublishMessage,
) -> Result<(), PublishError> {
    let sent = nats
        .context
        .send_publish(subject.to_owned(), message)
        .await?;
    let held = sent.await?;
    // Servers before 2.11 may take a message that they lost for one that they hold; it has no number then.
    match held.duplicate && held.sequence == 0 {
        true => Err(PublishError::new(PublishErrorKind::TimedOut)),
        false => Ok(()),
    }
}

/// A stream that was named instead of a subject can be published to if there is one subject to take.
fn subject_of(nats: &NatsPublisher, name: &str, stream: &stream::Config) -> Result<String> {
    let subjects = &stream.subjects;
    // The subject itself: its stream was not up a moment ago.
    if subjects.iter().any(|subject| subject == name) || name != stream.name {
        return Ok(name.to_owned());
    }
    match subjects.as_slice() {
        [subject] if !subject.contains(['*', '>']) => Ok(subject.clone()),
        _ => {
            let message = format!(
                "the stream {name:?} at NATS {} takes {}; name the subject to publish under",
                nats.server(),
                subjects.join(", ")
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

fn failed(nats: &NatsPublisher, destination: &str, error: &PublishError) -> Error {
    let what = format!("publishing to {destination:?}");
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => {
            let message = format!(
                "{what} at NATS {}: {}; make the message smaller, or max_payload larger",
                nats.server(),
                trouble::told(error)
            );
            Error::new(ErrorKind::Invalid, message)
        }
        _ if !nats.link.is_up() => trouble::down(nats.server()),
        _ => trouble::failed(nats.server(), &what, refusal_of(error), error),
    }
}

fn refusal_of(error: &PublishError) -> Option<&Refusal> {
    std::error::Error::source(error)?.downcast_ref()
}

//! Publishing: complete when JetStream acknowledges the message with its sequence number.

use async_nats::jetstream::{
    Error as Refusal,
    context::{PublishError, PublishErrorKind},
    message::PublishMessage,
    stream,
};
use refrain::{Error, ErrorKind, Result, consume::Message};

use super::{NatsPublisher, codec, errors, streams};

/// Publishes under a subject. If no stream has the subject, publishes to the stream of that name, or
/// creates a stream.
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
        done => return done.map_err(|error| convert_error(nats, destination, &error)),
    }
    let subject = match streams::locate(nats, destination).await? {
        Some((stream, _)) => subject_of(nats, destination, &stream)?,
        None => {
            streams::create(nats, destination).await?;
            destination.to_owned()
        }
    };
    let sent = send(nats, &subject, outgoing).await;
    sent.map_err(|error| convert_error(nats, destination, &error))
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
    // Servers before 2.11 may report a message that they lost as a duplicate; its sequence number is then 0.
    match held.duplicate && held.sequence == 0 {
        true => Err(PublishError::new(PublishErrorKind::TimedOut)),
        false => Ok(()),
    }
}

/// Returns the subject to publish under if the destination is a stream's name; the stream must have exactly
/// one subject.
fn subject_of(nats: &NatsPublisher, name: &str, stream: &stream::Config) -> Result<String> {
    let subjects = &stream.subjects;
    // The destination is a subject after all: its stream was unavailable a moment ago.
    if subjects.iter().any(|subject| subject == name) || name != stream.name {
        return Ok(name.to_owned());
    }
    match subjects.as_slice() {
        [subject] if !subject.contains(['*', '>']) => Ok(subject.clone()),
        _ => {
            let message = format!(
                "the stream {name:?} at NATS {} accepts the subjects {}; use one of them as the destination",
                nats.server(),
                subjects.join(", ")
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

fn convert_error(nats: &NatsPublisher, destination: &str, error: &PublishError) -> Error {
    let what = format!("cannot publish to {destination:?}");
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => {
            let message = format!(
                "{what} at NATS {}: {}; send a smaller message, or raise max_payload on the server",
                nats.server(),
                errors::describe_error(error)
            );
            Error::new(ErrorKind::Invalid, message)
        }
        _ if !nats.link.is_up() => errors::disconnected(nats.server()),
        _ => errors::convert_error(nats.server(), &what, refusal_of(error), error),
    }
}

fn refusal_of(error: &PublishError) -> Option<&Refusal> {
    std::error::Error::source(error)?.downcast_ref()
}

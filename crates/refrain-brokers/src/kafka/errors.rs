//! Maps Kafka errors to errors that name the topic or brokers, the cause and the fix.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientContext, Offset,
    config::RDKafkaLogLevel as Level,
    consumer::{Consumer, ConsumerContext, StreamConsumer},
    error::{KafkaError, RDKafkaErrorCode as Code},
    types::RDKafkaConfRes,
};
use refrain::{Error, ErrorKind};

/// Maximum number of partitions listed in an error.
const LISTED_MAX: usize = 8;

/// Keeps the reason of the last failed connection: librdkafka's errors only say that no broker answers, its
/// log says why.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLogLine {
    /// Reason of the last failed connection.
    last: Arc<Mutex<Option<String>>>,
}

impl ClientContext for LastLogLine {
    /// Logs at lower levels than librdkafka does: an error that fails a pull or a publish is returned by that call.
    fn log(&self, level: Level, fac: &str, message: &str) {
        match level {
            Level::Emerg | Level::Alert | Level::Critical => {
                tracing::error!(target: "librdkafka", "{fac}: {message}");
            }
            _ => tracing::debug!(target: "librdkafka", "{fac}: {message}"),
        }
        // Facility `FAIL`: a connection failed; other lines are informational.
        if fac == "FAIL" {
            // Strips the prefix, which names the thread and, twice, the broker.
            let reason = message
                .rsplit_once("]: ")
                .map_or(message, |(_, reason)| reason);
            *self.last() = Some(reason.to_owned());
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
    }
}

impl ConsumerContext for LastLogLine {}

impl LastLogLine {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the reason to an error if the connection failed. `kind` is the error kind if the user has to
    /// change a setting.
    pub(super) fn explain(&self, place: &str, error: KafkaError, kind: ErrorKind) -> Error {
        let converted = convert_error(place, error);
        let Some(reason) = self.last().clone() else {
            return converted;
        };
        if converted.kind() != ErrorKind::Unavailable {
            return converted;
        }
        let lower = reason.to_ascii_lowercase();
        let (kind, fix) = if lower.contains("certificate") {
            (kind, CERTIFICATE)
        } else if lower.contains("ssl") {
            (kind, TLS)
        } else if ["sasl", "authentication", "in state auth"]
            .iter()
            .any(|it| lower.contains(it))
        {
            (kind, fix(Some(Code::SaslAuthenticationFailed)).1)
        } else {
            fix(None)
        };
        Error::new(kind, format!("Kafka, {place}: {reason}; {fix}"))
    }
}

const CERTIFICATE: &str = "a certificate was rejected: set the CA certificate with ?ssl.ca.location=FILE, or the client certificate with ssl.certificate.location and ssl.key.location";
const TLS: &str =
    "check whether the brokers use TLS on this port: set ?security.protocol=ssl or sasl_ssl";

/// Converts an error of librdkafka, with the fix.
pub(super) fn convert_error(place: &str, error: KafkaError) -> Error {
    // The error's text has the value, which may be a password.
    if let KafkaError::ClientConfig(result, _, name, _) = &error {
        let rejected = rejected(*result, name);
        return Error::new(ErrorKind::Invalid, format!("Kafka, {place}: {rejected}"));
    }
    let (kind, fix) = fix(error.rdkafka_error_code());
    Error::new(kind, format!("Kafka, {place}: {error}; {fix}"))
}

/// Describes a setting that librdkafka rejects. An unknown name is not printed, because it may be the rest of a
/// password that contains a `&`.
fn rejected(result: RDKafkaConfRes, name: &str) -> String {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._".contains(&byte);
    match result == RDKafkaConfRes::RD_KAFKA_CONF_INVALID && name.bytes().all(is_part) {
        true => format!(
            "librdkafka rejects the value of `{name}`; check it in the settings after the `?` of the address"
        ),
        false => "librdkafka does not know a setting after the `?` of the address; check the names of the settings, and percent-encode & in a value as %26"
            .into(),
    }
}

fn fix(code: Option<Code>) -> (ErrorKind, &'static str) {
    match code {
        Some(Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::InvalidTopic) => {
            (ErrorKind::Invalid, "create the topic, or check its name")
        }
        Some(
            Code::Authentication
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::SaslAuthenticationFailed,
        ) => (
            ErrorKind::Invalid,
            "check user, password and permissions: read and write on the topic, read on the group",
        ),
        Some(Code::SSL) => (ErrorKind::Unavailable, TLS),
        _ => (
            ErrorKind::Unavailable,
            "check the address, and that the brokers are running",
        ),
    }
}

/// Whether a batch cannot be read. librdkafka fetches it again and again, and nothing after it.
pub(super) fn is_unreadable(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::BadCompression
                | Code::NotImplemented
                | Code::BadMessage
                | Code::InvalidMessage
                | Code::MessageSizeTooLarge
        )
    )
}

/// Builds the error for an unreadable batch: cause, positions of the group, and how to continue.
pub(super) fn unreadable<C: ConsumerContext>(
    topic: &str,
    consumer: &StreamConsumer<C>,
    error: &KafkaError,
) -> Error {
    let cause = match error.rdkafka_error_code() {
        Some(Code::BadCompression) => "its compression is damaged, or not supported",
        Some(Code::NotImplemented) => {
            "its compression or format is not supported (supported: none, gzip, snappy, lz4 and zstd)"
        }
        Some(Code::MessageSizeTooLarge) => {
            "it is larger than the fetch limit; set ?receive.message.max.bytes=BYTES"
        }
        _ => "it is damaged",
    };
    let places = describe_positions(consumer);
    let message = format!(
        "Kafka, {topic}: cannot read a batch: {cause} ({error}). Its partition is blocked, and no message is skipped{places}; publish the messages again with another compression, or skip the batch with kafka-consumer-groups.sh --reset-offsets"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The position of each assigned partition.
fn describe_positions<C: ConsumerContext>(consumer: &StreamConsumer<C>) -> String {
    let Ok(positions) = consumer.position() else {
        return String::new();
    };
    let places = positions.elements();
    let places = places.iter().map(|place| match place.offset() {
        Offset::Offset(next) => format!("{} at offset {next}", place.partition()),
        _ => format!("{} at the committed offset", place.partition()),
    });
    let places: Vec<_> = places.take(LISTED_MAX).collect();
    match places.is_empty() {
        true => String::new(),
        false => format!("; partitions: {}", places.join(", ")),
    }
}

/// The error if no message and no end of a partition arrived: whether there are messages is unknown.
pub(super) fn not_ready(topic: &str, partitions: usize, wait: Duration) -> Error {
    let message = match partitions {
        0 => format!(
            "Kafka, {topic}: this consumer was assigned no partition within {wait:?}; other members of the group may hold all partitions: stop them, or wait until they leave the group"
        ),
        _ => format!(
            "Kafka, {topic}: no fetch completed within {wait:?}; check that the partitions have leaders"
        ),
    };
    Error::new(ErrorKind::Unavailable, message)
}

#[cfg(test)]
mod tests {
    //! A mistyped name of a setting made librdkafka print the password after it.

    use refrain::consume::Source;

    use super::*;
    use crate::kafka::{Kafka, KafkaPublisher};

    #[tokio::test]
    async fn rejected_setting_is_reported_without_its_value() {
        for (settings, words) in [
            ("password=canary", "does not know a setting"),
            ("sasl.pasword=canary", "does not know a setting"),
            ("sasl.password=aa&canary", "does not know a setting"),
            ("sasl.password=aa&canary=", "does not know a setting"),
            ("security.protocol=canary", "`security.protocol`"),
            ("debug=canary", "the value of `debug`"),
            ("socket.timeout.ms=canary", "`socket.timeout.ms`"),
        ] {
            let url = format!("kafka://127.0.0.1:1?{settings}");
            let published = KafkaPublisher::connect(&url).await.err();
            let consumed = Kafka::connect(&Source::new(url, "q", "c")).await.err();
            for error in [published, consumed] {
                let error = error.unwrap();
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{settings}: {text}");
                assert!(text.contains(words), "{settings}: {text}");
                for printed in [text, format!("{error:?}")] {
                    assert!(!printed.contains("canary"), "{settings}: {printed}");
                }
            }
        }
    }
}

//! Maps AMQP errors to errors that name the server, the cause and the fix.

use lapin::ErrorKind as Kind;
use refrain::{Error, ErrorKind, Result};
use tokio::time::timeout;

use super::ANSWER;

/// AMQP reply codes.
const REFUSED: u16 = 403;
pub(super) const NOT_FOUND: u16 = 404;
const LOCKED: u16 = 405;
const PRECONDITION: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// The AMQP reply code of a rejection by the server.
pub(super) fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        Kind::ProtocolError(refusal) => Some(refusal.get_id()),
        _ => None,
    }
}

/// Converts an error of the AMQP client.
pub(super) fn convert_error(server: &str, error: &lapin::Error) -> Error {
    let fix = match code(error) {
        Some(REFUSED) => "check the user, the password and the permissions",
        Some(NOT_ALLOWED) => {
            "check the virtual host in the address, and that the user has access to it"
        }
        Some(NOT_FOUND) => "check the name of the queue or exchange",
        Some(LOCKED) => "another connection has exclusive access to it",
        Some(PRECONDITION) => "it exists with different settings; delete it, or use another name",
        _ if is_about_certificates(error) => {
            let message = format!(
                "RabbitMQ at {server}: a certificate was rejected: {error}; set the CA certificate of the server with ?ca=FILE, and the client certificate with cert=FILE&key=FILE"
            );
            return Error::new(ErrorKind::Unavailable, message);
        }
        _ => {
            let message = format!(
                "cannot connect to RabbitMQ at {server}: {error}; check the address, and that the server is running{}; reconnecting automatically",
                match server.starts_with("amqps") {
                    true => ", and whether it requires a client certificate (cert=FILE&key=FILE)",
                    false => "",
                }
            );
            return Error::new(ErrorKind::Unavailable, message);
        }
    };
    let message = format!("RabbitMQ at {server} rejected the request: {error}; {fix}");
    Error::new(ErrorKind::Invalid, message)
}

/// Whether one side rejected the other's certificate: the server is running and reachable.
fn is_about_certificates(error: &lapin::Error) -> bool {
    let mut beneath: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = beneath {
        if error
            .to_string()
            .to_ascii_lowercase()
            .contains("certificate")
        {
            return true;
        }
        beneath = error.source();
    }
    false
}

/// The request timed out.
pub(super) fn timed_out(server: &str) -> Error {
    let message = format!("RabbitMQ at {server} did not respond in time");
    Error::new(ErrorKind::Unavailable, message)
}

/// The delivery's channel is gone, and the server requeues the message.
pub(super) fn requeued(server: &str) -> Error {
    let message = format!(
        "the connection to RabbitMQ at {server} was lost while a message was being handled; RabbitMQ will deliver the message again"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Waits for the server's answer, up to the request timeout.
pub(super) async fn wait_for_reply<T>(
    server: &str,
    asked: impl Future<Output = lapin::Result<T>>,
) -> Result<T> {
    match timeout(ANSWER, asked).await {
        Ok(answer) => answer.map_err(|error| convert_error(server, &error)),
        Err(_) => Err(timed_out(server)),
    }
}

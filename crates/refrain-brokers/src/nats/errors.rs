//! Maps NATS errors to errors that name the server, the cause and the fix.

use std::{error::Error as StdError, fmt};

use async_nats::{
    ConnectError, ConnectErrorKind,
    jetstream::{Error as Refusal, ErrorCode, context::RequestErrorKind},
};
use refrain::{Error, ErrorKind};

/// The connection attempt failed.
pub(super) fn not_connected(server: &str, error: &ConnectError) -> Error {
    use ConnectErrorKind::{Authentication, AuthorizationViolation, ServerParse, Tls};
    let reason = describe_error(error);
    if reason.to_ascii_lowercase().contains("certificate") {
        let message = format!(
            "NATS at {server}: a certificate was rejected: {reason}; set the CA certificate of the server with ?ca=FILE, and the client certificate with cert=FILE&key=FILE"
        );
        return Error::new(ErrorKind::Invalid, message);
    }
    let (kind, fix) = match error.kind() {
        Authentication | AuthorizationViolation => (
            ErrorKind::Invalid,
            "check USER:PASSWORD@, TOKEN@ or ?credentials=FILE in the address",
        ),
        Tls => (
            ErrorKind::Invalid,
            "check that the server uses TLS on this port, and which TLS versions it accepts",
        ),
        ServerParse => (ErrorKind::Invalid, "write nats://HOST:PORT"),
        _ => (
            ErrorKind::Unavailable,
            "check the address, and that the server is running",
        ),
    };
    let message = format!("cannot connect to NATS at {server}: {reason}; {fix}");
    Error::new(kind, message)
}

/// The server did not complete a request; a retry may succeed.
pub(super) fn unavailable(server: &str, error: impl fmt::Display) -> Error {
    let message = format!("NATS at {server} did not respond: {error}");
    Error::new(ErrorKind::Unavailable, message)
}

/// The connection is lost; the client reconnects.
pub(super) fn disconnected(server: &str) -> Error {
    let message = format!(
        "lost the connection to NATS at {server}; reconnecting until the server is available"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The server has no JetStream: its API subjects have no responders.
pub(super) fn no_jetstream(server: &str) -> Error {
    let message = format!(
        "JetStream is disabled or not ready yet on NATS at {server}; start nats-server with -js, or enable it for this account"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// JetStream rejected a request.
pub(super) fn refused(server: &str, what: &str, refusal: &Refusal) -> Error {
    let code = refusal.error_code();
    if [
        ErrorCode::JETSTREAM_NOT_ENABLED,
        ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
    ]
    .contains(&code)
    {
        return no_jetstream(server);
    }
    let full = [
        ErrorCode::STREAM_STORE_FAILED,
        ErrorCode::INSUFFICIENT_RESOURCES,
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::MEMORY_RESOURCES_EXCEEDED,
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ];
    // A 4xx code is about the request, a 5xx code about the server.
    let kind = match refusal.code() {
        _ if full.contains(&code) => ErrorKind::Full,
        400..500 => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("{what} at NATS {server}: {refusal}");
    Error::new(kind, message)
}

/// A JetStream request failed.
///
/// Where `refusal` is `None`, the reason is in the source chain of `error`.
pub(super) fn convert_error(
    server: &str,
    what: &str,
    refusal: Option<&Refusal>,
    error: &(dyn StdError + 'static),
) -> Error {
    if let Some(refusal) = refusal {
        return refused(server, what, refusal);
    }
    let text = describe_error(error);
    if text.contains(&RequestErrorKind::NoResponders.to_string()) {
        return no_jetstream(server);
    }
    let message = format!("{what} at NATS {server}: {text}");
    Error::new(ErrorKind::Unavailable, message)
}

/// The error's message followed by those of its sources, without repetitions.
pub(super) fn describe_error(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut beneath = error.source();
    while let Some(error) = beneath {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        beneath = error.source();
    }
    text
}

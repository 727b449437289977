//! Maps SQS errors to errors that name the queue, the cause and the fix.

use std::time::Duration;

use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use refrain::{Error, ErrorKind};

/// Converts an error of the AWS SDK.
pub(super) fn convert_error<E, R>(what: &str, error: SdkError<E, R>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let code = error.code().unwrap_or_default();
    let (kind, fix) = match &error {
        SdkError::ConstructionFailure(_) => (
            ErrorKind::Invalid,
            "check the address and the AWS credentials",
        ),
        SdkError::ServiceError(_) => service(code),
        _ => (
            ErrorKind::Unavailable,
            "check the region, the endpoint and the network",
        ),
    };
    let message = format!("SQS, {what}: {}; {fix}", DisplayErrorContext(&error));
    Error::new(kind, message)
}

/// SQS did not answer within this time.
pub(super) fn timed_out(what: &str, wait: Duration) -> Error {
    let message = format!(
        "SQS, {what}: no response within {wait:?}; check the region, the endpoint and the network"
    );
    Error::new(ErrorKind::Unavailable, message)
}

fn service(code: &str) -> (ErrorKind, &'static str) {
    let is = |word: &str| code.contains(word);
    if is("NonExistentQueue") || is("QueueDoesNotExist") {
        let fix = "create the queue, or check its name, region and account";
        return (ErrorKind::Invalid, fix);
    }
    if is("AccessDenied") || is("InvalidClientTokenId") || is("SignatureDoesNotMatch") {
        let fix = "check the credentials, and allow sqs:GetQueueUrl, GetQueueAttributes, SendMessage, ReceiveMessage, DeleteMessage and ChangeMessageVisibility";
        return (ErrorKind::Invalid, fix);
    }
    if is("MessageNotInflight") || is("ReceiptHandleIsInvalid") || is("InvalidParameterValue") {
        let fix = "the message was held longer than ack_wait, or is already settled";
        return (ErrorKind::Held, fix);
    }
    (ErrorKind::Unavailable, "check the SQS error")
}

/// Whether the request may have been lost, so that an immediate retry may help.
pub(super) fn is_lost<E, R>(error: &SdkError<E, R>) -> bool {
    matches!(
        error,
        SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) | SdkError::ResponseError(_)
    )
}

//! A well-behaved client: one key for one payment, the same on every retry, with a timeout and a limit.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use refrain::Backoff;
use serde::Deserialize;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Timeout of one request.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// How long a buyer retries: far longer than needed, so that a busy machine makes the demo slow and not wrong.
const GIVE_UP: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(400));

/// Counters of all buyers together.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Requests that were sent, retries included.
    pub(super) requests: AtomicUsize,
    /// Payments whose buyer received a success.
    pub(super) paid: AtomicUsize,
}

/// Pays, and retries with the same key until there is an answer. Returns `false` after a refusal, or if time runs out.
pub(super) async fn buy(key: &str, address: SocketAddr, seen: &Seen) -> bool {
    let is_paid = timeout(GIVE_UP, persist(key, address, seen)).await;
    let is_paid = is_paid.unwrap_or(false);
    seen.paid.fetch_add(is_paid.into(), Ordering::Relaxed);
    is_paid
}

async fn persist(key: &str, address: SocketAddr, seen: &Seen) -> bool {
    let mut delays = BACKOFF.delays();
    loop {
        seen.requests.fetch_add(1, Ordering::Relaxed);
        let answer = tokio::select! {
            biased;
            answer = send_payment(key, address) => answer.ok(),
            () = super::nap(PATIENCE) => None,
        };
        // Without an answer the charge is unknown. The same key makes a retry safe.
        let answer = answer.unwrap_or(PaymentResult::Again(Duration::ZERO));
        match answer {
            PaymentResult::Paid => return true,
            PaymentResult::Refused => return false,
            PaymentResult::Again(at_least) => sleep(delays.after_failure().max(at_least)).await,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum PaymentResult {
    Paid,
    /// Retry with the same key, after at least this pause.
    Again(Duration),
    /// A retry would not help.
    Refused,
}

async fn send_payment(key: &str, address: SocketAddr) -> anyhow::Result<PaymentResult> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Aborted on drop, which closes the connection.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request = Request::post("/v1/payments")
        .header(header::HOST, address.to_string())
        .header("idempotency-key", key)
        .body(Full::new(Bytes::from_static(b"amount=20")))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await.context("cut")?.to_bytes();
    Ok(judge(head.status, &head.headers, &body))
}

/// The body of a problem response.
#[derive(Debug, Deserialize)]
struct Problem {
    advice: String,
}

fn judge(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> PaymentResult {
    if status.is_success() {
        return PaymentResult::Paid;
    }
    let problem: Option<Problem> = serde_json::from_slice(body).ok();
    match problem.as_ref().map(|problem| problem.advice.as_str()) {
        // The proxy's probe finds the outcome, and the same key is always safe, so `ask` means retry later here.
        Some("wait" | "reuse-key" | "ask") => PaymentResult::Again(retry_after(headers)),
        _ => PaymentResult::Refused,
    }
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let value = headers.get(header::RETRY_AFTER);
    let seconds = value.and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    //! A buyer that misreads an answer makes the demo's numbers worthless.

    use super::*;

    #[test]
    fn an_answer_is_read_by_its_status_and_its_advice() {
        let again = |seconds| PaymentResult::Again(Duration::from_secs(seconds));
        let cases = [
            (201, "", "{}", PaymentResult::Paid),
            (200, "", "{}", PaymentResult::Paid),
            (409, "1", r#"{"advice":"wait"}"#, again(1)),
            (409, "", r#"{"advice":"ask"}"#, again(0)),
            (503, "2", r#"{"advice":"reuse-key"}"#, again(2)),
            (422, "", r#"{"advice":"new-key"}"#, PaymentResult::Refused),
            (500, "", "oh", PaymentResult::Refused),
        ];
        for (status, after, body, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, after.parse().unwrap());
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(judge(status, &headers, body.as_bytes()), expected, "{body}");
        }
    }
}

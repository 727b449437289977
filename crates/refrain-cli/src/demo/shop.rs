//! The flaky payments service of the demo, bare or behind the layer.
//!
//! It charges first and has its troubles afterwards, which is the order that hurts.
//! What trouble it has with a payment depends on the number in the key alone, so every run of the demo is like the last.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use refrain::{
    Engine, Operation, Policy,
    http::RefrainLayer,
    key::{KEY_HEADER, Syntax},
    policy::Class,
    store::{AnyStore, embedded::Options},
};
use serde::Deserialize;
use serde_json::json;
use tokio::{net::TcpListener, time::sleep};

use super::ledger::{Charge, Ledger};

/// How long the bank takes before it charges: a kill finds payments on both sides of it.
const BANK: Duration = Duration::from_millis(30);
/// Longer than a buyer waits, and longer than the policy's `timeout`.
const SLOW: Duration = Duration::from_millis(700);

/// A demo needs little room, and a small segment is soon read after the kill.
const SEGMENT_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to charge to
    #[arg(long)]
    ledger: PathBuf,
    /// Guard the service with records in this folder
    #[arg(long)]
    guarded_in: Option<PathBuf>,
}

/// Serves until the process is killed or its stdin closes, which it does when whoever started it is gone.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    super::runtime()?.block_on(async {
        let mut app = shop(Ledger::at(&args.ledger));
        if let Some(folder) = &args.guarded_in {
            app = guard(app, folder).await?;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        axum::serve(listener, app).await?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn guard(app: Router, folder: &Path) -> refrain::Result<Router> {
    let options = Options {
        segment_bytes_max: SEGMENT_BYTES_MAX,
        ..Options::default()
    };
    let address = format!("file:{}", folder.display());
    let engine = Engine::new(AnyStore::open_with(&address, options).await?);
    let layer = RefrainLayer::new(engine, policy()?).with_probes(app.clone());
    Ok(app.layer(layer))
}

/// Real payments take longer times; the demo is in a hurry.
fn policy() -> refrain::Result<Policy> {
    let mut payments = Operation::new("POST /v1/payments")?.with_class(Class::Monetary);
    payments.probe = Some("GET /v1/payments?key={key}".parse()?);
    payments.terms.wait = Duration::from_millis(200);
    payments.terms.timeout = Duration::from_millis(500);
    payments.terms.lease = Duration::from_secs(1);
    payments.terms.settle_after = Duration::from_millis(1_500);
    Policy::new(vec![payments])
}

fn shop(ledger: Ledger) -> Router {
    Router::new()
        .route("/v1/payments", get(look_up).post(pay))
        .with_state(Arc::new(ledger))
}

async fn pay(State(ledger): State<Arc<Ledger>>, headers: HeaderMap, body: String) -> Response {
    let Some(charge) = read(&headers, &body) else {
        let usage = "send an Idempotency-Key, and a body like amount=20\n";
        return (StatusCode::BAD_REQUEST, usage).into_response();
    };
    sleep(BANK).await;
    let charged = ledger
        .find(&charge.key)
        .and_then(|before| ledger.charge(&charge).map(|()| before));
    match charged {
        Ok(None) => answer(Trouble::of(&charge.key), &charge).await,
        // It has its trouble once, or buyers would never get an answer.
        Ok(Some(_)) => answer(None, &charge).await,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn read(headers: &HeaderMap, body: &str) -> Option<Charge> {
    let key = Syntax::default().read(headers.get(KEY_HEADER)?.as_bytes());
    Some(Charge {
        key: key.ok()?.as_str().into(),
        amount: body.trim().strip_prefix("amount=")?.parse().ok()?,
    })
}

#[derive(Debug, Deserialize)]
struct Wanted {
    key: String,
}

async fn look_up(State(ledger): State<Arc<Ledger>>, Query(wanted): Query<Wanted>) -> Response {
    match ledger.find(&wanted.key) {
        Ok(Some(charge)) => paid(StatusCode::OK, &charge),
        Ok(None) => (StatusCode::NOT_FOUND, "never charged\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// What goes wrong behind the charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Cut,
    Slow,
}

impl Trouble {
    /// Decided by the number at the end of the key; a key without one has no trouble.
    fn of(key: &str) -> Option<Self> {
        let text = key.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: u64 = key[text.len()..].parse().ok()?;
        match number % 3 {
            0 => Some(Self::Cut),
            1 => Some(Self::Slow),
            _ => None,
        }
    }
}

async fn answer(trouble: Option<Trouble>, charge: &Charge) -> Response {
    match trouble {
        None => paid(StatusCode::CREATED, charge),
        Some(Trouble::Slow) => {
            sleep(SLOW).await;
            paid(StatusCode::CREATED, charge)
        }
        Some(Trouble::Cut) => Response::new(Body::from_stream(Cut(Some("{\"amount\":")))),
    }
}

fn paid(status: StatusCode, charge: &Charge) -> Response {
    let json = json!({ "key": charge.key, "amount": charge.amount });
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, format!("{json}\n")).into_response()
}

/// A body that breaks off in the middle.
struct Cut(Option<&'static str>);

impl futures_core::Stream for Cut {
    type Item = Result<&'static str, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let cut = || std::io::Error::other("cut on purpose");
        std::task::Poll::Ready(Some(self.0.take().ok_or_else(cut)))
    }
}

#[cfg(test)]
mod tests {
    //! The demo is the same on every run because its troubles are.

    use super::*;

    #[test]
    fn the_number_in_the_key_decides_the_trouble() {
        let cases = [
            ("payment-30", Some(Trouble::Cut)),
            ("payment-1", Some(Trouble::Slow)),
            ("payment-2", None),
            ("payment", None),
            ("7-eleven", None),
        ];
        for (key, trouble) in cases {
            assert_eq!(Trouble::of(key), trouble, "{key}");
        }
    }

    #[test]
    fn the_policy_keeps_the_rules() {
        policy().unwrap();
    }
}

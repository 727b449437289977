//! What a worker tells about itself: whether it lives, whether it works, and its counters.

use std::net::SocketAddr;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use refrain::consume::Count;
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};

use super::Tallies;
use crate::{output::say, proxy::Failure};

/// Serves until it is dropped.
pub(super) struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Told = (Tallies, watch::Receiver<bool>);

pub(super) async fn serve(
    address: SocketAddr,
    tallies: Tallies,
    stopping: watch::Receiver<bool>,
) -> Result<Serving, Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let message = format!("{address} cannot be listened on: {error}; choose another --admin");
        Failure::Unavailable(message)
    })?;
    say(format!("admin http://{}", listener.local_addr()?));
    let routes = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state((tallies, stopping));
    let task = tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(Serving(task.abort_handle()))
}

async fn ready(State((_, stopping)): State<Told>) -> (StatusCode, &'static str) {
    match *stopping.borrow() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        false => (StatusCode::OK, "ok\n"),
    }
}

/// In the text format of Prometheus. Names of workers need no escaping: letters, digits, `-` and `_`.
async fn metrics(State((tallies, _)): State<Told>) -> String {
    let mut text = String::from(
        "# HELP refrain_messages_total What became of the deliveries.\n# TYPE refrain_messages_total counter\n",
    );
    for (name, tally) in &tallies {
        for count in Count::ALL {
            let (outcome, number) = (count.name(), tally.get(count));
            text += &format!(
                "refrain_messages_total{{consumer=\"{name}\",outcome=\"{outcome}\"}} {number}\n"
            );
        }
    }
    text
}

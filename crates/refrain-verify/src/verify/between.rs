//! A [`Chaos`] proxy with one rule, between a case and the service.

use tokio::{net::TcpListener, task::JoinHandle};

use super::stage::Stop;
use crate::{
    chaos::{Chaos, Fault, Rule},
    place::Endpoint,
};

/// A running proxy; it stops when this is dropped.
#[derive(Debug)]
pub(super) struct Between {
    pub(super) place: Endpoint,
    serving: JoinHandle<()>,
}

impl Between {
    /// Starts a proxy for `upstream` that applies `fault` to the first `times` requests, and passes all others.
    pub(super) async fn new(
        upstream: &Endpoint,
        seed: u64,
        fault: Fault,
        times: u64,
    ) -> Result<Self, Stop> {
        let broken = |why: &dyn std::fmt::Display| {
            Stop::Broken(format!("fault proxy of refrain verify: {why}"))
        };
        let chaos = Chaos::before(upstream.clone(), seed);
        let mut rule = Rule::new("* *", fault).map_err(|error| broken(&error))?;
        rule.times = Some(times);
        chaos.rules().add(rule).map_err(|error| broken(&error))?;
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(|error| broken(&error))?;
        let address = listener.local_addr().map_err(|error| broken(&error))?;
        let serving = tokio::spawn(async move {
            let _ = chaos.serve(listener, std::future::pending()).await;
        });
        Ok(Self {
            place: Endpoint::plain(address.to_string()),
            serving,
        })
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

//! Known bugs of other idempotency implementations, tested against the real proxy.
//!
//! Each test is named after the correct behaviour, and its comment names the bug.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "../kills_support/proxy.rs"]
mod proxy;
#[path = "../kills_support/upstream.rs"]
mod upstream;
#[path = "../kills_support/wire.rs"]
mod wire;

mod answers;
mod connections;
mod crashes;
mod duplicates;
mod failures;
mod identity;

use std::time::Duration;

use proxy::{Proxy, Setup};
use upstream::{Act, Arrived, Upstream};
use wire::{Message, Wire, ask, post, request};

/// A proxy in front of a scripted service.
struct Stand {
    upstream: Upstream,
    setup: Setup,
    proxy: Proxy,
}

impl Stand {
    /// Starts both; `settings` is the rest of the refrain.toml.
    async fn new(
        settings: &str,
        answer: impl Fn(&Arrived) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        let upstream = Upstream::start(answer).await;
        let setup = Setup::new(upstream.address, settings);
        let proxy = setup.start();
        Self {
            upstream,
            setup,
            proxy,
        }
    }

    /// Sends a request on a new connection.
    async fn ask(&self, bytes: &[u8]) -> Message {
        ask(self.proxy.address, bytes).await
    }

    async fn post(&self, key: &str, body: &str) -> Message {
        self.ask(&post("/orders", key, body.as_bytes())).await
    }

    /// The value of a metric without labels; empty if it is missing.
    async fn metric(&self, name: &str) -> String {
        let admin = self.proxy.admin;
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {admin}\r\n\r\n");
        let shown = ask(admin, request.as_bytes()).await.text();
        let mut lines = shown.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_default().to_owned()
    }

    async fn open(&self) -> Wire {
        Wire::open(self.proxy.address).await.unwrap()
    }

    /// Kills the proxy with SIGKILL and restarts it on the same store.
    fn kill_and_start(&mut self) {
        self.proxy.kill();
        self.proxy = self.setup.start();
    }
}

/// [`upstream::echo`] after a delay.
fn slow_echo(arrived: &Arrived, millis: u64) -> Vec<Act> {
    let mut acts = vec![Act::Sleep(Duration::from_millis(millis))];
    acts.extend(upstream::echo(arrived));
    acts
}

/// Bytes of a request with a key and more headers, each with its line break.
fn post_with(target: &str, key: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let headers = format!("idempotency-key: {key}\r\n{headers}");
    request("POST", target, &headers, body)
}

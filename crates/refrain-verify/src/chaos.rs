//! Fault-injection proxy: drops responses, duplicates requests, and cuts, delays, resets and reorders them.
//!
//! [`Rule`]s say which requests are hit, and how often. Whether a rule hits the n-th request that it matches depends
//! only on the seed and the rule's number, so a run can be repeated.
//! A request that no rule hits passes unchanged. Each client connection has its own connection to the upstream.
//!
//! ```
//! use refrain_verify::chaos::Rule;
//! let rule: Rule = "POST /v1/payments drop-answer 30%".parse()?;
//! assert_eq!(rule.to_string(), "POST /v1/payments drop-answer 30%");
//! # Ok::<(), refrain_verify::chaos::BadRule>(())
//! ```

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};

mod answer;
mod control;
mod dice;
mod exchange;
mod flow;
mod harm;
mod head;
mod journal;
mod line;
mod request;
mod rule;
mod rules;
mod side;

pub use control::router;
pub use journal::{Event, Journal};
pub use rule::{BadRule, Fault, Rule};
pub use rules::{Listed, RULES_MAX, Rules};

use crate::place::Endpoint;
pub use crate::place::Trust;

/// Maximum number of concurrent client connections; more connections wait.
const CONNECTIONS_MAX: usize = 4_096;
/// Pause after a failed accept, such as when no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for running exchanges to end after shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// A fault-injection proxy: its upstream, its rules, and a journal of injected faults. Clones share them.
#[derive(Debug, Clone)]
pub struct Chaos(Arc<ChaosState>);

#[derive(Debug)]
struct ChaosState {
    upstream: Endpoint,
    rules: Rules,
    journal: Journal,
    passed: AtomicU64,
    reorder: harm::Waiting,
}

impl Chaos {
    /// Returns a proxy for `upstream` (`http://HOST:PORT` or `https://HOST:PORT`), with this random seed and no rules.
    /// With TLS it trusts the machine's certificate authorities.
    ///
    /// # Errors
    /// [`BadRule`] when `upstream` is not such an address.
    pub fn new(upstream: &str, seed: u64) -> Result<Self, BadRule> {
        Self::trusting(upstream, seed, &Trust::Machine)
    }

    /// Like [`new`](Self::new), with a choice of trusted certificates.
    ///
    /// # Errors
    /// [`BadRule`] when `upstream` is not such an address, or the certificates cannot be loaded.
    pub fn trusting(upstream: &str, seed: u64, trust: &Trust) -> Result<Self, BadRule> {
        let bad = || {
            BadRule::new(format!(
                "invalid upstream `{upstream}`; write http://HOST:PORT or https://HOST:PORT, without a path"
            ))
        };
        let whole = upstream.strip_suffix('/').unwrap_or(upstream);
        let (is_tls, authority) = match whole.strip_prefix("https://") {
            Some(authority) => (true, authority),
            None => (false, whole.strip_prefix("http://").ok_or_else(bad)?),
        };
        if authority.is_empty() || authority.contains(['/', '?', '#', '@', ' ']) {
            return Err(bad());
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| {
            !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
        });
        let address = match (has_port, is_tls) {
            (true, _) => authority.to_owned(),
            (false, true) => format!("{authority}:443"),
            (false, false) => format!("{authority}:80"),
        };
        let place = match is_tls {
            true => trust
                .connector()
                .and_then(|tls| Endpoint::secured(&address, tls))
                .map_err(BadRule::new)?,
            false => Endpoint::plain(address),
        };
        Ok(Self::before(place, seed))
    }

    /// Returns a proxy for the service at this address.
    pub(crate) fn before(upstream: Endpoint, seed: u64) -> Self {
        Self(Arc::new(ChaosState {
            upstream,
            rules: Rules::new(seed),
            journal: Journal::default(),
            passed: AtomicU64::new(0),
            reorder: harm::Waiting::default(),
        }))
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Returns the journal of injected faults.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.0.journal
    }

    /// Returns how many requests passed unchanged.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.0.passed.load(Relaxed)
    }

    /// Serves until `shutdown`, then waits up to 5 seconds for running exchanges.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let (ending, ended) = watch::channel(());
        let mut connections = JoinSet::new();
        tokio::select! {
            () = shutdown => {}
            failed = self.accept(&listener, &mut connections, &ended) => failed?,
        }
        drop((listener, ending));
        let all = async { while connections.join_next().await.is_some() {} };
        // Longer exchanges are cut off, which is acceptable for a fault-injection proxy.
        let _ = tokio::time::timeout(DRAIN, all).await;
        Ok(())
    }

    async fn accept(
        &self,
        listener: &TcpListener,
        connections: &mut JoinSet<()>,
        ended: &watch::Receiver<()>,
    ) -> io::Result<()> {
        let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(turn) = turns.clone().acquire_owned().await else {
                return Ok(());
            };
            let (stream, client) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(_) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            while connections.try_join_next().is_some() {}
            let (chaos, ended) = (self.clone(), ended.clone());
            connections.spawn(async move {
                line::serve(chaos, stream, client, ended).await;
                drop(turn);
            });
        }
    }
}

fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected
    )
}

/// Client address, for the log.
pub(crate) type Peer = SocketAddr;

#[cfg(test)]
mod tests;

//! Redis Cluster: every record is in one slot, and each call goes to the primary of that slot.
//!
//! Retries of the driver are off. A command that a server rejected without running it (moved, not ready) is retried
//! here; a command that may have run is not.

use std::{fmt, time::Duration};

use ::redis::{
    Cmd, ErrorKind as Kind, Pipeline, RedisError, RedisResult, RetryMethod, Value,
    aio::ConnectionLike as _,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
    cmd,
};
use tokio::time::{sleep, timeout};

use super::{connection::Patience, reception::Node};
use ::redis::ConnectionInfo;

const PAUSE: Duration = Duration::from_millis(20);

/// Connections to all primaries. Clones share them.
#[derive(Clone)]
pub(super) struct Cluster {
    connection: ClusterConnection,
    patience: Patience,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    pub(super) async fn connect(
        seeds: Vec<ConnectionInfo>,
        patience: Patience,
    ) -> RedisResult<Self> {
        let client = ClusterClient::builder(seeds)
            .retries(0)
            .connection_timeout(patience.connect)
            .response_timeout(patience.answer)
            .build()?;
        let connecting = client.get_async_connection();
        let connected = timeout(patience.connect * 2, connecting).await;
        let connection = connected.unwrap_or_else(|_| Err(timed_out()))?;
        Ok(Self {
            connection,
            patience,
        })
    }

    /// Sends a command to the primary of its keys. Retries while slots are moving, up to the answer limit.
    pub(super) async fn send_command(&self, command: &Cmd) -> RedisResult<Value> {
        let asking = async {
            loop {
                let error = match self.send_once(command).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                match error.retry_method() {
                    RetryMethod::AskRedirect => return self.send_redirected(command, &error).await,
                    _ if was_refused(&error) => sleep(PAUSE).await,
                    _ => return Err(error),
                }
            }
        };
        let answered = timeout(self.patience.answer, asking).await;
        answered.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn send_once(&self, command: &Cmd) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        connection
            .req_packed_command(command)
            .await?
            .extract_error()
    }

    /// The slot is being migrated to another node, which accepts the command only after `ASKING`.
    async fn send_redirected(&self, command: &Cmd, error: &RedisError) -> RedisResult<Value> {
        let node = error.redirect_node().and_then(|(node, _)| {
            let (host, port) = node.rsplit_once(':')?;
            Some((host.to_owned(), port.parse().ok()?))
        });
        let Some((host, port)) = node else {
            return Err(error.clone());
        };
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(cmd("ASKING"));
        pipeline.add_command(command.clone());
        let route = SingleNodeRoutingInfo::ByAddress { host, port };
        let mut connection = self.connection.clone();
        let mut answers = connection.route_pipeline(pipeline, 0, 2, route).await?;
        match answers.pop() {
            Some(answer) => answer.extract_error(),
            None => Err(error.clone()),
        }
    }

    /// Primaries that hold slots.
    pub(super) async fn primaries(&self) -> RedisResult<Vec<Node>> {
        let mut slots = cmd("CLUSTER");
        slots.arg("SLOTS");
        let route = SingleNodeRoutingInfo::Random;
        let mut connection = self.connection.clone();
        let asked = connection.route_command(slots, RoutingInfo::SingleNode(route));
        let Value::Array(ranges) = asked.await?.extract_error()? else {
            return Ok(Vec::new());
        };
        let mut found: Vec<(String, u16)> = Vec::new();
        for primary in ranges.iter().filter_map(primary) {
            if !found.contains(&primary) {
                found.push(primary);
            }
        }
        let node = |(host, port)| Node::Of(self.connection.clone(), host, port);
        Ok(found.into_iter().map(node).collect())
    }

    /// Routes each command to the node of its key.
    pub(super) fn any(&self) -> Node {
        Node::Any(self.connection.clone())
    }
}

/// Host and port of the primary of a slot range.
fn primary(range: &Value) -> Option<(String, u16)> {
    let Value::Array(parts) = range else {
        return None;
    };
    let Value::Array(node) = parts.get(2)? else {
        return None;
    };
    let host = match node.first()? {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        _ => return None,
    };
    match node.get(1)? {
        Value::Int(port) => Some((host, u16::try_from(*port).ok()?)),
        _ => None,
    }
}

/// Whether the command did not run: not sent, or rejected by the server.
fn was_refused(error: &RedisError) -> bool {
    let is_servers_word = matches!(error.kind(), Kind::Server(_));
    let may_be_asked_again = matches!(
        error.retry_method(),
        RetryMethod::MovedRedirect | RetryMethod::RefreshSlotsAndRetry | RetryMethod::WaitAndRetry
    );
    (is_servers_word && may_be_asked_again) || error.kind() == Kind::ClusterConnectionNotFound
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

//! Checks a server before it holds records: version, role, eviction, durability, and the store's mark.

use ::redis::{
    Cmd, FromRedisValue, RedisError, RedisResult, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
    cmd, pipe,
};
use refrain::{Error, ErrorKind, Result, Secret};

use super::{address::Start, errors, mark::Mark, scripts::Scripts};

/// Oldest supported server: `SET` with `PXAT` needs 6.2.
const VERSION_MIN: (u32, u32) = (6, 2);
/// First version in which a script can declare flags.
const VERSION_WITH_FLAGS: (u32, u32) = (7, 0);

/// Facts about the servers on which the store was opened.
#[derive(Debug)]
pub(super) struct OpenedServer {
    pub(super) mark: Mark,
    pub(super) scripts: Scripts,
    /// Reasons why acknowledged writes may be lost; empty if they may not.
    pub(super) losses: Vec<String>,
}

impl OpenedServer {
    pub(super) fn secret(&self) -> &Secret {
        &self.mark.secret
    }

    pub(super) fn is_lossy(&self) -> bool {
        !self.losses.is_empty()
    }
}

/// Server to send commands to.
#[derive(Clone)]
pub(super) enum Node {
    One(MultiplexedConnection),
    /// Node of a cluster, by host and port.
    Of(ClusterConnection, String, u16),
    /// Node of a cluster that holds the key of the command.
    Any(ClusterConnection),
}

impl Node {
    pub(super) async fn send_command<T: FromRedisValue>(&self, command: Cmd) -> RedisResult<T> {
        let answer = match self {
            Self::One(connection) => connection.clone().send_packed_command(&command).await?,
            Self::Of(connection, host, port) => {
                let (host, port) = (host.clone(), *port);
                let route = SingleNodeRoutingInfo::ByAddress { host, port };
                let route = RoutingInfo::SingleNode(route);
                connection.clone().route_command(command, route).await?
            }
            Self::Any(connection) => connection.clone().req_packed_command(&command).await?,
        };
        Ok(T::from_redis_value(answer.extract_error()?)?)
    }
}

/// Settings from the address.
#[derive(Clone, Copy)]
pub(super) struct AddressSettings<'a> {
    pub(super) prefix: &'a str,
    /// Address without the password.
    pub(super) shown: &'a str,
    pub(super) start: Start,
}

/// Checks the servers on which a store is opened: all primaries of a cluster, or the single server.
///
/// `always` is a reason why writes may be lost, independent of the servers' settings.
pub(super) async fn check_servers(
    nodes: &[Node],
    keeper: &Node,
    asked: AddressSettings<'_>,
    always: Option<&str>,
) -> Result<OpenedServer> {
    let AddressSettings { prefix, shown, .. } = asked;
    let mut losses: Vec<String> = always.map(String::from).into_iter().collect();
    let mut knows_flags = true;
    for node in nodes {
        let facts = RedisServerFacts::read(node)
            .await
            .map_err(error_converter(shown))?;
        facts.check(shown)?;
        knows_flags &= facts.version >= VERSION_WITH_FLAGS;
        for loss in facts.losses() {
            if !losses.contains(&loss) {
                losses.push(loss);
            }
        }
    }
    let known = OpenedServer {
        mark: Mark::read_or_create(keeper, nodes, asked).await?,
        scripts: Scripts::new(knows_flags),
        losses,
    };
    check_rights(keeper, prefix)
        .await
        .map_err(error_converter(shown))?;
    for node in nodes {
        load(node, &known.scripts).await;
    }
    Ok(known)
}

/// Checks a server after a reconnect: it may be another server, or have lost its records.
pub(super) async fn recheck_server(
    connection: &MultiplexedConnection,
    known: &OpenedServer,
    shown: &str,
) -> Result<()> {
    let node = Node::One(connection.clone());
    let facts = RedisServerFacts::read(&node)
        .await
        .map_err(error_converter(shown))?;
    facts.check(shown).map_err(|error| {
        // The store is already open, so this is an unavailable server, not a configuration error.
        Error::new(ErrorKind::Unavailable, error.to_string())
    })?;
    for loss in facts.losses() {
        if !known.losses.contains(&loss) {
            tracing::warn!("the Redis server at {shown} may now lose acknowledged writes: {loss}");
        }
    }
    known.mark.check(&node, known.is_lossy(), shown).await?;
    load(&node, &known.scripts).await;
    Ok(())
}

/// Loads the scripts, best effort: a missing script is loaded on first use.
async fn load(node: &Node, scripts: &Scripts) {
    for script in scripts.load() {
        if let Err(error) = node.send_command::<Value>(script).await {
            tracing::debug!(%error, "cannot preload a Lua script");
            return;
        }
    }
}

/// Checks the user's rights: runs every command of the scripts on a key that no record has.
async fn check_rights(node: &Node, prefix: &str) -> RedisResult<()> {
    let script =
        "redis.call('MSETNX', KEYS[1], 'refrain') redis.call('SET', KEYS[1], 'refrain', 'PX', 1000)
        redis.call('PSETEX', KEYS[1], 1000, 'refrain') redis.call('GET', KEYS[1]) redis.call('GETRANGE', KEYS[1], 0, 1)
        redis.call('MGET', KEYS[1]) redis.call('TIME')
        return redis.call('DEL', KEYS[1])";
    let mut probe = cmd("EVAL");
    probe
        .arg(script)
        .arg(1)
        .arg(format!("{prefix}{{rights-{:016x}}}", rand::random::<u64>()));
    node.send_command::<Value>(probe).await?;
    // Cluster calls do not use transactions.
    if let Node::One(connection) = node {
        let mut empty = pipe();
        empty.cmd("MULTI").cmd("EXEC");
        let mut connection = connection.clone();
        for answer in connection.send_packed_commands(&empty, 0, 2).await? {
            answer.extract_error()?;
        }
    }
    Ok(())
}

fn error_converter(shown: &str) -> impl Fn(RedisError) -> Error {
    move |error| errors::convert_error(error, shown)
}

/// Role and settings of a server; `None` if it does not tell.
#[derive(Debug, Default)]
struct RedisServerFacts {
    version: (u32, u32),
    is_replica: bool,
    has_replicas: bool,
    policy: Option<String>,
    is_appended: Option<bool>,
    fsync: Option<String>,
}

impl RedisServerFacts {
    async fn read(node: &Node) -> RedisResult<Self> {
        let info: String = node.send_command(cmd("INFO")).await?;
        let mut facts = Self::from_info(&info);
        // Managed servers often forbid `CONFIG GET`. An unknown setting counts as unsafe.
        for (setting, field) in [
            ("maxmemory-policy", &mut facts.policy),
            ("appendfsync", &mut facts.fsync),
        ] {
            let mut get = cmd("CONFIG");
            get.arg("GET").arg(setting);
            if let Ok(pairs) = node.send_command::<Vec<String>>(get).await
                && let [_, value] = &pairs[..]
            {
                *field = Some(value.clone());
            }
        }
        Ok(facts)
    }

    fn from_info(info: &str) -> Self {
        let mut facts = Self::default();
        for (name, value) in info.lines().filter_map(|line| line.trim().split_once(':')) {
            match name {
                "redis_version" => facts.version = version(value),
                "role" => facts.is_replica = value != "master",
                // The backlog remains active for a while after the last replica disconnects.
                "connected_slaves" | "repl_backlog_active" => facts.has_replicas |= value != "0",
                "maxmemory_policy" => facts.policy = Some(value.into()),
                "aof_enabled" => facts.is_appended = Some(value == "1"),
                _ => {}
            }
        }
        facts
    }

    /// Checks that the server can hold records at all.
    fn check(&self, shown: &str) -> Result<()> {
        let refuse = |kind, what: String| {
            Err(Error::new(
                kind,
                format!("the Redis server at {shown} {what}"),
            ))
        };
        let (major, minor) = self.version;
        if self.version < VERSION_MIN {
            let what = format!("is version {major}.{minor}; the store needs 6.2 or newer");
            return refuse(ErrorKind::Unsupported, what);
        }
        if self.is_replica {
            let what = "is a replica, and the store reads records from the primary only; use the address of the primary, or redis+sentinel://";
            return refuse(ErrorKind::Unavailable, what.into());
        }
        match self.policy.as_deref() {
            Some("noeviction") => Ok(()),
            Some(policy) => refuse(
                ErrorKind::Unsupported,
                format!(
                    "evicts keys when it is full (maxmemory-policy is {policy}): a request whose record is evicted would execute again; set `maxmemory-policy noeviction` in its configuration, or run `CONFIG SET maxmemory-policy noeviction`"
                ),
            ),
            None => refuse(
                ErrorKind::Unsupported,
                "does not report its maxmemory-policy, which must be noeviction; grant the user `+info`".into(),
            ),
        }
    }

    /// Reasons why acknowledged writes may be lost.
    fn losses(&self) -> Vec<String> {
        let fsync = match (self.is_appended, self.fsync.as_deref()) {
            (Some(true), Some("always")) => None,
            (Some(true), Some(other)) => Some(format!(
                "appendfsync is {other}, so a power failure loses the latest acknowledged writes (set appendfsync always)"
            )),
            (Some(true), None) => Some(
                "cannot read its appendfsync, which is assumed not to be always (grant the user +config|get)".into(),
            ),
            _ => Some(
                "appendonly is off, so a restart loses acknowledged writes (set appendonly yes and appendfsync always)".into(),
            ),
        };
        let replicas = self.has_replicas.then(|| {
            "it has replicas, and replication is asynchronous: a failover loses the latest acknowledged writes".into()
        });
        fsync.into_iter().chain(replicas).collect()
    }
}

fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    //! A server that evicts, lags or loses data must be detected when it is checked.

    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nconnected_slaves:0\r\nrepl_backlog_active:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    fn facts(change: (&str, &str)) -> RedisServerFacts {
        let mut facts = RedisServerFacts::from_info(&GOOD.replace(change.0, change.1));
        facts.fsync = Some("always".into());
        facts
    }

    #[test]
    fn durable_server_is_accepted_without_warnings() {
        let facts = facts(("", ""));
        facts.check("here").unwrap();
        assert_eq!(facts.losses(), Vec::<String>::new());
    }

    #[test]
    fn unsuitable_server_is_rejected_with_the_fix() {
        for (change, words) in [
            (("7.0.15", "6.0.16"), "needs 6.2 or newer"),
            (
                ("role:master", "role:slave"),
                "use the address of the primary",
            ),
            (("noeviction", "allkeys-lru"), "maxmemory-policy noeviction"),
            (("maxmemory_policy", "hidden"), "grant the user `+info`"),
        ] {
            let error = facts(change).check("here").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn possible_data_loss_is_reported() {
        for (change, words) in [
            (("aof_enabled:1", "aof_enabled:0"), "appendonly is off"),
            (("connected_slaves:0", "connected_slaves:2"), "replicas"),
            (("active:0", "active:1"), "replicas"),
        ] {
            let losses = facts(change).losses().join("; ");
            assert!(losses.contains(words), "{losses}");
        }
        for (fsync, words) in [
            (Some("everysec"), "appendfsync is everysec"),
            (None, "cannot read its appendfsync"),
        ] {
            let mut facts = facts(("", ""));
            facts.fsync = fsync.map(Into::into);
            let losses = facts.losses().join("; ");
            assert!(losses.contains(words), "{losses}");
        }
    }
}

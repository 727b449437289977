//! Parser for `redis://…` addresses.

use ::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};
use refrain::{Error, ErrorKind, Result, policy};

/// Default key prefix.
const PREFIX: &str = "refrain:";
const PREFIX_BYTES_MAX: usize = 64;
const SENTINEL_PORT: u16 = 26_379;
/// Maximum number of servers in one address.
const HOSTS_MAX: usize = 64;

/// Parsed address of a store.
#[derive(Debug, Clone)]
pub(super) struct Address {
    /// Address without the password, for messages.
    pub(super) shown: String,
    pub(super) prefix: String,
    pub(super) place: RedisTopology,
    pub(super) start: Start,
}

/// What to do at start-up if the server does not have the store's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Start {
    /// Create a new store, unless there is evidence of lost records.
    #[default]
    Either,
    /// Reject the server, because the store existed before.
    Expected,
    /// Create a new store, even if records were lost.
    Fresh,
}

/// Kind and location of the servers.
#[derive(Debug, Clone)]
pub(super) enum RedisTopology {
    One(Box<ConnectionInfo>),
    Cluster(Vec<ConnectionInfo>),
    Sentinel(Box<Sentinels>),
}

/// Sentinels, and the service to ask them for.
#[derive(Debug, Clone)]
pub(super) struct Sentinels {
    pub(super) nodes: Vec<ConnectionAddr>,
    pub(super) service: String,
    /// User, password and database of the service's primary.
    pub(super) server: ConnectionInfo,
    /// Whether the Sentinels use the same user and password.
    pub(super) same_login: bool,
}

impl Address {
    pub(super) fn parse(address: &str) -> Result<Self> {
        policy::Address::new(address).check()?;
        let shown = policy::redacted(address);
        parse(address, &shown).map_err(|what| {
            let message = format!(
                "invalid Redis store address `{shown}`: {what}; write redis://[user:password@]host[:port][/database], \
                 redis+cluster://host,host or redis+sentinel://host,host/service, with rediss for TLS and ?prefix=… for another key prefix"
            );
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

fn parse(address: &str, shown: &str) -> Result<Address, String> {
    let (scheme, rest) = address.split_once("://").ok_or("`://` is missing")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let parameters = Parameters::parse(query)?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let (server, kind) = match scheme.split_once('+') {
        Some((server, kind)) => (server, kind),
        None => (scheme, ""),
    };
    let base = Base {
        scheme: server,
        login,
    };
    let place = match kind {
        "" => RedisTopology::One(Box::new(base.one(hosts, path)?)),
        "cluster" if path.is_empty() => RedisTopology::Cluster(base.all(hosts)?),
        "cluster" => return Err("Redis Cluster has no database numbers".into()),
        "sentinel" => {
            RedisTopology::Sentinel(Box::new(base.sentinels(hosts, path, &parameters)?))
        }
        other => return Err(format!("`{other}` is neither cluster nor sentinel")),
    };
    Ok(Address {
        shown: shown.into(),
        start: parameters.start()?,
        prefix: parameters.prefix,
        place,
    })
}

/// Common parts of all servers of an address.
struct Base<'a> {
    scheme: &'a str,
    /// User and password, including the trailing `@`.
    login: String,
}

impl Base<'_> {
    fn one(&self, host: &str, path: &str) -> Result<ConnectionInfo, String> {
        if host.contains(',') {
            return Err("several hosts need redis+cluster or redis+sentinel".into());
        }
        let url = format!("{}://{}{host}/{path}", self.scheme, self.login);
        // The driver's error messages never contain the address.
        url.into_connection_info()
            .map_err(|error| error.to_string())
    }

    fn all(&self, hosts: &str) -> Result<Vec<ConnectionInfo>, String> {
        let hosts: Vec<_> = hosts.split(',').collect();
        if hosts.len() > HOSTS_MAX {
            return Err(format!("it has more than {HOSTS_MAX} hosts"));
        }
        hosts.into_iter().map(|host| self.one(host, "")).collect()
    }

    fn sentinels(
        &self,
        hosts: &str,
        path: &str,
        parameters: &Parameters,
    ) -> Result<Sentinels, String> {
        let (service, database) = path.split_once('/').unwrap_or((path, ""));
        if service.is_empty() {
            return Err("the service name is missing, such as /mymaster".into());
        }
        let with_port = |host: &str| match has_port(host) {
            true => host.to_owned(),
            false => format!("{host}:{SENTINEL_PORT}"),
        };
        let hosts: Vec<_> = hosts.split(',').map(with_port).collect();
        let nodes = self.all(&hosts.join(","))?;
        Ok(Sentinels {
            nodes: nodes.iter().map(|node| node.addr().clone()).collect(),
            service: service.into(),
            server: self.one("server", database)?,
            same_login: parameters.sentinel_login,
        })
    }
}

fn has_port(host: &str) -> bool {
    let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    behind.contains(':')
}

struct Parameters {
    prefix: String,
    sentinel_login: bool,
    expect_records: bool,
    accept_lost_records: bool,
}

impl Parameters {
    fn parse(query: &str) -> Result<Self, String> {
        let mut parameters = Self {
            prefix: PREFIX.into(),
            sentinel_login: false,
            expect_records: false,
            accept_lost_records: false,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            parameters.take(pair)?;
        }
        Ok(parameters)
    }

    fn take(&mut self, pair: &str) -> Result<(), String> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name == "prefix" {
            self.prefix = checked_prefix(value)?;
            return Ok(());
        }
        let flag = match name {
            "sentinel_login" => &mut self.sentinel_login,
            "expect_records" => &mut self.expect_records,
            "accept_lost_records" => &mut self.accept_lost_records,
            _ => return Err(unknown(name)),
        };
        *flag = value.parse().map_err(|_| unknown(name))?;
        Ok(())
    }

    fn start(&self) -> Result<Start, String> {
        match (self.expect_records, self.accept_lost_records) {
            (false, false) => Ok(Start::Either),
            (true, false) => Ok(Start::Expected),
            (false, true) => Ok(Start::Fresh),
            (true, true) => Err(
                "expect_records=true and accept_lost_records=true cannot be combined; remove one"
                    .into(),
            ),
        }
    }
}

fn unknown(name: &str) -> String {
    format!(
        "unknown setting `{name}`, or invalid value; the settings are prefix=TEXT, sentinel_login=true, expect_records=true and accept_lost_records=true"
    )
}

/// Excludes glob characters, and braces, which select the slot.
fn checked_prefix(prefix: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b":._/-".contains(&byte);
    match prefix.len() <= PREFIX_BYTES_MAX && prefix.bytes().all(fits) {
        true => Ok(prefix.into()),
        false => Err(format!(
            "a prefix may contain letters, digits and `:._/-`, at most {PREFIX_BYTES_MAX} bytes"
        )),
    }
}

#[cfg(test)]
mod tests {
    //! An invalid address is reported before anything connects, and without the password.

    use super::*;

    fn place(address: &str) -> String {
        let parsed = Address::parse(address).unwrap();
        let node = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            let login = (settings.username(), settings.password());
            format!("{} {login:?} {}", info.addr(), settings.db())
        };
        let place = match &parsed.place {
            RedisTopology::One(info) => node(info),
            RedisTopology::Cluster(nodes) => nodes.iter().map(node).collect::<Vec<_>>().join(" | "),
            RedisTopology::Sentinel(sentinels) => format!(
                "{} of {} at {}",
                sentinels.service,
                node(&sentinels.server),
                sentinels
                    .nodes
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" | "),
            ),
        };
        format!("{} {place}", parsed.prefix)
    }

    #[test]
    fn parses_host_and_login_from_addresses() {
        for (address, want) in [
            ("redis://h", "refrain: h:6379 (None, None) 0"),
            (
                "redis://u:p%40x@h:7/3?prefix=shop/",
                "shop/ h:7 (Some(\"u\"), Some(\"p@x\")) 3",
            ),
            ("rediss://[::1]:7", "refrain: ::1:7 (None, None) 0"),
            (
                "redis+cluster://:p@a,b:7",
                "refrain: a:6379 (None, Some(\"p\")) 0 | b:7 (None, Some(\"p\")) 0",
            ),
            (
                "redis+sentinel://u:p@a,b:7/main/2",
                "refrain: main of server:6379 (Some(\"u\"), Some(\"p\")) 2 at a:26379 | b:7",
            ),
        ] {
            assert_eq!(place(address), want, "{address}");
        }
    }

    #[test]
    fn rejects_invalid_address_without_showing_its_password() {
        for (address, words) in [
            ("redis:h", "`://` is missing"),
            ("redis://", "hostname"),
            ("redis://u:secret@h/x", "database"),
            ("redis://u:secret@a,b", "several hosts need"),
            ("redis+cluster://u:secret@a,b/1", "no database numbers"),
            ("redis+sentinel://u:secret@a", "service name is missing"),
            ("redis+ring://u:secret@a", "neither cluster nor sentinel"),
            (
                "rediss://u:secret@h#insecure",
                "a fragment is not supported",
            ),
            ("redis://u:aa?secret@h", "? as %3F"),
            ("redis+sentinel://u:aa#secret@h/m", "# as %23"),
            ("redis://u:secret", "port that is not a number"),
            (
                "redis://u:secret@h?prefix=a{b",
                "a prefix may contain letters",
            ),
            ("redis://u:secret@h?tls=1", "unknown setting `tls`"),
            ("redis://u:secret@h?expect_records=yes", "`expect_records`"),
            (
                "redis://u:secret@h?expect_records=true&accept_lost_records=true",
                "cannot be combined",
            ),
        ] {
            let error = Address::parse(address).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{address}");
            assert!(text.contains(words), "{address}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}

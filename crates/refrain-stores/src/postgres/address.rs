//! Parser for `postgres://…` addresses: server, schema and TLS settings.

use std::{fmt, path::PathBuf, time::Duration};

use percent_encoding::percent_decode_str;
use refrain::{Error, ErrorKind, Result, policy};
use tokio_postgres::{
    Config,
    config::{ChannelBinding, Host, SslMode, TargetSessionAttrs},
};

/// Schema if the address names none.
const SCHEMA: &str = "refrain";
/// Longest schema name. Names derived from it have to fit into the 63 bytes of a PostgreSQL identifier.
const SCHEMA_BYTES_MAX: usize = 48;
/// Default limit for connecting and logging in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Parsed address of a store.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) schema: String,
    /// Whether the address contains `schema=`.
    pub(super) is_schema_named: bool,
    pub(super) trust: Trust,
    /// `sslrootcert`: trusted CA certificates in place of the system's.
    pub(super) roots: Option<PathBuf>,
    /// Client certificate for TLS.
    pub(super) client: Option<ClientCertificate>,
    /// Limit for the whole of connecting.
    pub(super) connect_timeout: Duration,
}

/// PEM files of a client certificate and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientCertificate {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// How strictly the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Not checked: encrypts, but does not prevent impersonation of the server.
    Anybody,
    /// The CA is checked (`verify-ca`).
    Authority,
    /// The CA and the host name are checked (`verify-full`).
    Full,
}

impl Address {
    pub(super) fn parse(address: &str) -> Result<Self> {
        policy::Address::new(address).check()?;
        let (front, query) = address.split_once('?').unwrap_or((address, ""));
        let front = &one_login(front);
        let mut parts = Parts::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            parts.take(pair)?;
        }
        let rest = match parts.rest.is_empty() {
            true => front.to_owned(),
            false => format!("{front}?{}", parts.rest.join("&")),
        };
        // An unknown parameter may be the rest of a password that contains a `&`.
        let has_secret = query.contains("password");
        let config: Config = rest
            .parse()
            .map_err(|error| unreadable(&error, has_secret))?;
        parts.into_address(config)
    }

    /// Schema name, quoted for SQL.
    pub(super) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema)
    }

    /// Channel for notifications of settlements. A schema name never contains a quote.
    pub(super) fn channel(&self) -> String {
        format!("refrain_{}", self.schema)
    }
}

/// Query parameters of an address.
#[derive(Default)]
struct Parts {
    schema: Option<String>,
    mode: Option<SslMode>,
    trust: Option<Trust>,
    roots: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    /// Parameters passed on to the driver.
    rest: Vec<String>,
}

impl Parts {
    fn take(&mut self, pair: &str) -> Result<()> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match name {
            "schema" => self.schema = Some(checked_schema(&value)?),
            "sslmode" => {
                let (mode, trust) = ssl_mode(&value)?;
                (self.mode, self.trust) = (Some(mode), trust);
            }
            "sslrootcert" => self.roots = Some(PathBuf::from(&*value)),
            "sslcert" => self.certificate = Some(PathBuf::from(&*value)),
            "sslkey" => self.key = Some(PathBuf::from(&*value)),
            // The driver takes the text before an `@` anywhere in the address as a login.
            _ => self.rest.push(pair.replace('@', "%40")),
        }
        Ok(())
    }

    fn into_address(self, mut config: Config) -> Result<Address> {
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            let message = "the address has no host; write postgres://USER@HOST/DATABASE, or ?host=/var/run/postgresql for a Unix socket";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        // With several servers, use the one that accepts writes: a standby lags behind.
        if config.get_hosts().len().max(config.get_hostaddrs().len()) > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        config.ssl_mode(self.mode.unwrap_or(SslMode::Prefer));
        let client = client_certificate(self.certificate, self.key)?;
        check_needs_tls(&config, client.is_some())?;
        if config.get_application_name().is_none() {
            config.application_name("refrain");
        }
        let connect_timeout = config.get_connect_timeout().copied();
        let connect_timeout = connect_timeout.filter(|timeout| !timeout.is_zero());
        // As in libpq: with `sslrootcert`, even `sslmode=require` checks the CA.
        let asked = self.roots.is_some() && self.mode == Some(SslMode::Require);
        let weakest = if asked {
            Trust::Authority
        } else {
            Trust::Anybody
        };
        Ok(Address {
            config,
            is_schema_named: self.schema.is_some(),
            schema: self.schema.unwrap_or_else(|| SCHEMA.into()),
            trust: self.trust.unwrap_or(weakest),
            roots: self.roots.filter(|path| path.as_os_str() != "system"),
            client,
            connect_timeout: connect_timeout.unwrap_or(CONNECT_TIMEOUT),
        })
    }
}

/// Requires certificate and key together.
fn client_certificate(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<ClientCertificate>> {
    let missing = match (certificate, key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => return Ok(Some(ClientCertificate { certificate, key })),
        (Some(_), None) => "sslcert is given without sslkey; add sslkey=FILE",
        (None, Some(_)) => "sslkey is given without sslcert; add sslcert=FILE",
    };
    let message = format!("{missing}, a PEM file, or remove both");
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Rejects settings that need TLS if `sslmode=disable`.
fn check_needs_tls(config: &Config, has_certificate: bool) -> Result<()> {
    let what = match config.get_ssl_mode() {
        SslMode::Disable if has_certificate => "sslcert",
        SslMode::Disable if config.get_channel_binding() == ChannelBinding::Require => {
            "channel_binding=require"
        }
        _ => return Ok(()),
    };
    let message =
        format!("{what} needs TLS, and sslmode=disable forbids it; write sslmode=verify-full");
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Omits the password, because messages end up in logs.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        f.write_str("postgres://")?;
        if let Some(user) = config.get_user() {
            write!(f, "{user}@")?;
        }
        for (number, host) in config.get_hosts().iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            match host {
                Host::Tcp(name) => write!(f, "{comma}{name}")?,
                #[cfg(unix)]
                Host::Unix(path) => write!(f, "{comma}{}", path.display())?,
            }
            let ports = config.get_ports();
            if let Some(port) = ports.get(number).or_else(|| ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "/{}", config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} schema {}", self.schema)
    }
}

/// Parses `sslmode`. The driver itself supports only the first three values.
fn ssl_mode(text: &str) -> Result<(SslMode, Option<Trust>)> {
    Ok(match text {
        "disable" => (SslMode::Disable, None),
        "prefer" => (SslMode::Prefer, None),
        "require" => (SslMode::Require, None),
        "verify-ca" => (SslMode::Require, Some(Trust::Authority)),
        "verify-full" => (SslMode::Require, Some(Trust::Full)),
        other => {
            let message = format!(
                "unknown sslmode={other}; write disable, prefer, require, verify-ca or verify-full"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
    })
}

/// Accepts plain names only: the name becomes part of SQL statements, also of those that a DBA reads.
fn checked_schema(name: &str) -> Result<String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    let fits = (1..=SCHEMA_BYTES_MAX).contains(&name.len()) && !name.starts_with("pg_");
    if starts && fits && name.bytes().all(is_plain) {
        return Ok(name.into());
    }
    let message = format!(
        "invalid schema={name}; use lower-case letters, digits and _, start with a letter but not with pg_, and use at most {SCHEMA_BYTES_MAX} characters"
    );
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Encodes every `@` before the last one. The driver splits at the first `@`, and would print part of the
/// password as the host.
fn one_login(front: &str) -> String {
    match front.rsplit_once('@') {
        Some((login, place)) => format!("{}@{place}", login.replace('@', "%40")),
        None => front.into(),
    }
}

fn unreadable(error: &tokio_postgres::Error, has_secret: bool) -> Error {
    let why = match super::errors::describe_error(error) {
        why if has_secret && why.contains("unknown option") => {
            "unknown parameter (percent-encode & in a password as %26)".into()
        }
        why => why,
    };
    let message = format!(
        "invalid address: {why}; \
         write postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME&sslmode=verify-full"
    );
    Error::new(ErrorKind::Invalid, message)
}

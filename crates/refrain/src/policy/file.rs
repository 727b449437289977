//! `refrain.toml`: parsed as written, then resolved. Every setting is checked before anything starts.

use std::{
    fmt, fs,
    io::Read as _,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Serialize, Serializer};

use super::{Address, Operation, Policy, Warning, warning};
use crate::{Encryption, jwt::JwtSettings, store::embedded::Durability};

mod authorization;
pub use authorization::AuthorizationScheme;

mod draft;

mod encryption;

mod forms;

mod jwt;

mod given;

mod network;
pub use network::Network;

mod problem;
use problem::Report;
pub use problem::{ConfigError, Problem};

mod proxy;
pub use proxy::{HostHeader, ProxySettings};

mod resolve;

mod schema;

mod server;

mod signed;

mod table;

mod telemetry;
pub use telemetry::{AccessLogSettings, AccessLogTarget, TraceSettings};

mod tls;
pub use tls::{ClientAuth, TlsSettings};

mod typed;

mod relay;
pub use relay::RelaySettings;

mod worker;
pub use worker::WorkerSettings;

/// Maximum size of the file, in bytes.
pub(super) const FILE_BYTES_MAX: usize = 4 << 20;

/// Parser for `refrain.toml`.
///
/// ```
/// use refrain::policy::File;
/// let settings = File::parse("[policy]\nretention = \"2d\"\n", "refrain.toml")?;
/// let found = settings.policy.find("POST", "/orders").unwrap();
/// assert_eq!(found.operation.terms.retention.as_secs(), 172_800);
/// # Ok::<(), refrain::policy::ConfigError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct File;

/// Resolved and checked settings of `refrain.toml`.
#[derive(Clone, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// Address of the proxy listener.
    pub listen: SocketAddr,
    /// Address of the admin listener: API, metrics and health probes.
    pub admin: SocketAddr,
    /// Further host names of the admin listener on a loopback address, in lower case.
    pub admin_hosts: Vec<String>,
    /// URL of the upstream service: scheme, authority and base path, without a trailing slash.
    pub upstream: Option<String>,
    /// Store for the records. Of two, the first is a cache of outcomes in front of the second.
    pub store: Vec<Address>,
    /// When a `file:` store acknowledges a write.
    pub durability: Durability,
    /// Keys of the store's records, from `[encryption]`; `None` if they are not encrypted.
    pub encryption: Option<Encryption>,
    /// Configured directory of the audit log; see [`audit_folder`](Self::audit_folder) for the default.
    pub audit_log: Option<PathBuf>,
    /// URL prefix of the `type` of problem responses, with a trailing slash.
    pub problems: String,
    /// Limits and timeouts of the proxy.
    pub proxy: ProxySettings,
    /// TLS towards clients of the proxy; `None` for plain HTTP.
    pub tls: Option<TlsSettings>,
    /// TLS of the admin listener; `None` for plain HTTP.
    pub admin_tls: Option<TlsSettings>,
    /// Proxies in front of this one whose forwarding headers are believed, from `[proxy]`.
    pub trusted_proxies: Vec<Network>,
    /// Access log of the proxy, from `[proxy]`; `None` if there is none.
    pub access_log: Option<AccessLogSettings>,
    /// Traces of the proxy, from `[proxy]`; `None` if there are none.
    pub traces: Option<TraceSettings>,
    /// Queues to consume, and the services that their messages are delivered to.
    pub workers: Vec<WorkerSettings>,
    /// Outboxes, and the brokers that their messages are published to.
    pub relays: Vec<RelaySettings>,
    /// Which tokens are valid, from `[jwt]`; `None` if no scope is made of claims, or secrets were not read.
    pub jwt: Option<JwtSettings>,
    /// Guarded operations and their settings.
    #[serde(rename = "operations", serialize_with = "as_operations")]
    pub policy: Policy,
}

/// The parts of `refrain.toml` whose secrets are read from the environment or from files.
///
/// The other parts are checked too, but a process does not need the secrets of parts that it does not use.
/// An address that was not read is replaced by a placeholder whose host name never resolves, and `authorization`,
/// `probe_authorization` and `signature` are missing: use only the selected parts of the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Secrets<'a> {
    /// The whole file.
    #[default]
    All,
    /// The store.
    Store,
    /// The store, `[policy]` and `[[operation]]`.
    Operations,
    /// The store, and the workers of these names; without names, all workers.
    Workers(&'a [String]),
    /// The relays of these names; without names, all relays.
    Relays(&'a [String]),
    /// No part: only the settings that are no secrets, such as `admin`.
    Nothing,
}

impl File {
    /// Reads and resolves a file.
    ///
    /// # Errors
    /// If the file cannot be read, or as for [`File::parse`].
    pub fn read(path: &Path) -> Result<Settings, ConfigError> {
        Self::read_with(path, Secrets::All, &[])
    }

    /// Reads and resolves a file, with the secrets of the named parts only.
    ///
    /// Each override is the name of a setting and its value, such as `("store", "memory:")`.
    /// It replaces the setting and its forms `NAME_env` and `NAME_file` at the top of the file, in `[proxy]`, and in the
    /// relays whose secrets are read.
    ///
    /// # Errors
    /// As for [`File::read`].
    pub fn read_with(
        path: &Path,
        secrets: Secrets<'_>,
        overrides: &[(&str, &str)],
    ) -> Result<Settings, ConfigError> {
        let name = path.display().to_string();
        let mut bytes = Vec::new();
        let read = fs::File::open(path).and_then(|file| {
            // One byte over the limit is enough to detect a file that is too large.
            file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)
        });
        if let Err(error) = read {
            let message = format!("cannot be read: {error}");
            return Err(ConfigError::whole(
                &name,
                message,
                "check the path and its permissions",
            ));
        }
        match String::from_utf8(bytes) {
            Ok(text) => resolved(&text, &name, secrets, overrides),
            Err(_) => Err(ConfigError::whole(
                &name,
                "is not UTF-8",
                "save it as UTF-8",
            )),
        }
    }

    /// Parses and resolves the text of a file; `name` is the file name in messages.
    ///
    /// # Errors
    /// The first syntax error; or, if the syntax is valid, all errors at once.
    pub fn parse(text: &str, name: &str) -> Result<Settings, ConfigError> {
        resolved(text, name, Secrets::All, &[])
    }

    /// Returns the JSON schema (draft 2020-12) of the file, for editors.
    #[must_use]
    pub fn schema() -> serde_json::Value {
        schema::schema()
    }
}

fn resolved(
    text: &str,
    name: &str,
    secrets: Secrets<'_>,
    overrides: &[(&str, &str)],
) -> Result<Settings, ConfigError> {
    let mut report = Report::new(text, name);
    let settings = resolve::settings(text, secrets, overrides, &mut report);
    match (settings, report.finish()) {
        (Some(settings), None) => Ok(settings),
        (_, Some(error)) => Err(error),
        (None, None) => Err(ConfigError::whole(
            name,
            "cannot be resolved, but no error was found",
            "report this as a bug",
        )),
    }
}

impl Secrets<'_> {
    fn has_store(self) -> bool {
        !matches!(self, Self::Relays(_) | Self::Nothing)
    }

    fn has_operations(self) -> bool {
        matches!(self, Self::All | Self::Operations)
    }

    fn has_worker(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Workers(names) => names.is_empty() || names.iter().any(|it| it == name),
            _ => false,
        }
    }

    fn has_relay(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Relays(names) => names.is_empty() || names.iter().any(|it| it == name),
            _ => false,
        }
    }
}

impl Settings {
    /// Returns the directory of the audit log: `audit_log`, else `audit` inside the directory of a `file:` store,
    /// else `refrain-audit`.
    #[must_use]
    pub fn audit_folder(&self) -> PathBuf {
        if let Some(folder) = &self.audit_log {
            return folder.clone();
        }
        let truth = self.store.last();
        match truth.and_then(|store| store.as_str().strip_prefix("file:")) {
            Some(folder) => Path::new(folder).join("audit"),
            None => "refrain-audit".into(),
        }
    }

    /// Returns the operations whose attempts are audited.
    pub fn audited(&self) -> impl Iterator<Item = &Operation> {
        self.policy.operations().filter(|it| it.is_audited())
    }

    /// Returns warnings about valid but probably unintended settings of operations and workers.
    pub fn warnings(&self) -> impl Iterator<Item = Warning> {
        let workers = self.workers.iter().flat_map(warning::of_worker);
        let tokens = self
            .jwt
            .iter()
            .flat_map(|jwt| warning::of_tokens(jwt, &self.policy));
        self.policy.warnings().chain(workers).chain(tokens)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("listen", &self.listen)
            .field("admin", &self.admin)
            .field("admin_hosts", &self.admin_hosts)
            .field("upstream", &self.upstream)
            .field("store", &self.store)
            .field("durability", &self.durability)
            .field("encryption", &self.encryption)
            .field("audit_log", &self.audit_log)
            .field("problems", &self.problems)
            .field("tls", &self.tls)
            .field("admin_tls", &self.admin_tls)
            .field("trusted_proxies", &self.trusted_proxies)
            .field("access_log", &self.access_log)
            .field("traces", &self.traces)
            .field("workers", &self.workers)
            .field("relays", &self.relays)
            .field("jwt", &self.jwt)
            .field("policy", &self.policy)
            .finish()
    }
}

fn as_operations<S: Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(policy.operations())
}

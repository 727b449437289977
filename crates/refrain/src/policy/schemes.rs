//! Address schemes: the one table of the stores and brokers that an address can name.
//!
//! Validation, redaction, the JSON schema, help texts, error messages and the review all read [`BACKENDS`].
//! Only opening needs code of its own: `refrain-stores` and `refrain-brokers` dispatch on [`BackendId`].
//!
//! ```
//! use refrain::policy::schemes::{Backend, BackendId};
//!
//! let redis = Backend::named("rediss+cluster").unwrap();
//! assert_eq!(redis.id, BackendId::Redis);
//! assert!(redis.store.is_some() && redis.broker.is_some());
//! ```

/// Identity of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendId {
    /// The memory store.
    Memory,
    /// The embedded store.
    Embedded,
    /// PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
    /// NATS JetStream.
    Nats,
    /// RabbitMQ.
    RabbitMq,
    /// Kafka.
    Kafka,
    /// Amazon SQS.
    Sqs,
}

/// A store, a broker, or a server that is both: one row of [`BACKENDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backend {
    /// Identity, for the code that opens it.
    pub id: BackendId,
    /// Name in messages.
    pub title: &'static str,
    /// Words that name it in a deployment file, such as an image.
    pub images: &'static [&'static str],
    /// Meaning of the login in its addresses.
    pub login: LoginKind,
    /// Parameters whose values are printed.
    pub shown: &'static [&'static str],
    /// Parameters whose values are redacted. Text after a `?` is a query only if all its parameters are known.
    pub secret: &'static [&'static str],
    /// Whether a query may have parameters besides these; their values are redacted.
    pub takes_any_parameter: bool,
    /// How it is used as a store, if it can be one.
    pub store: Option<StoreScheme>,
    /// How it is used as a broker, if it can be one.
    pub broker: Option<BrokerScheme>,
}

/// Meaning of the login in an address, which decides what of it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoginKind {
    /// It may be a secret as a whole, and is redacted.
    Secret,
    /// A user name before a colon and a password; without a colon it may be a token.
    UserOrToken,
    /// A user name, with or without a password.
    User,
}

/// Use of a backend as a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreScheme {
    /// Schemes of its addresses, the usual one first.
    pub schemes: &'static [&'static str],
    /// Text after the scheme.
    pub form: AddressForm,
    /// Cargo feature of `refrain-stores`; `None` for the stores of this crate.
    pub feature: Option<&'static str>,
    /// How long it keeps the claims that it acknowledged.
    pub durability: ClaimDurability,
    /// Whether it can serve outcomes in front of another store.
    pub can_be_front: bool,
    /// Whether `refrain migrate` creates its tables.
    pub has_tables: bool,
    /// Address that `refrain init` proposes.
    pub example: &'static str,
    /// Its properties, for a choice between stores.
    pub summary: &'static str,
}

/// Text after the scheme of a store address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressForm {
    /// Nothing: `memory:`.
    Alone,
    /// A folder: `file:DIR`.
    Folder,
    /// The rest of a URL: `postgres://…`.
    Url,
}

/// How long a store keeps the claims that it acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimDurability {
    /// Until its process ends.
    UntilExit,
    /// Until their retention ends.
    Retention,
    /// Until their retention ends, if the server has this configuration.
    Configured(&'static str),
}

/// Use of a backend as a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerScheme {
    /// Schemes of its addresses, the usual one first.
    pub schemes: &'static [&'static str],
    /// Cargo feature of `refrain-brokers`, and of the command unless it is a default one.
    pub feature: &'static str,
    /// Whether it reports the maximum time after which it may redeliver a message.
    pub reports_age: bool,
    /// Whether it drops a second message with the same message id.
    pub drops_duplicates: bool,
    /// Whether a redriven dead letter goes to the worker's queue, and not to the source that the letter names.
    pub redrives_to_queue: bool,
    /// Names of its protocol in AsyncAPI documents.
    pub protocols: &'static [&'static str],
}

/// All backends.
pub static BACKENDS: [Backend; 8] = [
    Backend {
        id: BackendId::Memory,
        title: "Memory",
        store: Some(StoreScheme {
            schemes: &["memory"],
            form: AddressForm::Alone,
            durability: ClaimDurability::UntilExit,
            example: "memory:",
            summary: "one process, lost when it ends",
            ..LOCAL_STORE
        }),
        ..LOCAL
    },
    Backend {
        id: BackendId::Embedded,
        title: "Local folder",
        store: Some(LOCAL_STORE),
        ..LOCAL
    },
    Backend {
        id: BackendId::Postgres,
        title: "PostgreSQL",
        images: &["postgres"],
        login: LoginKind::User,
        shown: &[
            "application_name",
            "channel_binding",
            "connect_timeout",
            "dbname",
            "host",
            "hostaddr",
            "port",
            "schema",
            "sslcert",
            "sslmode",
            "sslrootcert",
            "target_session_attrs",
            "user",
        ],
        secret: &["options", "passfile", "password", "sslkey", "sslpassword"],
        store: Some(StoreScheme {
            schemes: &["postgres", "postgresql"],
            form: AddressForm::Url,
            feature: Some("postgres"),
            has_tables: true,
            example: "postgres://refrain@127.0.0.1/refrain",
            summary: "many processes, durable, allows exactly-once",
            ..LOCAL_STORE
        }),
        broker: Some(BrokerScheme {
            schemes: &["postgres", "postgresql"],
            feature: "postgres",
            ..BROKER
        }),
        ..LOCAL
    },
    Backend {
        id: BackendId::Redis,
        title: "Redis",
        images: &["redis", "valkey"],
        login: LoginKind::UserOrToken,
        shown: &[
            "accept_lost_records",
            "expect_records",
            "prefix",
            "sentinel_login",
            "start",
            "trim",
        ],
        store: Some(StoreScheme {
            schemes: &[
                "redis",
                "rediss",
                "redis+cluster",
                "rediss+cluster",
                "redis+sentinel",
                "rediss+sentinel",
            ],
            form: AddressForm::Url,
            feature: Some("redis"),
            durability: ClaimDurability::Configured(
                "appendonly yes, appendfsync always, no replicas",
            ),
            can_be_front: true,
            example: "redis://127.0.0.1:6379",
            summary: "many processes, fast; must not evict, and may lose the last writes",
            ..LOCAL_STORE
        }),
        broker: Some(BrokerScheme {
            schemes: &["redis", "rediss"],
            feature: "redis",
            reports_age: false,
            protocols: &["redis", "rediss"],
            ..BROKER
        }),
        ..LOCAL
    },
    Backend {
        id: BackendId::Nats,
        title: "NATS",
        login: LoginKind::UserOrToken,
        shown: &["ca", "cert", "credentials"],
        secret: &["key"],
        broker: Some(BrokerScheme {
            schemes: &["nats", "nats+tls", "tls"],
            feature: "nats",
            drops_duplicates: true,
            protocols: &["nats"],
            ..BROKER
        }),
        ..LOCAL
    },
    Backend {
        id: BackendId::RabbitMq,
        title: "RabbitMQ",
        login: LoginKind::User,
        shown: &[
            "auth_mechanism",
            "ca",
            "cert",
            "channel_max",
            "connection_timeout",
            "frame_max",
            "heartbeat",
        ],
        secret: &["key"],
        broker: Some(BrokerScheme {
            schemes: &["amqp", "amqps"],
            feature: "amqp",
            reports_age: false,
            // The exchange that a letter came through may feed other queues as well.
            redrives_to_queue: true,
            protocols: &["amqp", "amqps"],
            ..BROKER
        }),
        ..LOCAL
    },
    Backend {
        id: BackendId::Kafka,
        title: "Kafka",
        shown: &[
            "client.id",
            "sasl.mechanism",
            "sasl.mechanisms",
            "sasl.username",
            "security.protocol",
            "ssl.ca.location",
        ],
        secret: &["sasl.password", "ssl.key.password"],
        // Every setting of librdkafka.
        takes_any_parameter: true,
        broker: Some(BrokerScheme {
            schemes: &["kafka"],
            feature: "kafka",
            protocols: &["kafka", "kafka-secure"],
            ..BROKER
        }),
        ..LOCAL
    },
    Backend {
        id: BackendId::Sqs,
        title: "SQS",
        login: LoginKind::UserOrToken,
        shown: &["endpoint"],
        broker: Some(BrokerScheme {
            schemes: &["sqs"],
            feature: "sqs",
            drops_duplicates: true,
            protocols: &["sqs"],
            ..BROKER
        }),
        ..LOCAL
    },
];

/// Values that a row has unless it names others: those of a backend without a server.
const LOCAL: Backend = Backend {
    id: BackendId::Embedded,
    title: "",
    images: &[],
    login: LoginKind::Secret,
    shown: &[],
    secret: &[],
    takes_any_parameter: false,
    store: None,
    broker: None,
};

/// The embedded store, whose values the other stores have unless they name others.
const LOCAL_STORE: StoreScheme = StoreScheme {
    schemes: &["file"],
    form: AddressForm::Folder,
    feature: None,
    durability: ClaimDurability::Retention,
    can_be_front: false,
    has_tables: false,
    example: "file:refrain-data",
    summary: "one process, durable, nothing to set up",
};

/// Values that a broker has unless it names others.
const BROKER: BrokerScheme = BrokerScheme {
    schemes: &[],
    feature: "",
    reports_age: true,
    drops_duplicates: false,
    redrives_to_queue: false,
    protocols: &[],
};

impl Backend {
    /// Returns the backend that a scheme names. A suffix after a `+` is ignored: its driver parses it.
    #[must_use]
    pub fn named(scheme: &str) -> Option<&'static Self> {
        let kind = kind(scheme);
        BACKENDS
            .iter()
            .find(|it| it.schemes().any(|name| name == kind))
    }

    /// Returns the backend of a complete store address.
    #[must_use]
    pub fn of_store(address: &str) -> Option<&'static Self> {
        let mut stores = stores();
        let found = stores.find(|(_, store)| store.accepts(address));
        found.map(|(backend, _)| backend)
    }

    /// Returns the backend of a complete broker address.
    #[must_use]
    pub fn of_broker(address: &str) -> Option<&'static Self> {
        let mut brokers = brokers();
        let found = brokers.find(|(_, broker)| broker.accepts(address));
        found.map(|(backend, _)| backend)
    }

    fn schemes(&self) -> impl Iterator<Item = &'static str> + use<> {
        let store = self.store.map(|it| it.schemes);
        let broker = self.broker.map(|it| it.schemes);
        store.into_iter().chain(broker).flatten().copied()
    }
}

impl StoreScheme {
    /// Whether this is a complete address of the store.
    #[must_use]
    pub fn accepts(&self, address: &str) -> bool {
        address.split_once(':').is_some_and(|(scheme, rest)| {
            self.schemes.contains(&scheme)
                && match self.form {
                    AddressForm::Alone => rest.is_empty(),
                    AddressForm::Folder => !rest.is_empty(),
                    AddressForm::Url => rest.starts_with("//") && rest.len() > 2,
                }
        })
    }

    /// Returns its form of address, such as `file:DIR`.
    #[must_use]
    pub fn usage(&self) -> String {
        let rest = match self.form {
            AddressForm::Alone => "",
            AddressForm::Folder => "DIR",
            AddressForm::Url => "//…",
        };
        format!("{}:{rest}", self.schemes[0])
    }
}

impl BrokerScheme {
    /// Whether this is a complete address of the broker.
    #[must_use]
    pub fn accepts(&self, address: &str) -> bool {
        let parts = address.split_once("://");
        parts.is_some_and(|(scheme, rest)| self.schemes.contains(&scheme) && !rest.is_empty())
    }
}

/// Returns the backends that can be a store.
pub fn stores() -> impl Iterator<Item = (&'static Backend, &'static StoreScheme)> {
    BACKENDS
        .iter()
        .filter_map(|it| Some((it, it.store.as_ref()?)))
}

/// Returns the backends that can be a broker.
pub fn brokers() -> impl Iterator<Item = (&'static Backend, &'static BrokerScheme)> {
    BACKENDS
        .iter()
        .filter_map(|it| Some((it, it.broker.as_ref()?)))
}

/// Returns every scheme of a store address.
pub fn store_schemes() -> impl Iterator<Item = &'static str> {
    stores().flat_map(|(_, it)| it.schemes.iter().copied())
}

/// Returns every scheme of a broker address.
pub fn broker_schemes() -> impl Iterator<Item = &'static str> {
    brokers().flat_map(|(_, it)| it.schemes.iter().copied())
}

/// Returns the forms of store addresses for a message: `memory:, file:DIR, … or redis://…`.
#[must_use]
pub fn store_usage() -> String {
    alternatives(stores().map(|(_, it)| it.usage()))
}

/// Returns the usual schemes of brokers for a message: `postgres://, redis://, … or sqs://`.
#[must_use]
pub fn broker_usage() -> String {
    alternatives(brokers().map(|(_, it)| format!("{}://", it.schemes[0])))
}

/// Joins alternatives for a message: `a, b or c`.
#[must_use]
pub fn alternatives(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    match &items[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => items.concat(),
    }
}

/// Whether the value of this parameter is printed.
pub(super) fn is_shown(parameter: &str) -> bool {
    BACKENDS.iter().any(|it| it.shown.contains(&parameter))
}

/// Whether any address has this parameter.
pub(super) fn is_known(parameter: &str) -> bool {
    is_shown(parameter) || BACKENDS.iter().any(|it| it.secret.contains(&parameter))
}

/// The scheme without a suffix after a `+`.
fn kind(scheme: &str) -> &str {
    scheme.split('+').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    //! All other code trusts the table, so only users would notice a mistake in it.

    use super::*;

    #[test]
    fn a_scheme_names_one_backend() {
        for backend in &BACKENDS {
            for scheme in backend.schemes() {
                let found = Backend::named(scheme).map(|it| it.id);
                assert_eq!(found, Some(backend.id), "{scheme}");
            }
        }
        for scheme in ["", "mysql", "http", "+redis"] {
            assert_eq!(Backend::named(scheme), None, "{scheme}");
        }
    }

    #[test]
    fn no_parameter_is_both_shown_and_secret() {
        let secrets = BACKENDS.iter().flat_map(|it| it.secret);
        for name in secrets {
            assert!(!is_shown(name), "{name}");
            assert!(is_known(name), "{name}");
        }
    }

    #[test]
    fn addresses_are_complete_or_rejected() {
        for (backend, store) in stores() {
            let found = Backend::of_store(store.example).map(|it| it.id);
            assert_eq!(found, Some(backend.id), "{}", store.example);
        }
        for address in [
            "", "memory", "memory:x", "file:", "redis:", "redis://", "nats://h",
        ] {
            assert_eq!(Backend::of_store(address), None, "{address}");
        }
        for address in [
            "",
            "nats",
            "nats:h",
            "nats://",
            "redis+cluster://h",
            "file:x",
        ] {
            assert_eq!(Backend::of_broker(address), None, "{address}");
        }
    }

    #[test]
    fn messages_list_every_form() {
        assert_eq!(
            store_usage(),
            "memory:, file:DIR, postgres://… or redis://…"
        );
        assert!(broker_usage().ends_with(", kafka:// or sqs://"));
        assert_eq!(alternatives(["a".to_owned()]), "a");
    }
}

//! The connection that receipts are read over: made, checked, and made anew.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refrain::{Error, ErrorKind, Result, policy::Address};
use tokio::{sync::Mutex, task::AbortHandle, time::timeout};
use tokio_postgres::{
    Client, Config, Row, Statement,
    config::{SslMode, TargetSessionAttrs},
    error::SqlState,
    types::Type,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The server gives up on a read behind that; whoever asks does so as well.
const STATEMENT_MAX: Duration = Duration::from_secs(5);
const COLUMNS: [&str; 7] = [
    "record",
    "fence",
    "status",
    "body",
    "content_type",
    "location",
    "created_at",
];

/// Where receipts are, and the connection to there.
pub(super) struct Link {
    address: Address,
    config: Config,
    tls: Option<ClientConfig>,
    /// Held while connecting, so that many who come at once make one connection.
    session: Mutex<Option<Arc<Statements>>>,
    /// Whether the connection must not be used again.
    is_forgotten: AtomicBool,
}

/// A connection with its statements, which ends with this.
#[derive(Debug)]
pub(super) struct Statements {
    client: Client,
    task: AbortHandle,
    find: Statement,
    seen: Statement,
}

/// What can be asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ask<'a> {
    /// The receipt of this record.
    Find(&'a str),
    /// Which of these records have one.
    Seen(&'a [String]),
}

impl Drop for Statements {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Statements {
    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Whether the connection is gone, or about to: a server that shuts down says so before it hangs up.
    pub(super) fn is_broken(&self, error: &tokio_postgres::Error) -> bool {
        const GOING: [SqlState; 3] = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
        ];
        self.is_closed() || error.code().is_some_and(|code| GOING.contains(code))
    }

    pub(super) async fn ask(&self, ask: Ask<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        match ask {
            Ask::Find(record) => self.client.query(&self.find, &[&record]).await,
            Ask::Seen(records) => self.client.query(&self.seen, &[&records]).await,
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.address)
    }
}

impl Link {
    pub(super) fn new(address: &Address) -> Result<Self> {
        let bad = |error: tokio_postgres::Error| {
            let message = format!("receipts = \"{address}\" cannot be read as an address");
            Error::new(ErrorKind::Unsupported, message).with_source(error)
        };
        let mut config: Config = address.as_str().parse().map_err(bad)?;
        // Of several servers, the one that takes writes: what others show may be late.
        // Of one alone that is asked below, so that a role which may only read will do.
        if config.get_hosts().len() > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_MAX);
        }
        if config.get_application_name().is_none() {
            config.application_name("refrain receipts");
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => trust(address, config.get_ssl_mode())?,
        };
        Ok(Self {
            address: address.clone(),
            config,
            tls,
            session: Mutex::new(None),
            is_forgotten: AtomicBool::new(false),
        })
    }

    /// The connection, new if need be.
    pub(super) async fn session(&self) -> Result<Arc<Statements>> {
        let mut session = self.session.lock().await;
        let is_forgotten = self.is_forgotten.swap(false, Ordering::Relaxed);
        if let Some(session) = session
            .as_ref()
            .filter(|it| !it.is_closed() && !is_forgotten)
        {
            return Ok(session.clone());
        }
        *session = None;
        let opened = timeout(CONNECT_MAX * 2, self.open()).await;
        let opened = opened.unwrap_or_else(|_| Err(self.odd("it gave no answer in time")))?;
        Ok(session.insert(Arc::new(opened)).clone())
    }

    /// The next one who asks makes a new connection.
    pub(super) fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Relaxed);
    }

    /// Carries out what is not asked twice, on a connection of its own.
    pub(super) async fn execute(&self, sql: &str) -> Result<()> {
        let (client, task) = self.connect().await?;
        let done = client.batch_execute(sql).await;
        task.abort();
        done.map_err(|error| self.failed(error))
    }

    async fn connect(&self) -> Result<(Client, AbortHandle)> {
        let failed = |error| self.failed(error);
        match self.tls.clone() {
            None => {
                let connecting = self.config.connect(tokio_postgres::NoTls);
                let (client, connection) = connecting.await.map_err(failed)?;
                Ok((client, tokio::spawn(connection).abort_handle()))
            }
            Some(tls) => {
                let connecting = self.config.connect(MakeRustlsConnect::new(tls));
                let (client, connection) = connecting.await.map_err(failed)?;
                Ok((client, tokio::spawn(connection).abort_handle()))
            }
        }
    }

    async fn open(&self) -> Result<Statements> {
        let (client, task) = self.connect().await?;
        let prepared = self.prepare(&client).await;
        let (find, seen) = prepared.inspect_err(|_| task.abort())?;
        Ok(Statements {
            client,
            task,
            find,
            seen,
        })
    }

    async fn prepare(&self, client: &Client) -> Result<(Statement, Statement)> {
        let failed = |error| self.failed(error);
        let settings = format!("SET statement_timeout = {}", STATEMENT_MAX.as_millis());
        client.batch_execute(&settings).await.map_err(failed)?;
        let standby = client.query_one("SELECT pg_is_in_recovery()", &[]).await;
        if standby.map_err(failed)?.try_get(0).map_err(failed)? {
            return Err(self.standby());
        }
        let body = self.check_table(client).await?;
        let find = client.prepare(&find(&body)).await.map_err(failed)?;
        let seen = client.prepare(SEEN).await.map_err(failed)?;
        Ok((find, seen))
    }

    /// Checks that the table has what is needed, and that a record is in it once; answers the type of its bodies.
    async fn check_table(&self, client: &Client) -> Result<Type> {
        let failed = |error| self.failed(error);
        let all = client.prepare("SELECT * FROM refrain_receipts LIMIT 0");
        let all = all.await.map_err(failed)?;
        // Whether it may be read shows only when it is.
        client.query(&all, &[]).await.map_err(failed)?;
        let has = |name: &str| all.columns().iter().any(|column| column.name() == name);
        if let Some(name) = COLUMNS.iter().find(|name| !has(name)) {
            let what = format!("its table refrain_receipts has no column `{name}`");
            return Err(self.trouble(&what, CREATE));
        }
        let is_unique = client.query_one(IS_UNIQUE, &[]).await.map_err(failed)?;
        if !is_unique.try_get(0).map_err(failed)? {
            let what = "in its table refrain_receipts a record can stand twice";
            let fix = "ALTER TABLE refrain_receipts ADD PRIMARY KEY (record)";
            return Err(self.trouble(what, fix));
        }
        let body = all.columns().iter().find(|it| it.name() == "body");
        Ok(body.map_or(Type::TEXT, |column| column.type_().clone()))
    }

    pub(super) fn failed(&self, error: tokio_postgres::Error) -> Error {
        let (what, fix) = match error.code() {
            Some(&SqlState::UNDEFINED_TABLE) => ("it has no table refrain_receipts", CREATE),
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => (
                "its receipts may not be read",
                "GRANT SELECT ON refrain_receipts to this role",
            ),
            Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
                ("it does not let this user in", "check user and password")
            }
            Some(&SqlState::INVALID_CATALOG_NAME) => {
                ("it has no such database", "check the name behind the slash")
            }
            _ => (
                "it cannot be read",
                "check address, TLS and whether the server runs",
            ),
        };
        self.trouble(what, fix).with_source(error)
    }

    pub(super) fn standby(&self) -> Error {
        let what = "it is a standby, which may not show yet what was committed";
        self.trouble(what, "name the primary")
    }

    pub(super) fn odd(&self, what: &str) -> Error {
        self.trouble(what, "check the server")
    }

    fn trouble(&self, what: &str, fix: &str) -> Error {
        let message = format!("receipts at {}: {what}; {fix}", self.address);
        Error::new(ErrorKind::Unavailable, message)
    }
}

const CREATE: &str = "`refrain migrate --receipts --print` shows how to create it";

/// One row in any case: what is not there is null, and who answers is told with it.
fn find(body: &Type) -> String {
    let body = match *body {
        Type::BYTEA => "r.body",
        _ => "convert_to(r.body::text, 'UTF8')",
    };
    format!(
        "SELECT pg_is_in_recovery(), r.fence::text, r.status::int4, r.content_type::text, r.location::text,
                {body}, extract(epoch FROM now() - r.created_at)::float8
         FROM (SELECT $1::text AS record) asked LEFT JOIN refrain_receipts r ON r.record = asked.record"
    )
}

const SEEN: &str = "SELECT pg_is_in_recovery(), r.record IS NOT NULL
     FROM unnest($1::text[]) WITH ORDINALITY AS asked (record, place)
     LEFT JOIN refrain_receipts r ON r.record = asked.record ORDER BY asked.place";

/// Whether an index, in force and without conditions, lets a record in once.
const IS_UNIQUE: &str = "SELECT EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = 'refrain_receipts'::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = 'record')";

/// Trusts what the system trusts; `SSL_CERT_FILE` and `SSL_CERT_DIR` name others.
fn trust(address: &Address, mode: SslMode) -> Result<Option<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() && mode == SslMode::Prefer {
        return Ok(None);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            let message = format!("receipts = \"{address}\": TLS cannot be set up");
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(Some(config))
}

//! `refrain proxy`: runs the proxy in front of a service.

use std::{
    io::IsTerminal as _,
    net::SocketAddr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use refrain::{
    AuditLog, Engine, ErrorKind,
    http::RefrainLayer,
    policy::{AccessLogTarget, Address, ConfigError, Secrets, Settings, redacted, schemes},
    store::embedded::{self, MovableSlot},
};
use refrain_proxy::{
    Phase, Proxy, ServerTls, StartError,
    admin::{self, Admin, CurrentAdmin, Metrics},
    handover::ServedStores,
    telemetry::Telemetry,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::{
    encryption,
    output::{complain, say},
    settings::{self, Flags, Loaded},
};

pub(crate) mod greeting;
mod handover;
mod notify;
pub(crate) mod receipts;
mod reload;

use greeting::Origin;
use handover::{ControlSocket, Predecessor, Replaceable};
use notify::Notifier;
use reload::{CertificateReload, PolicyReload, Reloadable, Reloader};

#[cfg_attr(not(feature = "otel"), path = "proxy/traces_off.rs")]
mod traces;

/// Exit code: invalid settings.
const BAD_CONFIGURATION: u8 = 64;
/// Exit code: a port, a store or a certificate is unavailable.
const UNAVAILABLE: u8 = 69;

/// Guard an HTTP service, without changes to its code
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  refrain proxy --upstream http://127.0.0.1:3000
                                        guard POST and PATCH, with records in ./refrain-data
  refrain proxy --upstream http://127.0.0.1:3000 --listen 127.0.0.1:0
                                        listen on a free port, and print it
  refrain proxy --upstream http://127.0.0.1:3000 --access-log stdout
                                        print one JSON line for each request
  refrain proxy --upstream http://127.0.0.1:3000 --tls-certificate tls.crt --tls-key tls.key
                                        serve https, with HTTP/2 and HTTP/1.1
  refrain proxy                         use the refrain.toml of this folder; `refrain check` explains it
  refrain proxy --config payments.toml  use another file
  refrain proxy --config refrain.toml --replace
                                        upgrade: take over from the proxy that runs with this store

Flags override the environment (REFRAIN_UPSTREAM, REFRAIN_LISTEN, REFRAIN_ADMIN, REFRAIN_STORE, REFRAIN_AUDIT_LOG,
REFRAIN_ACCESS_LOG, REFRAIN_TLS_CERTIFICATE, REFRAIN_TLS_KEY, REFRAIN_LOG;
append _FILE to name a file that holds the value), which overrides the file.
If the admin address is not a loopback address, REFRAIN_ADMIN_TOKEN is required; REFRAIN_ADMIN_READER_TOKEN is a
second token, which may look at everything and change nothing. Append _FILE to read either of them from a file.
SIGTERM and Ctrl-C let running requests finish, for up to `drain` of [proxy]; a second signal stops at once.
SIGHUP, or POST /api/reload on the admin address, reads the file again and puts its operations in force; an invalid
file keeps the old ones, and the log says why.

Exit codes: 0 stopped by a signal, 2 wrong usage, 64 bad configuration, 69 port, store, audit log, access log or TLS certificate
unavailable.")]
pub(crate) struct Args {
    /// Service to guard, such as http://127.0.0.1:3000
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Address to listen on; port 0 takes a free port [default: 127.0.0.1:8377]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    #[arg(long, value_name = "STORE", help = store_help())]
    store: Option<String>,
    /// Folder of the audit log [default: audit in the store's folder, else refrain-audit]
    #[arg(long, value_name = "DIR")]
    audit_log: Option<String>,
    /// File of the access log, or `stdout`: one JSON line for each request [default: no access log]
    #[arg(long, value_name = "FILE")]
    access_log: Option<String>,
    /// PEM file with the certificate chain of TLS towards clients [default: plain HTTP]
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<String>,
    /// PEM file with the private key of --tls-certificate
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Address of the dashboard, health checks, metrics and the records API [default: 127.0.0.1:8378]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Configuration file [default: refrain.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Take over from the proxy that runs with this store, without a dropped request; start normally if none does
    #[arg(long)]
    replace: bool,
    /// Socket at which another proxy takes over [default: control.sock in the folder of a file: store]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Log level on standard error: error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

pub(crate) fn store_help() -> String {
    let usage = schemes::store_usage();
    format!(
        "Store of the records: {usage}; redis://…,STORE puts Redis in front of STORE [default: file:refrain-data]"
    )
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match start(args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            complain(&failure);
            Ok(failure.code())
        }
    }
}

/// Why a command did not start, or ended.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An invalid file, with the location of each mistake.
    File(Box<ConfigError>),
    Configuration(String),
    Unavailable(String),
}

impl Failure {
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::File(_) | Self::Configuration(_) => BAD_CONFIGURATION.into(),
            Self::Unavailable(_) => UNAVAILABLE.into(),
        }
    }
}

impl Failure {
    /// The failure as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        match self {
            Self::File(error) => serde_json::to_value(error).unwrap_or_default(),
            Self::Configuration(message) | Self::Unavailable(message) => message.as_str().into(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Configuration(message) => f.write_str(message),
            Self::Unavailable(message) => write!(f, "refrain: {message}"),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::File(Box::new(error))
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::NoUpstream => Self::Configuration(
                "refrain: no upstream; pass --upstream http://HOST:PORT, \
                 or write `upstream` into refrain.toml"
                    .into(),
            ),
            StartError::Store(error) | StartError::Tokens(error) => error.into(),
            error => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<refrain::Error> for Failure {
    fn from(error: refrain::Error) -> Self {
        match error.kind() {
            ErrorKind::Unsupported => Self::Configuration(format!("refrain: {error}")),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

fn start(args: &Args) -> Result<(), Failure> {
    // The file that is found now is the one that a reload reads.
    let args = &Args {
        config: settings::config(args.config.as_deref()),
        ..args.clone()
    };
    let loaded = load(args)?;
    log_to_stderr(&settings::value("log", args.log.as_deref())?)?;
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let origin = match &args.config {
        Some(file) => Origin::File(file),
        None => Origin::Flags(loaded.as_file()),
    };
    runtime.block_on(serve(args, &loaded.settings, &origin))
}

/// Reads and checks the settings, at start-up and for a reload. The file is the one that was found at start-up.
fn load(args: &Args) -> Result<Loaded, Failure> {
    let otlp_endpoint = traces::endpoint()?;
    let loaded = settings::load(
        args.config.as_deref(),
        Secrets::Operations,
        &Flags {
            listen: args.listen.as_deref(),
            admin: args.admin.as_deref(),
            upstream: args.upstream.as_deref(),
            store: args.store.as_deref(),
            audit_log: args.audit_log.as_deref(),
            access_log: args.access_log.as_deref(),
            otlp_endpoint: otlp_endpoint.as_deref(),
            tls_certificate: args.tls_certificate.as_deref(),
            tls_key: args.tls_key.as_deref(),
        },
    )?;
    traces::check(&loaded.settings)?;
    // Check the configuration before anything is created, such as the folder of a store.
    if loaded.settings.upstream.is_none() {
        return Err(StartError::NoUpstream.into());
    }
    Ok(loaded)
}

async fn serve(args: &Args, settings: &Settings, origin: &Origin<'_>) -> Result<(), Failure> {
    // Before the ports are open: from here on a signal stops the proxy in order, and SIGHUP does not end it.
    let (mut signals, mut told) = (Signals::new()?, Signals::new()?);
    let hangups = signal(SignalKind::hangup())?;
    let (token, reader_token) = admin_tokens(settings.admin, &settings.admin_hosts)?;
    let prepared = prepare(settings).await?;
    let control = handover::control_path(args.control.as_deref(), settings);
    let mut predecessor = predecessor(args, settings, control.as_deref()).await?;
    let notifier = Arc::new(Notifier::from_env());
    let [socket, admin_socket] = sockets(settings, predecessor.as_mut())?;
    let movable = MovableSlot::default();
    let options = embedded::Options {
        is_handed_over: predecessor.is_some(),
        leases: match &mut predecessor {
            Some(predecessor) => predecessor.take_store().await?.into(),
            None => Arc::default(),
        },
        movable: Some(movable.clone()),
        ..embedded::Options::default()
    };
    let Opened {
        telemetry,
        engine,
        receipts,
    } = prepared.open(settings, options).await?;
    traces::start(settings, &telemetry, engine.store())?;
    let upstream = settings.upstream.as_deref().map(redacted);
    let engine = engine.with_upstream(&upstream.unwrap_or_default());
    let proxy = Proxy::on(socket, settings, engine.clone())?
        .with_layer(|layer| receipts::read(layer, &receipts))
        .with_telemetry(&telemetry);
    learn_standings(&proxy.layer().get()).await?;
    let admin_tls = admin_tls(settings, telemetry.metrics())?;
    let door = match admin_socket {
        Some(socket) => admin_listener(socket, settings)?,
        None => listen(settings.admin).await?,
    };
    let (address, admin_address) = (proxy.address()?, door.local_addr()?);
    let is_draining = Arc::new(AtomicBool::new(false));
    let admin = CurrentAdmin::new(Admin {
        token,
        reader_token,
        tls: admin_tls.clone(),
        ..admin_of(settings, &proxy.layer().get(), &telemetry, &is_draining)
    });
    let policy = PolicyReload {
        layer: proxy.layer().clone(),
        admin: admin.clone(),
        metrics: telemetry.metrics().clone(),
        receipts: Arc::new(Mutex::new(receipts)),
    };
    let certificates = proxy.tls().cloned().into_iter().chain(admin_tls);
    let certificates = CertificateReload(certificates.collect());
    let parts: Vec<Box<dyn Reloadable>> = vec![Box::new(policy), Box::new(certificates)];
    let reloader = Reloader::new(
        args.clone(),
        settings.clone(),
        admin.clone(),
        telemetry.metrics().clone(),
        notifier.clone(),
        parts,
    );
    admin.change(|admin| admin.reload = Some(reloader.clone()));
    let (phase, served) = (proxy.phase(), ServedStores::default());
    let replaceable = Replaceable {
        listen: (address, proxy.socket()?),
        admin: (admin_address, door.as_fd().try_clone_to_owned()?),
        phase: phase.clone(),
        layer: proxy.layer().clone(),
        engine: engine.clone(),
        movable: movable.get().cloned(),
        served: served.clone(),
        notifier: notifier.clone(),
    };
    let is_replaced = Arc::new(AtomicBool::new(false));
    let is_left = {
        let (mut phases, is_replaced) = (phase.subscribe(), is_replaced.clone());
        async move {
            let _ = phases.wait_for(|phase| *phase == Phase::Leaving).await;
            is_replaced.store(true, Ordering::Relaxed);
        }
    };
    // The admin address serves until the very end, so that draining can be watched; or until another process serves it.
    let admin = tokio::spawn(admin::serve(door, admin, is_left));
    let socket = control
        .as_deref()
        .and_then(|path| bind_control(path, args.control.is_some()));
    if let Some(predecessor) = predecessor {
        predecessor.confirm(&served, engine.store().clone()).await?;
    }
    greeting::print(settings, address, admin_address, &engine, origin);
    tokio::spawn(reloader.follow(hangups));
    match socket {
        Some(socket) => drop(tokio::spawn(replaceable.serve(socket))),
        None => drop(replaceable),
    }
    notifier.ready();
    let watchdog = notifier.clone();
    tokio::spawn(async move { watchdog.keep_alive().await });
    let insisted = async {
        told.next().await;
        told.next().await;
    };
    let stop = async {
        signals.next().await;
        is_draining.store(true, Ordering::Relaxed);
        notifier.send("STOPPING=1");
        tell(
            settings,
            "stopping: no new requests; running requests finish",
        );
    };
    let longest = proxy.longest_request();
    let left = proxy.run(stop, insisted).await?;
    let is_replaced = is_replaced.load(Ordering::Relaxed);
    // Processes that this one has replaced still settle their claims through it.
    let patience = if is_replaced {
        longest
    } else {
        settings.proxy.drain
    };
    let _ = tokio::time::timeout(patience, served.ended()).await;
    if let Some(control) = control.filter(|_| !is_replaced) {
        ControlSocket::remove(&control);
    }
    admin.abort();
    telemetry.close().await;
    match left {
        0 => tell(settings, "stopped"),
        left => tell(
            settings,
            format!("stopped; requests cut off, with unknown outcomes: {left}"),
        ),
    }
    Ok(())
}

/// The running proxy that this one replaces, if there is one and it is to be replaced.
async fn predecessor(
    args: &Args,
    settings: &Settings,
    control: Option<&Path>,
) -> Result<Option<Predecessor>, Failure> {
    match (args.replace, control) {
        (true, Some(control)) => Predecessor::find(control, settings).await,
        (true, None) => Err(Failure::Configuration(
            "refrain: --replace needs the control socket of the running proxy; start both with --control PATH".into(),
        )),
        (false, _) => Ok(None),
    }
}

/// The sockets that systemd or the running proxy passes, for clients and for the admin listener.
fn sockets(
    settings: &Settings,
    predecessor: Option<&mut Predecessor>,
) -> Result<[Option<std::net::TcpListener>; 2], Failure> {
    match predecessor {
        Some(it) => Ok([it.listener(settings.listen), it.admin(settings.admin)]),
        None => notify::activated(),
    }
}

/// The admin listener on a socket that another process has bound. Without a token, its address must be loopback.
fn admin_listener(
    socket: std::net::TcpListener,
    settings: &Settings,
) -> Result<tokio::net::TcpListener, Failure> {
    admin_tokens(socket.local_addr()?, &settings.admin_hosts)?;
    socket.set_nonblocking(true)?;
    Ok(tokio::net::TcpListener::from_std(socket)?)
}

/// Binds the control socket; without it the proxy serves, and cannot be replaced.
fn bind_control(path: &Path, is_asked_for: bool) -> Option<ControlSocket> {
    let bound = ControlSocket::bind(path);
    if let Err(error) = &bound {
        let path = path.display();
        match is_asked_for {
            true => complain(format!(
                "refrain: cannot bind the control socket {path}: {error}"
            )),
            false => {
                tracing::warn!(%path, %error, "cannot bind the control socket: no other process can take over");
            }
        }
    }
    bound.ok()
}

/// What every server that applies the policy opens before it serves.
pub(crate) struct Opened {
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) engine: Engine,
    pub(crate) receipts: receipts::Opened,
}

/// What is opened before the store, which another process may still hold.
struct Prepared {
    telemetry: Arc<Telemetry>,
    receipts: receipts::Opened,
}

/// Opens the access log, the receipts, the store and the audit log.
#[cfg(feature = "extproc")]
pub(crate) async fn open(settings: &Settings) -> Result<Opened, Failure> {
    let prepared = prepare(settings).await?;
    prepared.open(settings, embedded::Options::default()).await
}

/// Opens the access log and the receipts.
async fn prepare(settings: &Settings) -> Result<Prepared, Failure> {
    // Claims are kept in the last store named.
    let truth = settings.store.last().map_or("", Address::as_str);
    let telemetry = Telemetry::new(Metrics::new(&settings.policy, truth));
    if let Some(log) = &settings.access_log {
        telemetry.open_access_log(log)?;
    }
    let receipts = receipts::open(settings, receipts::Opened::new()).await?;
    Ok(Prepared {
        telemetry,
        receipts,
    })
}

impl Prepared {
    /// Opens the store and the audit log.
    async fn open(
        self,
        settings: &Settings,
        options: embedded::Options,
    ) -> Result<Opened, Failure> {
        let is_handed_over = options.is_handed_over;
        let store = open_store_with(settings, options).await?;
        let metrics = self.telemetry.metrics().clone();
        let engine = Engine::new(store.with_meter(metrics));
        let is_audited = settings.audited().next().is_some();
        let log = audit_log_of(settings, is_audited, is_handed_over).await?;
        Ok(Opened {
            telemetry: self.telemetry,
            engine: engine.with_audit(log),
            receipts: self.receipts,
        })
    }
}

/// Reads how reliable the receipts of each operation are.
pub(crate) async fn learn_standings(layer: &RefrainLayer) -> Result<(), Failure> {
    for witness in layer.witnesses() {
        layer.engine().learn_standing(witness).await?;
    }
    Ok(())
}

/// The admin listener of a layer, without tokens and TLS.
pub(crate) fn admin_of(
    settings: &Settings,
    layer: &RefrainLayer,
    telemetry: &Arc<Telemetry>,
    is_draining: &Arc<AtomicBool>,
) -> Admin {
    Admin {
        layer: layer.clone(),
        telemetry: telemetry.clone(),
        is_draining: is_draining.clone(),
        token: None,
        reader_token: None,
        hosts: settings.admin_hosts.clone(),
        configuration: serde_json::to_value(settings).unwrap_or_default(),
        workers: None,
        tls: None,
        search_time: admin::SEARCH_TIME,
        reload: None,
    }
}

/// Prints a line to standard output, or to standard error if standard output is the access log.
pub(crate) fn tell(settings: &Settings, line: impl std::fmt::Display) {
    let log = settings.access_log.as_ref();
    match log.map(|log| &log.target) {
        Some(AccessLogTarget::Stdout) => complain(line),
        _ => say(line),
    }
}

/// TLS of the admin listener, if the settings have any.
pub(crate) fn admin_tls(
    settings: &Settings,
    metrics: &Metrics,
) -> Result<Option<Arc<ServerTls>>, Failure> {
    let tls = settings.admin_tls.as_ref().map(ServerTls::of_admin);
    let tls = tls.transpose().map_err(StartError::from)?;
    Ok(tls.inspect(|tls| metrics.count_handshakes(tls)))
}

/// The admin token, which is required if the admin address is not a loopback one or has further host names; and the token that only reads.
pub(crate) fn admin_tokens(
    address: SocketAddr,
    hosts: &[String],
) -> Result<(Option<String>, Option<String>), Failure> {
    let token = token("admin_token")?;
    let reader = self::token("admin_reader_token")?;
    admin::check_tokens(address, hosts, token.as_deref(), reader.as_deref())
        .map_err(|error| Failure::Configuration(format!("refrain: {error}")))?;
    Ok((token, reader))
}

/// A token from the environment, which must not be blank.
fn token(name: &str) -> Result<Option<String>, Failure> {
    let token = settings::value(name, None)?;
    if token.as_ref().is_some_and(|token| token.trim().is_empty()) {
        let name = format!("REFRAIN_{}", name.to_uppercase());
        return Err(Failure::Configuration(format!(
            "refrain: {name}, or the file that {name}_FILE names, is empty; set a token, or unset the variable"
        )));
    }
    Ok(token)
}

/// The signals that stop a command. Every instance receives all of them.
pub(crate) struct Signals {
    terminated: Signal,
    interrupted: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminated: signal(SignalKind::terminate())?,
            interrupted: signal(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminated.recv() => {}
            _ = self.interrupted.recv() => {}
        }
    }
}

pub(crate) async fn open_store(settings: &Settings) -> Result<refrain::store::AnyStore, Failure> {
    open_store_with(settings, embedded::Options::default()).await
}

async fn open_store_with(
    settings: &Settings,
    options: embedded::Options,
) -> Result<refrain::store::AnyStore, Failure> {
    let options = embedded::Options {
        durability: settings.durability,
        ..options
    };
    let stores: Vec<_> = settings.store.iter().map(Address::as_str).collect();
    let store = refrain_stores::open_all(&stores, options).await?;
    encryption::encrypted(store, settings).await
}

/// The audit log. If nothing is audited, the log is created only when an operator decides about a record.
pub(crate) fn audit_log(settings: &Settings, is_audited: bool) -> Result<AuditLog, Failure> {
    let folder = settings.audit_folder();
    let opened = match is_audited {
        true => AuditLog::open(folder),
        false => AuditLog::lazy(folder),
    };
    opened.map_err(|error| match error.kind() {
        ErrorKind::Held => Failure::Unavailable(format!(
            "{error}, with audit_log = \"DIR\" or --audit-log DIR"
        )),
        _ => error.into(),
    })
}

/// The audit log, which another process may be about to close.
async fn audit_log_of(
    settings: &Settings,
    is_audited: bool,
    is_handed_over: bool,
) -> Result<AuditLog, Failure> {
    const LOOKS: u32 = 100;
    const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(50);
    let is_held = |opened: &Result<AuditLog, refrain::Error>| {
        opened
            .as_ref()
            .is_err_and(|it| it.kind() == ErrorKind::Held)
    };
    for _ in 0..LOOKS {
        let opened = match is_audited && is_handed_over {
            true => AuditLog::open(settings.audit_folder()),
            false => break,
        };
        if !is_held(&opened) {
            return Ok(opened?);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    audit_log(settings, is_audited)
}

pub(crate) async fn listen(address: SocketAddr) -> Result<tokio::net::TcpListener, Failure> {
    let listener = tokio::net::TcpListener::bind(address).await;
    listener.map_err(|error| StartError::Listen { address, error }.into())
}

pub(crate) fn log_to_stderr(level: &Option<String>) -> Result<(), Failure> {
    let level = level.as_deref().unwrap_or("warn");
    let level: tracing::Level = level.parse().map_err(|_| {
        let message =
            format!("refrain: invalid log level `{level}`; use error, warn, info, debug or trace");
        Failure::Configuration(message)
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A failed log write (full disk, closed pipe) must not fail a request.
        .log_internal_errors(false)
        .with_filter(log_filter(level));
    // A subscriber that is already installed stays.
    let _ = tracing_subscriber::registry().with(lines).try_init();
    Ok(())
}

/// The log lines to show: all of this level, except those of the RabbitMQ driver up to `info`.
/// The driver reports a queue that does not exist yet as an error; Refrain reports real errors itself.
fn log_filter(level: tracing::Level) -> Targets {
    let shown = Targets::new().with_default(level);
    match level <= tracing::Level::INFO {
        true => shown.with_target("lapin", LevelFilter::OFF),
        false => shown,
    }
}

/// Raises the soft limit of open files to the hard limit, because each connection needs a file descriptor.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

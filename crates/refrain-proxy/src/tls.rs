//! TLS of a listener: handshakes with clients, and certificates that are loaded again when their files change.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use refrain::{http::ClientCertificate, policy::TlsSettings};
use refrain_tls::{
    TlsError,
    server::{ServerConfig, ServerFiles, ServerPem, subject},
};
use tokio::{
    net::TcpStream,
    sync::Notify,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::stream::Io;

/// ALPN protocols of the proxy, the preferred one first.
pub(crate) const PROXY_PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];
/// ALPN protocols of the admin listener.
const ADMIN_PROTOCOLS: &[&[u8]] = &[b"http/1.1"];
/// How often the files are compared with those in force.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Counters of TLS handshakes, by their result. Clones share their counters.
pub(crate) type HandshakeCounts = Family<[(&'static str, &'static str); 1], Counter>;

/// How a handshake can end.
const RESULTS: [&str; 4] = ["displaced", "done", "failed", "timeout"];

/// Creates and registers the counters.
pub(crate) fn handshake_counts(registry: &mut Registry) -> HandshakeCounts {
    let counts = HandshakeCounts::default();
    let help = "TLS handshakes of clients, by result";
    registry.register("tls_handshakes", help, counts.clone());
    for result in RESULTS {
        drop(counts.get_or_create(&[("result", result)]));
    }
    counts
}

/// TLS of one listener.
pub struct ServerTls {
    /// The table of the settings, for the log.
    table: &'static str,
    files: ServerFiles,
    protocols: &'static [&'static [u8]],
    loaded: RwLock<LoadedPem>,
    handshake_timeout: Duration,
    handshakes: Handshakes,
    counts: OnceLock<HandshakeCounts>,
}

/// The files in force, and the configuration that is built from them.
struct LoadedPem {
    pem: ServerPem,
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Loads the files of the listener for clients.
    ///
    /// # Errors
    /// If a file cannot be used, with its path.
    pub fn of_proxy(settings: &TlsSettings) -> Result<Arc<Self>, TlsError> {
        Self::load("[tls]", settings, PROXY_PROTOCOLS)
    }

    /// Loads the files of the admin listener.
    ///
    /// # Errors
    /// If a file cannot be used, with its path.
    pub fn of_admin(settings: &TlsSettings) -> Result<Arc<Self>, TlsError> {
        Self::load("[admin_tls]", settings, ADMIN_PROTOCOLS)
    }

    fn load(
        table: &'static str,
        settings: &TlsSettings,
        protocols: &'static [&'static [u8]],
    ) -> Result<Arc<Self>, TlsError> {
        let files = ServerFiles {
            certificate: settings.certificate.clone(),
            key: settings.key.clone(),
            client_ca: settings.client_ca.clone(),
            requires_client: settings.requires_client(),
        };
        let pem = files.read()?;
        let config = Arc::new(pem.config(protocols)?);
        warn_of_readable_key(&pem);
        Ok(Arc::new(Self {
            table,
            files,
            protocols,
            loaded: RwLock::new(LoadedPem { pem, config }),
            handshake_timeout: settings.handshake_timeout,
            handshakes: Handshakes::new(settings.handshakes_max),
            counts: OnceLock::new(),
        }))
    }

    /// Reads the files now; returns whether they have changed. New connections use the new certificate.
    ///
    /// Blocks while it reads.
    ///
    /// # Errors
    /// If a file cannot be used, with its path: the certificate in force stays.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let pem = self.files.read()?;
        match self.is_loaded(&pem) {
            true => Ok(false),
            false => self.replace(pem).map(|()| true),
        }
    }

    /// As [`reload`](Self::reload), but new connections use the new certificate only once the result is called.
    ///
    /// Blocks while it reads.
    ///
    /// # Errors
    /// If a file cannot be used, with its path.
    pub fn prepare(self: Arc<Self>) -> Result<impl FnOnce() + Send + 'static, TlsError> {
        let pem = self.files.read()?;
        let fresh = match self.is_loaded(&pem) {
            true => None,
            false => Some(self.loadable(pem)?),
        };
        Ok(move || {
            if let Some(fresh) = fresh {
                self.put(fresh);
            }
        })
    }

    /// Loads the files whenever they change. A certificate and a key that do not fit, or are not complete, change nothing.
    pub(crate) async fn keep_loaded(self: Arc<Self>) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        let mut is_tried = false;
        loop {
            ticks.tick().await;
            let this = self.clone();
            let Ok(read) = spawn_blocking(move || this.files.read()).await else {
                continue;
            };
            if read.as_ref().is_ok_and(|pem| self.is_loaded(pem)) {
                (seen, is_tried) = (None, false);
                continue;
            }
            // Files that are still being written differ from one look to the next.
            if seen.as_ref() != Some(&read) {
                (seen, is_tried) = (Some(read), false);
                continue;
            }
            if !std::mem::replace(&mut is_tried, true) {
                self.report(read.and_then(|pem| self.replace(pem)));
            }
        }
    }

    fn report(&self, replaced: Result<(), TlsError>) {
        let table = self.table;
        match replaced {
            Ok(()) => tracing::info!(table, "the TLS certificate was reloaded"),
            Err(error) => {
                tracing::warn!(table, %error, "cannot reload the TLS certificate; the previous one stays in use");
            }
        }
    }

    fn is_loaded(&self, pem: &ServerPem) -> bool {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.pem == *pem
    }

    fn replace(&self, pem: ServerPem) -> Result<(), TlsError> {
        self.put(self.loadable(pem)?);
        Ok(())
    }

    fn loadable(&self, pem: ServerPem) -> Result<LoadedPem, TlsError> {
        let config = Arc::new(pem.config(self.protocols)?);
        warn_of_readable_key(&pem);
        Ok(LoadedPem { pem, config })
    }

    fn put(&self, fresh: LoadedPem) {
        let loaded = self.loaded.write();
        *loaded.unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    fn config(&self) -> Arc<ServerConfig> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.config.clone()
    }

    /// Counts handshakes here. Call it once.
    pub(crate) fn count_in(&self, counts: &HandshakeCounts) {
        let _ = self.counts.set(counts.clone());
    }

    fn count(&self, result: &'static str) {
        if let Some(counts) = self.counts.get() {
            counts.get_or_create(&[("result", result)]).inc();
        }
    }

    /// Completes the handshake of a new connection, in limited time.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsConnection> {
        let place = self.handshakes.enter();
        let handshake = TlsAcceptor::from(self.config()).accept(stream);
        let (accepted, result) = tokio::select! {
            accepted = timeout(self.handshake_timeout, handshake) => match accepted {
                Ok(Ok(stream)) => (Ok(TlsConnection::new(stream)), "done"),
                Ok(Err(error)) => (Err(error), "failed"),
                Err(_) => (Err(io::ErrorKind::TimedOut.into()), "timeout"),
            },
            () = place.displaced.notified() => {
                (Err(io::Error::other("too many unfinished TLS handshakes")), "displaced")
            }
        };
        self.count(result);
        accepted
    }
}

/// Keeps the certificate of a listener up to date, if it has one.
pub(crate) async fn keep_loaded(tls: Option<Arc<ServerTls>>) {
    match tls {
        Some(tls) => tls.keep_loaded().await,
        None => std::future::pending().await,
    }
}

fn warn_of_readable_key(pem: &ServerPem) {
    if let Some(key) = pem.key_readable_by_others() {
        let key = key.display();
        tracing::warn!(%key, "every user of this machine can read the private key; run `chmod o-r` on it");
    }
}

/// A client connection whose handshake, if it needs one, is complete.
pub(crate) struct TlsConnection {
    pub(crate) stream: Io,
    /// The protocol that was agreed on by ALPN.
    pub(crate) protocol: Option<Vec<u8>>,
    /// The client's certificate, if it has one.
    pub(crate) certificate: Option<ClientCertificate>,
}

impl TlsConnection {
    /// A connection without TLS.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self {
            stream: Io::Plain(stream),
            protocol: None,
            certificate: None,
        }
    }

    fn new(stream: TlsStream<TcpStream>) -> Self {
        let (_, session) = stream.get_ref();
        let protocol = session.alpn_protocol().map(Into::into);
        let presented = session.peer_certificates().and_then(<[_]>::first);
        let certificate = presented.and_then(subject).map(ClientCertificate::new);
        Self {
            stream: Io::Tls(Box::new(stream.into())),
            protocol,
            certificate,
        }
    }
}

/// The unfinished handshakes of a listener. A further one beyond the limit ends the oldest: clients that are slow or silent
/// cannot keep others out.
struct Handshakes {
    max: usize,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<Notify>>>,
}

impl Handshakes {
    fn new(max: usize) -> Self {
        Self {
            max,
            next: AtomicU64::default(),
            open: Mutex::default(),
        }
    }

    fn enter(&self) -> HandshakePlace<'_> {
        let id = self.next.fetch_add(1, Relaxed);
        let displaced = Arc::<Notify>::default();
        let mut open = self.open();
        open.insert(id, displaced.clone());
        if open.len() > self.max
            && let Some((_, oldest)) = open.pop_first()
        {
            oldest.notify_one();
        }
        HandshakePlace {
            handshakes: self,
            id,
            displaced,
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One unfinished handshake.
struct HandshakePlace<'h> {
    handshakes: &'h Handshakes,
    id: u64,
    /// Notified when it has to end.
    displaced: Arc<Notify>,
}

impl Drop for HandshakePlace<'_> {
    fn drop(&mut self) {
        self.handshakes.open().remove(&self.id);
    }
}

//! Accepts client connections, hands them to the proxy's threads, and shuts down gracefully.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use refrain::{
    Engine,
    http::RefrainLayer,
    jwt::{JwtKeys, JwtSettings, JwtVerifier},
    policy::{ProxySettings, Settings, redacted},
};
use refrain_tls::TlsError;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    clients::Clients,
    current::CurrentLayer,
    descriptors::Connections,
    forward::{Forward, Target},
    jwks::HttpJwks,
    telemetry::Telemetry,
    tls::{ServerTls, keep_loaded},
    wake_batch::WakeBatch,
    watch::{TICK, Watch},
};

/// Accepted connections that may wait for each thread.
const QUEUE: usize = 1_024;
/// Length of the kernel's accept queue; the kernel may cap it lower.
const BACKLOG: i32 = 4_096;
/// Pause after a failed accept, such as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Why the proxy cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The settings name no upstream.
    NoUpstream,
    /// The store cannot keep the guarantees of the policy.
    Store(refrain::Error),
    /// The tokens of requests cannot be verified as `[jwt]` says.
    Tokens(refrain::Error),
    /// The URL of the key set is unusable: invalid address, or no trusted certificate authority.
    KeySet {
        /// URL of the key set.
        url: String,
        /// Underlying error.
        error: io::Error,
    },
    /// The upstream is unusable: invalid address, or no trusted certificate authority.
    Upstream {
        /// URL of the upstream.
        url: String,
        /// Underlying error.
        error: io::Error,
    },
    /// A certificate or key of a listener is unusable.
    Tls(TlsError),
    /// The listen address is unavailable.
    Listen {
        /// Listen address.
        address: SocketAddr,
        /// Underlying error.
        error: io::Error,
    },
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoUpstream => {
                f.write_str("no upstream is set; write upstream = \"http://HOST:PORT\"")
            }
            Self::Store(error) | Self::Tokens(error) => write!(f, "{error}"),
            Self::KeySet { url, error } => write!(f, "jwks_url {url}: {error}"),
            Self::Upstream { url, error } => write!(f, "upstream {url}: {error}"),
            Self::Tls(error) => write!(f, "{error}"),
            Self::Listen { address, error } if error.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "{address} is in use by another process; stop that process, or choose another port"
            ),
            Self::Listen { address, error } if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "cannot listen on {address}: permission denied; choose a port of 1024 or above, \
                     or run with the capability CAP_NET_BIND_SERVICE"
                )
            }
            Self::Listen { address, error } => write!(f, "cannot listen on {address}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<TlsError> for StartError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

/// What the proxy does with connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accepts and serves them.
    #[default]
    Serving,
    /// Accepts no new ones, which wait in the kernel's queue, and serves the others.
    Paused,
    /// Accepts no new ones, because another process does. Asks the clients of the others to close them after their next
    /// response, and ends with the last one.
    Leaving,
    /// Accepts no new ones, and closes the others after the requests in progress.
    Draining,
}

/// Tells the threads the phase.
type Phases = watch::Receiver<Phase>;

/// A proxy that is bound to its address and does not serve yet.
#[derive(Debug)]
pub struct Proxy {
    listener: std::net::TcpListener,
    target: Arc<Target>,
    layer: Arc<CurrentLayer>,
    engine: Engine,
    settings: ProxySettings,
    connections: Connections,
    telemetry: Option<Arc<Telemetry>>,
    phase: watch::Sender<Phase>,
    tls: Option<Arc<ServerTls>>,
}

impl Proxy {
    /// Binds the listen address of the settings.
    ///
    /// # Errors
    /// When the address is unavailable, the upstream, a certificate or a key is unusable, or the store may lose claims that the policy must not lose.
    pub fn bind(settings: &Settings, engine: Engine) -> Result<Self, StartError> {
        Self::on(None, settings, engine)
    }

    /// As [`bind`](Self::bind), on a socket that another process has bound, if there is one.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn on(
        socket: Option<std::net::TcpListener>,
        settings: &Settings,
        engine: Engine,
    ) -> Result<Self, StartError> {
        let layer = guarding(settings, engine.clone())?;
        let target = Arc::new(Target::new(settings)?);
        let layer = layer.with_probes(Forward::new(&target));
        let tls = settings.tls.as_ref();
        let tls = tls.map(ServerTls::of_proxy).transpose()?;
        let address = settings.listen;
        let listener = match socket {
            Some(socket) => socket.set_nonblocking(true).map(|()| socket),
            None => listen(address),
        };
        let listener = listener.map_err(|error| StartError::Listen { address, error })?;
        Ok(Self {
            listener,
            target,
            layer: CurrentLayer::new(layer),
            engine,
            settings: settings.proxy,
            connections: Connections::default(),
            telemetry: None,
            phase: watch::Sender::default(),
            tls,
        })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// When the system does not report the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Another handle of the socket that it listens on, for another process.
    ///
    /// # Errors
    /// When there is no file descriptor left.
    pub fn socket(&self) -> io::Result<std::net::TcpListener> {
        self.listener.try_clone()
    }

    /// TLS towards clients, to load its certificate again; `None` for plain HTTP.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<ServerTls>> {
        self.tls.as_ref()
    }

    /// Changes what the proxy does with connections. [`Phase::Draining`] begins by itself when it stops.
    #[must_use]
    pub fn phase(&self) -> watch::Sender<Phase> {
        self.phase.clone()
    }

    /// The layer that guards requests, which a reload replaces.
    #[must_use]
    pub fn layer(&self) -> &Arc<CurrentLayer> {
        &self.layer
    }

    /// Changes the layer before the proxy serves, for example to attach an observer.
    #[must_use]
    pub fn with_layer(mut self, change: impl FnOnce(RefrainLayer) -> RefrainLayer) -> Self {
        self.layer = CurrentLayer::new(change(self.layer.get()));
        self
    }

    /// Reports its requests and connections here.
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: &Arc<Telemetry>) -> Self {
        let metrics = telemetry.metrics();
        self.connections = metrics.connections().clone();
        self.target.report_to(telemetry);
        if let Some(tls) = &self.tls {
            metrics.count_handshakes(tls);
        }
        self.telemetry = Some(telemetry.clone());
        self.with_layer(|layer| layer.with_observer(telemetry.clone()))
    }

    /// Serves until `stop` completes, then accepts no more requests and waits for the running ones to end,
    /// for the drain time of the settings or until `stop_at_once` completes, whichever is first.
    ///
    /// Returns the number of guarded requests that were still running then: their outcome is unknown.
    ///
    /// # Errors
    /// When the threads, their runtimes or the listener cannot be set up.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        stop_at_once: impl Future<Output = ()>,
    ) -> io::Result<usize> {
        let layer = self.layer.get();
        layer.report();
        if let Some(verifier) = layer.jwt() {
            // A failure is logged. Requests fetch again, and are refused until there are keys.
            let _ = verifier.fetch().await;
        }
        drop(layer);
        let open = Arc::new(AtomicUsize::new(0));
        let threads = (0..self.threads()).map(|at| self.thread(at, &self.phase.subscribe(), &open));
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        let longest = self.longest_request();
        let listener = TcpListener::from_std(self.listener)?;
        let limits = self.connections.limits(self.settings.connections_max);
        self.target.limit_connections(limits.upstream);
        let room = Arc::new(Semaphore::new(limits.clients));
        let mut leaving = self.phase.subscribe();
        let mut stop = std::pin::pin!(stop);
        let is_stopped = tokio::select! {
            () = accept(&listener, &threads, &room, &self.connections, self.phase.subscribe()) => true,
            () = count_upstream(&self.target, &self.connections) => true,
            () = keep_loaded(self.tls.clone()) => true,
            () = &mut stop => true,
            _ = leaving.wait_for(|phase| *phase == Phase::Leaving) => false,
        };
        drop(listener);
        let ended = async {
            wait_until(|| open.load(Relaxed) == 0).await;
            self.engine.settled().await;
        };
        if !is_stopped {
            tokio::select! {
                _ = timeout(longest, ended) => {}
                () = stop => {}
            }
        }
        self.phase.send_replace(Phase::Draining);
        let draining = async {
            wait_until(|| open.load(Relaxed) == 0).await;
            self.engine.settled().await;
        };
        tokio::select! {
            _ = timeout(self.settings.drain, draining) => {}
            () = stop_at_once => {}
        }
        let left = self.engine.running();
        if left > 0 {
            tracing::warn!(
                "{left} guarded requests were still running at the end of the drain time; their outcome is unknown"
            );
        }
        let lost = self.engine.tally().lost_now();
        if lost > 0 {
            tracing::warn!(
                "{lost} claims may be in the store although nothing was executed for them, and the store did not respond \
                 before the end of the drain time; under at-most-once their keys stay unknown outcomes"
            );
        }
        let joining: Vec<_> = threads.into_iter().map(Thread::end).collect();
        for joining in joining {
            // Each thread drops its runtime, and with it all of its tasks.
            let _ = tokio::task::spawn_blocking(move || joining.join()).await;
        }
        Ok(left)
    }

    /// How long the requests in progress, and the next one on an idle connection, may take.
    #[must_use]
    pub fn longest_request(&self) -> Duration {
        let layer = self.layer.get();
        let timeouts = layer.policy().operations().map(|it| it.terms.timeout);
        let (longest, settings) = (timeouts.max().unwrap_or_default(), &self.settings);
        let longest = longest.max(settings.read_timeout).max(settings.drain);
        longest.saturating_add(settings.keep_alive)
    }

    fn threads(&self) -> usize {
        match self.settings.threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    fn thread(&self, at: usize, phases: &Phases, open: &Arc<AtomicUsize>) -> io::Result<Thread> {
        let (queue, arrivals) = mpsc::channel(QUEUE);
        let load = Arc::new(AtomicUsize::new(0));
        let (target, layer, settings) = (self.target.clone(), self.layer.clone(), self.settings);
        let counts = ConnectionCounts {
            load: load.clone(),
            open: open.clone(),
            connections: self.connections.clone(),
        };
        let (phases, telemetry) = (phases.clone(), self.telemetry.clone());
        let tls = self.tls.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = thread::Builder::new()
            .name(format!("refrain-{at}"))
            .spawn(move || {
                runtime.block_on(async {
                    let forward = Forward::new(&target);
                    let watch = Arc::new(Watch::default());
                    tokio::spawn(keep_time(watch.clone(), forward.clone(), settings, phases));
                    let wake_batch = WakeBatch::of_this_thread();
                    tokio::spawn(wake_batch.clone().serve());
                    let watched = watch.clone();
                    let clients =
                        Clients::new(layer, forward, watched, wake_batch, &settings, telemetry)
                            .with_tls(tls);
                    serve(clients, arrivals, counts).await;
                    // Tasks that still run are dropped with the runtime; each logs that it was cut.
                    watch.cut();
                });
            })?;
        Ok(Thread {
            queue,
            load,
            handle,
        })
    }
}

/// What verifies the tokens of requests.
fn verifier(jwt: &JwtSettings, settings: &Settings) -> Result<JwtVerifier, StartError> {
    let built = match &jwt.keys {
        JwtKeys::Url(url) => {
            let keys = HttpJwks::new(url, settings.proxy.connect_timeout);
            let unusable = |error| StartError::KeySet {
                url: redacted(url),
                error,
            };
            JwtVerifier::fetching(jwt.clone(), keys.map_err(unusable)?)
        }
        _ => JwtVerifier::new(jwt.clone()),
    };
    built.map_err(StartError::Tokens)
}

/// The layer of the settings, for a server that passes requests on to another process.
/// Probes go to the upstream of the settings, if there is one.
///
/// # Errors
/// When the store may lose claims that the policy must not lose, or the upstream or the keys of tokens are unusable.
pub fn layer(settings: &Settings, engine: Engine) -> Result<RefrainLayer, StartError> {
    let layer = guarding(settings, engine)?;
    Ok(match settings.upstream {
        Some(_) => layer.with_probes(Forward::new(&Arc::new(Target::new(settings)?))),
        None => layer,
    })
}

/// The layer without probes.
fn guarding(settings: &Settings, engine: Engine) -> Result<RefrainLayer, StartError> {
    let checked = settings.policy.check_store(engine.store());
    checked.map_err(StartError::Store)?;
    let layer = RefrainLayer::new(engine, settings.policy.clone())
        .with_problems(&settings.problems)
        .with_buffered_bytes_max(settings.proxy.buffered_bytes_max)
        .forwarding();
    let verifier = settings.jwt.as_ref().map(|jwt| verifier(jwt, settings));
    Ok(match verifier.transpose()? {
        Some(verifier) => layer.with_jwt(verifier),
        None => layer,
    })
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    // The default backlog of std is so short that a burst of clients overflows it, and each overflow costs a second.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// An accepted connection on its way to a thread.
struct Arrival {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    /// Permit that counts against the limit of open connections.
    place: OwnedSemaphorePermit,
}

struct Thread {
    queue: mpsc::Sender<Arrival>,
    /// Number of connections that it serves.
    load: Arc<AtomicUsize>,
    handle: thread::JoinHandle<()>,
}

impl Thread {
    /// Closes the queue, which ends the thread; returns the handle to join it.
    fn end(self) -> thread::JoinHandle<()> {
        self.handle
    }
}

/// Counters of open connections: of one thread, of all threads, and for the metrics.
#[derive(Clone)]
struct ConnectionCounts {
    load: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    connections: Connections,
}

impl ConnectionCounts {
    fn enter(&self) -> Entered {
        self.load.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        self.connections.open.inc();
        Entered(self.clone())
    }
}

struct Entered(ConnectionCounts);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Relaxed);
        self.0.open.fetch_sub(1, Relaxed);
        self.0.connections.open.dec();
    }
}

/// Hands each connection to the thread that has the fewest. Connections over the limit wait in the kernel's accept queue.
async fn accept(
    listener: &TcpListener,
    threads: &[Thread],
    room: &Arc<Semaphore>,
    connections: &Connections,
    mut phases: Phases,
) {
    loop {
        if phases
            .wait_for(|phase| *phase == Phase::Serving)
            .await
            .is_err()
        {
            return;
        }
        if room.available_permits() == 0 {
            connections.exhausted.inc();
        }
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // A connection that is not accepted stays in the queue, for the process that serves it.
            _ = phases.changed() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                refrain::log_rarely!(warn, %error, "cannot accept a client connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(stream) = stream.into_std() else {
            continue;
        };
        let least = threads.iter().min_by_key(|it| it.load.load(Relaxed));
        let arrival = Arrival {
            stream,
            peer,
            place,
        };
        if let Some(thread) = least
            && thread.queue.send(arrival).await.is_err()
        {
            tracing::error!("a proxy thread has exited");
        }
    }
}

/// Serves connections on one thread until its queue is closed.
async fn serve(clients: Clients, mut arrivals: mpsc::Receiver<Arrival>, counts: ConnectionCounts) {
    while let Some(Arrival {
        stream,
        peer,
        place,
    }) = arrivals.recv().await
    {
        let _ = stream.set_nodelay(true);
        let Ok(stream) = TcpStream::from_std(stream) else {
            continue;
        };
        let entered = counts.enter();
        tokio::spawn(clients.clone().serve(stream, peer, (place, entered)));
    }
}

/// Checks a thread's connections, to clients and upstream, for timeouts a few times a second.
async fn keep_time(
    watch: Arc<Watch>,
    forward: Forward,
    settings: ProxySettings,
    mut phases: Phases,
) {
    let started = tokio::time::Instant::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut phase = Phase::Serving;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                watch.tick(started.elapsed(), &settings);
                forward.sweep();
            }
            changed = phases.wait_for(|now| *now != phase), if phase != Phase::Draining => {
                // A dropped sender counts as draining, too.
                phase = changed.map_or(Phase::Draining, |now| *now);
                match phase {
                    Phase::Leaving => watch.leave(),
                    Phase::Draining => watch.drain(),
                    Phase::Serving | Phase::Paused => {}
                }
            }
        }
    }
}

/// Updates the gauge of upstream connections.
async fn count_upstream(target: &Target, connections: &Connections) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let open = target.open_connections();
        connections
            .upstream
            .set(i64::try_from(open).unwrap_or(i64::MAX));
    }
}

async fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(DRAIN_LOOK).await;
    }
}

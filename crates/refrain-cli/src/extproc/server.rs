//! Starts the server with the same store, policy and admin listener as the proxy, and stops it in order.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use refrain::{
    http::RefrainLayer,
    policy::{Secrets, Settings},
};
use refrain_proxy::admin::{self, Admin};
use tokio::{net::TcpListener, sync::oneshot};
use tonic::transport::{Server, server::TcpIncoming};
use tower_layer::Layer as _;

use super::{Args, handover::Handover, processor::Processor, session::Guarding};
use crate::{
    proxy::{
        Failure, Opened, Signals, admin_of, admin_tls, admin_tokens,
        greeting::{self, Origin},
        learn_standings, listen, log_to_stderr, open, raise_file_limit, receipts, tell,
    },
    settings::{self, Flags},
};

/// Where the server listens by default.
const LISTEN: &str = "127.0.0.1:8381";
/// Bytes of a message besides a body.
const HEAD_BYTES_MAX: usize = 1 << 20;
/// The least size of the largest body.
const BODY_BYTES_MAX: usize = 8 << 20;
/// HTTP/2 windows: Envoy sends a body as one message, which smaller windows would delay.
const WINDOW: u32 = 1 << 20;
const WINDOW_OF_CONNECTION: u32 = 8 << 20;

pub(super) fn start(args: &Args) -> Result<(), Failure> {
    let config = settings::config(args.config.as_deref());
    let loaded = settings::load(
        config.as_deref(),
        Secrets::Operations,
        &Flags {
            admin: args.admin.as_deref(),
            store: args.store.as_deref(),
            audit_log: args.audit_log.as_deref(),
            access_log: args.access_log.as_deref(),
            ..Flags::default()
        },
    )?;
    let address = address(settings::value("extproc_listen", args.listen.as_deref())?)?;
    log_to_stderr(&settings::value("log", args.log.as_deref())?)?;
    raise_file_limit();
    let origin = match &config {
        Some(file) => Origin::File(file),
        None => Origin::Flags(loaded.as_file()),
    };
    let settings = &loaded.settings;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads(settings))
        .enable_all()
        .build()?;
    runtime.block_on(serve(settings, address, &origin))
}

fn address(text: Option<String>) -> Result<SocketAddr, Failure> {
    let text = text.unwrap_or_else(|| LISTEN.into());
    text.parse().map_err(|_| {
        Failure::Configuration(format!(
            "refrain: invalid listen address `{text}`; write an IP address and a port, such as {LISTEN}"
        ))
    })
}

fn threads(settings: &Settings) -> usize {
    match settings.proxy.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

async fn serve(
    settings: &Settings,
    address: SocketAddr,
    origin: &Origin<'_>,
) -> Result<(), Failure> {
    // Before the ports are open: from here on a signal stops the server in order.
    let (mut signals, mut told) = (Signals::new()?, Signals::new()?);
    let (token, reader_token) = admin_tokens(settings.admin, &settings.admin_hosts)?;
    let Opened {
        telemetry,
        engine,
        receipts,
    } = open(settings).await?;
    let engine = engine.with_upstream("Envoy");
    let layer = receipts::read(refrain_proxy::layer(settings, engine.clone())?, &receipts);
    let layer = layer.with_observer(telemetry.clone());
    learn_standings(&layer).await?;
    let (listener, door) = (listen(address).await?, listen(settings.admin).await?);
    let is_draining = Arc::new(AtomicBool::new(false));
    let admin = Admin {
        token,
        reader_token,
        tls: admin_tls(settings, telemetry.metrics())?,
        ..admin_of(settings, &layer, &telemetry, &is_draining)
    };
    let greeting = format!(
        "listening on http://{}\nadmin on {}://{}\n{}{}",
        listener.local_addr()?,
        greeting::scheme(settings.admin_tls.as_ref()),
        door.local_addr()?,
        greeting::guarding(settings, &engine, origin),
        greeting::as_file(origin),
    );
    // The admin address serves until the very end, so that draining can be watched.
    let admin = tokio::spawn(admin::serve(door, admin, std::future::pending()));
    tell(settings, greeting);
    let stop = async move {
        signals.next().await;
        is_draining.store(true, Ordering::Relaxed);
    };
    let insisted = async {
        told.next().await;
        told.next().await;
    };
    let left = run(settings, &layer, listener, stop, insisted).await?;
    admin.abort();
    telemetry.close().await;
    tell(
        settings,
        match left {
            0 => "stopped".into(),
            left => format!("stopped; requests cut off, with unknown outcomes: {left}"),
        },
    );
    Ok(())
}

/// Serves until `stop` completes, then waits for open streams, for the drain time or until `stop_at_once` completes.
/// Returns the number of guarded requests that were still running then.
async fn run(
    settings: &Settings,
    layer: &RefrainLayer,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
    stop_at_once: impl Future<Output = ()>,
) -> Result<usize, Failure> {
    let engine = layer.engine();
    let (drain, draining) = oneshot::channel();
    let stopped = async {
        stop.await;
        tell(
            settings,
            "stopping: no new requests; running requests finish",
        );
        let _ = drain.send(());
    };
    let serving = async {
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = builder(settings).add_service(service(settings, layer));
        let served = server.serve_with_incoming_shutdown(incoming, stopped).await;
        engine.settled().await;
        served
    };
    let over = async {
        // An error means that the server has ended.
        let _ = draining.await;
        tokio::select! {
            () = tokio::time::sleep(settings.proxy.drain) => {}
            () = stop_at_once => {}
        }
    };
    tokio::select! {
        served = serving => served.map_err(|error| Failure::Unavailable(error.to_string()))?,
        () = over => {}
    }
    Ok(engine.running())
}

fn builder(settings: &Settings) -> Server {
    let streams_max = u32::try_from(settings.proxy.connections_max).unwrap_or(u32::MAX);
    Server::builder()
        .max_concurrent_streams(Some(streams_max))
        .initial_stream_window_size(Some(WINDOW))
        .initial_connection_window_size(Some(WINDOW_OF_CONNECTION))
        .http2_keepalive_interval(Some(settings.proxy.keep_alive))
}

fn service(settings: &Settings, layer: &RefrainLayer) -> ExternalProcessorServer<Processor> {
    let guarding = Guarding {
        policy: settings.policy.clone(),
        problems: settings.problems.clone(),
        service: layer.layer(Handover),
    };
    let processor = Processor::new(guarding, settings.proxy.connections_max);
    ExternalProcessorServer::new(processor).max_decoding_message_size(message_bytes_max(settings))
}

/// The largest message: a response may be larger than what is kept of it.
fn message_bytes_max(settings: &Settings) -> usize {
    let operations = settings.policy.operations();
    let largest = operations.map(|it| it.request_bytes_max.max(it.outcome_bytes_max));
    let body = largest.max().unwrap_or_default().max(BODY_BYTES_MAX);
    HEAD_BYTES_MAX.saturating_add(body.saturating_mul(2))
}

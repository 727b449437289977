//! Accepts admin connections, with limits on their number and duration.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::process::{Resource, getrlimit};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{stream::Io, tls::ServerTls};

const CONNECTIONS_MAX: usize = 256;
/// The listener takes at most the open-file limit divided by this.
const DESCRIPTORS_PART: u64 = 16;
/// Longest time until a head is complete, for the first and every later one.
const HEAD_MAX: Duration = Duration::from_secs(30);
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Longest time for responses in progress after the shutdown began.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept, such as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves routes, with TLS if there is any, until `shutdown` completes, then waits a few seconds for responses in progress.
///
/// The number of connections has a limit below the open-file limit, and so has the time for a request's head.
///
/// # Cancellation
/// Closes its connections at once when dropped.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let (ending, ended) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::select! {
        () = shutdown => {}
        () = accept(&listener, tls.as_ref(), &router, &mut connections, &ended) => {}
    }
    drop((listener, ending));
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(DRAIN_MAX, all).await;
}

async fn accept(
    listener: &TcpListener,
    tls: Option<&Arc<ServerTls>>,
    router: &Router,
    connections: &mut JoinSet<()>,
    ended: &watch::Receiver<()>,
) {
    let max = connections_max();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= max {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let (tls, router, ended) = (tls.cloned(), router.clone(), ended.clone());
                connections.spawn(serve_connection(stream, tls, router, ended));
            }
            Err(error) => {
                refrain::log_rarely!(warn, %error, "cannot accept an admin connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let part = usize::try_from(limit / DESCRIPTORS_PART).unwrap_or(usize::MAX);
    part.clamp(1, CONNECTIONS_MAX)
}

async fn serve_connection(
    stream: TcpStream,
    tls: Option<Arc<ServerTls>>,
    router: Router,
    mut ended: watch::Receiver<()>,
) {
    let stream = match tls {
        None => Io::Plain(stream),
        Some(tls) => match tls.accept(stream).await {
            Ok(connection) => connection.stream,
            Err(error) => {
                tracing::debug!(%error, "the TLS handshake of an admin connection failed");
                return;
            }
        },
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let done = tokio::select! {
        done = connection.as_mut() => done,
        // Nothing is sent; the drop of the sender is the signal.
        _ = ended.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "an admin connection failed");
    }
}

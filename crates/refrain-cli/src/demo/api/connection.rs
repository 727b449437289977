//! HTTP connections that can be closed or reset without a response, which server libraries do not offer.

use std::{convert::Infallible, sync::Arc};

use axum::{Router, body::Body, response::Response};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{Duration, sleep},
};
use tower_service::Service as _;

use crate::demo::trouble::Trouble;

/// Pause after a failed accept, most likely because of too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Serves for ever; dropping the future closes all connections.
pub(super) async fn accept(listener: TcpListener, router: Router) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let router = router.clone();
                    connections.spawn(async { drop(converse(stream, router).await) });
                }
                Err(_) => sleep(ACCEPT_AGAIN).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Makes hyper close the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("broken off on purpose")]
struct BrokenOff;

async fn converse(stream: TcpStream, router: Router) -> anyhow::Result<()> {
    let stream = stream.into_std()?;
    let twin = Arc::new(stream.try_clone()?);
    let service = service_fn(move |request: Request<Incoming>| {
        let (mut router, twin) = (router.clone(), twin.clone());
        async move {
            let response: Result<Response, Infallible> = router.call(request.map(Body::new)).await;
            let Ok(response) = response;
            match response.extensions().get::<Trouble>() {
                None => Ok(response),
                Some(trouble) => {
                    if *trouble == Trouble::Reset {
                        // With zero linger, closing sends a reset instead of an orderly end.
                        let _ = twin
                            .try_clone()
                            .map(|twin| TcpSocket::from_std_stream(twin).set_zero_linger());
                    }
                    Err(BrokenOff)
                }
            }
        }
    });
    let io = TokioIo::new(TcpStream::from_std(stream)?);
    http1::Builder::new().serve_connection(io, service).await?;
    Ok(())
}

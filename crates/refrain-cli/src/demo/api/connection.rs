//! Connections that can break off without an answer, which no well-behaved server offers.

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

/// Too many open files, most likely: somebody will close one.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Serves for ever; dropped, it ends with all its connections.
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

/// The connection is to end without an answer.
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
                        // Closed like this, the peer gets a reset and no orderly end.
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

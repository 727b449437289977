//! A scripted service behind the proxy that controls every byte it sends and records every request.

#![allow(dead_code, reason = "each test file uses only part of this module")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::sleep,
};

use crate::wire::{Message, Wire, response};

/// One step of a response; the connection stays open unless a step closes it.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Say(Vec<u8>),
    Sleep(Duration),
    Wait(Arc<Notify>),
    Close,
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// Number of its connection, from 1.
    pub(crate) connection: usize,
    /// Number among all requests, from 1.
    pub(crate) number: usize,
    pub(crate) request: Message,
}

/// Serves until the test's runtime ends. It completes every request, even if the client has disconnected.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
}

/// The response to any request: its target and its number.
pub(crate) fn echo(arrived: &Arrived) -> Vec<Act> {
    let number = arrived.number;
    let body = format!("{} by request {number}", arrived.request.target());
    vec![Act::Say(response(201, "", body))]
}

impl Upstream {
    /// Starts a service that responds with the steps of `answer`.
    pub(crate) async fn start(
        answer: impl Fn(&Arrived) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        Self::start_with(move |arrived| {
            let acts = answer(&arrived);
            async move { acts }
        })
        .await
    }

    /// Starts a service whose steps are computed by a future.
    pub(crate) async fn start_with<F, W>(answer: F) -> Self
    where
        F: Fn(Arrived) -> W + Send + Sync + 'static,
        W: Future<Output = Vec<Act>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve(listener, answer)
    }

    pub(crate) fn serve<F, W>(listener: TcpListener, answer: F) -> Self
    where
        F: Fn(Arrived) -> W + Send + Sync + 'static,
        W: Future<Output = Vec<Act>> + Send + 'static,
    {
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            arrived: Arc::default(),
        };
        let (serving, answer) = (upstream.clone(), Arc::new(answer));
        tokio::spawn(async move {
            for connection in 1.. {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(
                    serving
                        .clone()
                        .connection(connection, stream, answer.clone()),
                );
            }
        });
        upstream
    }

    async fn connection<F, W>(self, connection: usize, stream: TcpStream, answer: Arc<F>)
    where
        F: Fn(Arrived) -> W,
        W: Future<Output = Vec<Act>>,
    {
        stream.set_nodelay(true).unwrap();
        let mut wire = Wire::new(stream);
        while let Ok(request) = wire.request().await {
            let arrived = self.note(connection, request);
            for act in answer(arrived).await {
                match act {
                    // A disconnected client does not stop the remaining steps.
                    Act::Say(bytes) => drop(wire.send(&bytes).await),
                    Act::Sleep(time) => sleep(time).await,
                    Act::Wait(until) => until.notified().await,
                    Act::Close => return,
                }
            }
        }
    }

    fn note(&self, connection: usize, request: Message) -> Arrived {
        let mut all = self.arrived.lock().unwrap();
        let arrived = Arrived {
            connection,
            number: all.len() + 1,
            request,
        };
        all.push(arrived.clone());
        arrived
    }

    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }

    /// Number of requests received.
    pub(crate) fn count(&self) -> usize {
        self.arrived.lock().unwrap().len()
    }

    /// Waits until this many requests have been received.
    pub(crate) async fn reached(&self, count: usize) {
        for _ in 0..12_000 {
            if self.count() >= count {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("{} of {count} requests arrived", self.count());
    }
}

//! A service behind the proxy that does as it is told, byte by byte, and remembers what it was asked.

#![allow(
    dead_code,
    reason = "each test file that takes this in uses a part of it"
)]

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

/// What it does with a request, one after the other; the connection stays open unless it is told otherwise.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Say(Vec<u8>),
    Sleep(Duration),
    Wait(Arc<Notify>),
    Close,
}

/// A request that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// The connection it came over, counted from 1.
    pub(crate) connection: usize,
    /// Which one it is of all, counted from 1.
    pub(crate) number: usize,
    pub(crate) request: Message,
}

/// Serves until the test's runtime ends. What it began, it ends, whoever has gone away.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
}

/// The answer to everything: what was asked, and which request it was.
pub(crate) fn echo(arrived: &Arrived) -> Vec<Act> {
    let number = arrived.number;
    let body = format!("{} by request {number}", arrived.request.target());
    vec![Act::Say(response(201, "", body))]
}

impl Upstream {
    /// One that does what `answer` says.
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

    /// One that takes its time to find out what to do.
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
                    // Whoever is gone does not keep it from going on.
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

    /// How many requests arrived.
    pub(crate) fn count(&self) -> usize {
        self.arrived.lock().unwrap().len()
    }

    /// Waits until so many requests have arrived.
    pub(crate) async fn reached(&self, count: usize) {
        for _ in 0..2_000 {
            if self.count() >= count {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("{} of {count} requests arrived", self.count());
    }
}

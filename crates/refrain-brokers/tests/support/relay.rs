//! A TCP relay in front of a server; its connections can be cut, or its responses held, while both ends keep running.
#![allow(dead_code)]

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// Forwards connections to a server, on a port of its own.
pub(crate) struct Relay {
    port: u16,
    open: Arc<Mutex<Vec<AbortHandle>>>,
    is_held: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(Mutex::new(Vec::new()));
        let mut accepting = JoinSet::new();
        let handles = open.clone();
        let (is_held, held) = watch::channel(false);
        accepting.spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let handle = passing.spawn(pass(client, server, held.clone()));
                handles.lock().unwrap().push(handle);
            }
        });
        Self {
            port,
            open,
            is_held,
            _accepting: accepting,
        }
    }

    /// The server's URL with the relay's port.
    pub(crate) fn url(&self, url: &str) -> String {
        let (front, rest) = url.rsplit_once("127.0.0.1:").unwrap();
        let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        format!("{front}127.0.0.1:{}{behind}", self.port)
    }

    /// Holds back, or forwards, the server's responses.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.send_replace(is_held);
    }

    /// Cuts every open connection; new connections are forwarded.
    pub(crate) fn cut(&self) {
        for handle in self.open.lock().unwrap().drain(..) {
            handle.abort();
        }
    }
}

async fn pass(client: TcpStream, server: u16, mut is_held: watch::Receiver<bool>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let _ = copy(&mut from_client, &mut to_server).await;
        let _ = to_server.shutdown().await;
    };
    let answers = async {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
            let _ = is_held.wait_for(|is_held| !is_held).await;
            if to_client.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
        let _ = to_client.shutdown().await;
    };
    tokio::join!(requests, answers);
}

//! A TCP relay in front of a server; its connections can be cut while both ends keep running.

use std::sync::{Arc, Mutex};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// Forwards connections to a server, on a port of its own.
pub(crate) struct Relay {
    port: u16,
    open: Arc<Mutex<Vec<AbortHandle>>>,
    _accepting: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(Mutex::new(Vec::new()));
        let mut accepting = JoinSet::new();
        let handles = open.clone();
        accepting.spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let handle = passing.spawn(pass(client, server));
                handles.lock().unwrap().push(handle);
            }
        });
        Self {
            port,
            open,
            _accepting: accepting,
        }
    }

    /// The server's URL with the relay's port.
    pub(crate) fn url(&self, url: &str) -> String {
        let (front, rest) = url.rsplit_once("127.0.0.1:").unwrap();
        let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        format!("{front}127.0.0.1:{}{behind}", self.port)
    }

    /// Cuts every open connection; new connections are forwarded.
    pub(crate) fn cut(&self) {
        for handle in self.open.lock().unwrap().drain(..) {
            handle.abort();
        }
    }
}

async fn pass(mut client: TcpStream, server: u16) {
    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

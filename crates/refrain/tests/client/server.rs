//! A server that follows its script, one step for each request, and records the requests.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

/// What the server does after it has read a request completely.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Writes this, and closes the connection.
    Answer(String),
    /// Closes the connection without a response.
    Close,
    /// Resets the connection.
    Reset,
    /// Responds once the test permits it.
    Gated(String),
    /// Never responds.
    Stall,
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let named = self.headers.iter().find(|(it, _)| it == name);
        named.map(|(_, value)| value.as_str())
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").unwrap_or_default()
    }
}

/// The server. After the end of its script it responds with 200.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) gate: Arc<Semaphore>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(crate) async fn start(script: impl IntoIterator<Item = Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            gate: Arc::new(Semaphore::new(0)),
            seen: Arc::default(),
        };
        let script: Arc<Mutex<VecDeque<Step>>> = Arc::new(Mutex::new(script.into_iter().collect()));
        let this = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (this, script) = (this.clone(), script.clone());
                tokio::spawn(async move { this.serve(stream, &script).await });
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let key = |seen: &Seen| seen.key().to_owned();
        self.seen().iter().map(key).collect()
    }

    /// Waits until this many requests have arrived.
    pub(crate) async fn has_seen(&self, requests: usize) {
        while self.seen().len() < requests {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Polls `going` until this many requests have arrived, then drops it.
    pub(crate) async fn sees(&self, requests: usize, going: impl Future<Output: std::fmt::Debug>) {
        tokio::select! {
            ended = going => panic!("the future ended early: {ended:?}"),
            () = self.has_seen(requests) => {}
        }
    }

    async fn serve(&self, mut stream: TcpStream, script: &Mutex<VecDeque<Step>>) {
        let Some(seen) = read(&mut stream).await else {
            return;
        };
        self.seen.lock().unwrap().push(seen);
        let step = script.lock().unwrap().pop_front();
        match step.unwrap_or_else(|| answer(200, "", "fine")) {
            Step::Answer(bytes) => drop(stream.write_all(bytes.as_bytes()).await),
            Step::Gated(bytes) => {
                self.gate.acquire().await.unwrap().forget();
                drop(stream.write_all(bytes.as_bytes()).await);
            }
            Step::Close => {}
            Step::Reset => stream.set_zero_linger().unwrap(),
            Step::Stall => std::future::pending().await,
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let (line, fields) = head.split_once("\r\n").unwrap_or((&head, ""));
    let field = |text: &str| {
        let (name, value) = text.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers: Vec<_> = fields.lines().map(field).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, value)| value.parse().unwrap());
    while bytes.len() < head_end + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8_lossy(&bytes[head_end + 4..]).into_owned();
    Some(Seen {
        line: line.to_owned(),
        headers,
        body,
    })
}

/// A response; each line of `headers` ends with a line break.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Step {
    Step::Answer(bytes(status, headers, body))
}

pub(crate) fn bytes(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// A problem response as Refrain writes it.
pub(crate) fn problem(status: u16, code: &str, advice: &str, headers: &str) -> Step {
    let headers = format!("content-type: application/problem+json\r\n{headers}");
    let body =
        format!(r#"{{"status":{status},"code":"{code}","advice":"{advice}","detail":"so"}}"#);
    answer(status, &headers, &body)
}

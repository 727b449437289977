//! A way to the server that loses things: a relay of bytes that can be cut at the worst moment.

#![allow(
    dead_code,
    reason = "each test binary that takes this in uses a part of it"
)]

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// What the relay does with what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mood {
    /// Passes everything on.
    Faithful = 0,
    /// Passes the next request on and cuts the connection when its answer comes: it was done, and nobody hears of it.
    LosesNextAnswer = 1,
    /// Cuts the connection before the next request gets through: it was not done, and nobody knows.
    LosesNextRequest = 2,
    /// Passes nothing on and closes nothing.
    Stuck = 3,
    /// Takes no connections and cuts those that there are when they are used.
    Gone = 4,
    /// Passes the next commit on and cuts the connection when its answer comes.
    LosesAnswerToCommit = 5,
    /// Passes the next request on, cuts the connection when its answer comes, and is gone from then on.
    LosesNextAnswerAndGoes = 6,
}

/// The relay. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Relay {
    pub(crate) port: u16,
    mood: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
}

impl Relay {
    /// To the server at this address, which the tests' URL names.
    pub(crate) async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Self {
            port: listener.local_addr().unwrap().port(),
            mood: Arc::default(),
            cuts: Arc::default(),
        };
        let this = relay.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if this.mood() == Mood::Gone {
                    continue;
                }
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(this.clone().pass(client, server));
            }
        });
        relay
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    /// How often something was lost.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }

    fn mood(&self) -> Mood {
        use Mood::{
            Faithful, Gone, LosesAnswerToCommit, LosesNextAnswer, LosesNextAnswerAndGoes,
            LosesNextRequest, Stuck,
        };
        let moods = [
            Faithful,
            LosesNextAnswer,
            LosesNextRequest,
            Stuck,
            Gone,
            LosesAnswerToCommit,
            LosesNextAnswerAndGoes,
        ];
        moods[usize::from(self.mood.load(Ordering::SeqCst))]
    }

    fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
        match self.mood() {
            Mood::Gone => {}
            Mood::LosesNextAnswerAndGoes => self.set(Mood::Gone),
            _ => self.set(Mood::Faithful),
        }
    }

    async fn pass(self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        loop {
            tokio::select! {
                read = from_client.read(&mut asked) => {
                    let Ok(len @ 1..) = read else { return };
                    match self.mood() {
                        Mood::Stuck => std::future::pending().await,
                        Mood::LosesNextRequest | Mood::Gone => return self.cut(),
                        Mood::LosesAnswerToCommit if has_commit(&asked[..len]) => {
                            self.set(Mood::LosesNextAnswer);
                        }
                        _ => {}
                    }
                    if to_server.write_all(&asked[..len]).await.is_err() { return }
                }
                read = from_server.read(&mut answered) => {
                    let Ok(len @ 1..) = read else { return };
                    match self.mood() {
                        Mood::Stuck => std::future::pending().await,
                        Mood::LosesNextAnswer | Mood::LosesNextAnswerAndGoes | Mood::Gone => {
                            return self.cut();
                        }
                        _ => {}
                    }
                    if to_client.write_all(&answered[..len]).await.is_err() { return }
                }
            }
        }
    }
}

fn has_commit(asked: &[u8]) -> bool {
    asked.windows(6).any(|bytes| bytes == b"COMMIT")
}

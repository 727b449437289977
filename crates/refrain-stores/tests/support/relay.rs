//! Relay to the server that drops connections at chosen moments.

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

/// Behaviour of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mood {
    /// Relays everything.
    Faithful = 0,
    /// Relays the next request and closes the connection when its answer arrives: applied, but not acknowledged.
    LosesNextAnswer = 1,
    /// Closes the connection before the next request is relayed: not applied, and not acknowledged.
    LosesNextRequest = 2,
    /// Relays nothing, and keeps connections open.
    Stuck = 3,
    /// Accepts no connections, and closes existing ones when they are used.
    Gone = 4,
    /// Relays the next commit and closes the connection when its answer arrives.
    LosesAnswerToCommit = 5,
    /// As `LosesNextAnswer`, and then as `Gone`.
    LosesNextAnswerAndGoes = 6,
}

/// Relay. Clones share its state.
#[derive(Debug, Clone)]
pub(crate) struct Relay {
    pub(crate) port: u16,
    mood: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
}

impl Relay {
    /// Starts a relay to the server at this address.
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

    /// Number of connections that were cut.
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

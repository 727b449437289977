//! One connection that many share, made anew when it broke.
//!
//! Nothing is ever sent twice here: what was under way when the connection broke is answered with an error,
//! and whoever asked decides. A new connection is used only once its server has been looked at again.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind as Kind, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value, aio::MultiplexedConnection, sentinel::SentinelClient,
};
use refrain::{Error, ErrorKind, Result};
use tokio::{
    runtime::Handle,
    sync::{Mutex as AsyncMutex, watch},
    time::{Instant, timeout},
};

use super::{
    calls::Call,
    reception::{self, Known},
    trouble,
};

/// After a failed attempt to connect, those who come get its error for this long, and cause no other attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// Where a connection comes from.
pub(super) enum Dial {
    One(Client),
    Sentinel(AsyncMutex<SentinelClient>),
}

/// How long connecting and answering may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    pub(super) answer: Duration,
}

/// The connection. Clones share it.
#[derive(Clone)]
pub(super) struct Line {
    shared: Arc<Shared>,
}

struct Shared {
    dial: Dial,
    shown: String,
    patience: Patience,
    /// Where connections live: the caller's runtime may end before the store does.
    runtime: Handle,
    state: Mutex<State>,
    /// What a server must still know when it is met again.
    known: OnceLock<Arc<Known>>,
}

#[derive(Default)]
struct State {
    /// Counts connections, so that only the one that broke is given up.
    generation: u64,
    current: Option<MultiplexedConnection>,
    dialing: Option<watch::Receiver<Option<Dialed>>>,
    /// Why the last attempt failed, and until when that counts.
    refused: Option<(Instant, Arc<Refusal>)>,
}

type Dialed = Result<(u64, MultiplexedConnection), Arc<Refusal>>;

/// An error that can be told to many.
struct Refusal(ErrorKind, String);

impl Refusal {
    fn error(&self) -> Error {
        Error::new(self.0, self.1.clone()).unapplied()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.shared.shown).finish()
    }
}

/// Why there is no answer.
pub(super) enum Trouble {
    /// The driver or the server said so.
    Redis(RedisError),
    /// There is no connection.
    Told(Error),
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl Trouble {
    pub(super) fn error(self, shown: &str) -> Error {
        match self {
            Self::Redis(error) => trouble::told(error, shown),
            Self::Told(error) => error,
        }
    }

    /// The same for somebody else.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Redis(error) => Self::Redis(error.clone()),
            Self::Told(error) => Self::Told(error.repeated()),
        }
    }

    /// Whether the server said nothing for too long.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Redis(error) if error.is_timeout())
    }

    /// Whether the server itself refused what it was asked for.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Redis(error) if matches!(error.kind(), Kind::Server(_)))
    }

    /// Whether the server did not know the script, and so ran nothing.
    pub(super) fn is_no_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == Kind::Server(ServerErrorKind::NoScript))
    }
}

impl Line {
    pub(super) fn new(dial: Dial, shown: &str, patience: Patience, runtime: Handle) -> Self {
        Self {
            shared: Arc::new(Shared {
                dial,
                shown: shown.into(),
                patience,
                runtime,
                state: Mutex::default(),
                known: OnceLock::new(),
            }),
        }
    }

    /// The address without its password.
    pub(super) fn shown(&self) -> &str {
        &self.shared.shown
    }

    /// A connection of its own, for whoever needs one; nothing of the server has been looked at.
    pub(super) async fn dial(&self) -> Result<MultiplexedConnection> {
        self.shared.dial().await
    }

    /// The client of the server that is the primary now.
    pub(super) async fn client(&self) -> RedisResult<Client> {
        self.shared.client().await
    }

    /// The connection as it is, for many questions in a row.
    pub(super) async fn current(&self) -> Result<MultiplexedConnection> {
        Ok(self.connection().await?.1)
    }

    /// From now on every server that is met must know this.
    pub(super) fn hold_to(&self, known: Arc<Known>) {
        let _ = self.shared.known.set(known);
    }

    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Trouble> {
        let (generation, mut connection) = self.connection().await.map_err(Trouble::Told)?;
        let answer = connection.send_packed_command(command).await;
        self.checked(generation, answer.and_then(Value::extract_error))
    }

    /// Asks something that is answered with a list. The inner results are what stands in it.
    pub(super) async fn ask_each(
        &self,
        call: &Call,
    ) -> Result<Vec<Result<Value, Trouble>>, Trouble> {
        let (generation, mut connection) = self.connection().await.map_err(Trouble::Told)?;
        // A transaction is answered with a word for each of its commands, and then with a list of their answers.
        let before = call.commands.len() - 1;
        let answer = connection
            .send_packed_commands(&call.commands, before, 1)
            .await;
        let answer = match (call.is_transaction, self.checked(generation, answer)?.pop()) {
            (true, Some(Value::Array(mut answers))) => answers.pop(),
            (_, answer) => answer,
        };
        let answers = match answer {
            Some(Value::Array(answers)) => answers,
            Some(other) => vec![self.checked(generation, other.extract_error())?],
            None => Vec::new(),
        };
        Ok(answers
            .into_iter()
            .map(|answer| self.checked(generation, answer.extract_error()))
            .collect())
    }

    /// Asks for all in one go. The inner results are the server's answers to each.
    pub(super) async fn ask_all(
        &self,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, Trouble>>, Trouble> {
        let (generation, mut connection) = self.connection().await.map_err(Trouble::Told)?;
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let answers = connection
            .send_packed_commands(&pipeline, 0, commands.len())
            .await;
        let answers = self.checked(generation, answers)?;
        Ok(answers
            .into_iter()
            .map(|answer| self.checked(generation, answer.extract_error()))
            .collect())
    }

    fn checked<T>(&self, generation: u64, answer: RedisResult<T>) -> Result<T, Trouble> {
        answer.map_err(|error| {
            if is_over(&error) {
                self.shared.give_up(generation);
            }
            Trouble::Redis(error)
        })
    }

    async fn connection(&self) -> Dialing {
        let mut dialed = match self.shared.find() {
            Found::Connection(generation, connection) => return Ok((generation, connection)),
            Found::Refused(refusal) => return Err(refusal.error()),
            Found::Dialing(dialed) => dialed,
        };
        loop {
            if let Some(dialed) = &*dialed.borrow_and_update() {
                return dialed.clone().map_err(|refusal| refusal.error());
            }
            if dialed.changed().await.is_err() {
                return Err(trouble::ended(&self.shared.shown).unapplied());
            }
        }
    }
}

type Dialing = Result<(u64, MultiplexedConnection)>;

/// What is there when a connection is wanted.
enum Found {
    Connection(u64, MultiplexedConnection),
    Refused(Arc<Refusal>),
    Dialing(watch::Receiver<Option<Dialed>>),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(self: &Arc<Self>) -> Found {
        let mut state = self.state();
        if let Some(connection) = &state.current {
            return Found::Connection(state.generation, connection.clone());
        }
        if let Some(dialed) = &state.dialing {
            return Found::Dialing(dialed.clone());
        }
        if let Some((until, refusal)) = &state.refused
            && tokio::time::Instant::now() < *until
        {
            return Found::Refused(refusal.clone());
        }
        let (sender, receiver) = watch::channel(None);
        state.dialing = Some(receiver.clone());
        let shared = self.clone();
        // In a task of its own: whoever asked may go, and others wait for it too.
        self.runtime.spawn(async move {
            let dialed = shared.meet().await;
            let dialed = shared.dialed(dialed);
            sender.send_replace(Some(dialed));
        });
        Found::Dialing(receiver)
    }

    fn dialed(&self, dialed: Result<MultiplexedConnection>) -> Dialed {
        let mut state = self.state();
        state.dialing = None;
        match dialed {
            Ok(connection) => {
                state.generation += 1;
                state.refused = None;
                state.current = Some(connection.clone());
                Ok((state.generation, connection))
            }
            Err(error) => {
                let refusal = Arc::new(Refusal(error.kind(), error.to_string()));
                state.refused = Some((tokio::time::Instant::now() + PAUSE, refusal.clone()));
                Err(refusal)
            }
        }
    }

    fn give_up(&self, generation: u64) {
        let mut state = self.state();
        if state.generation == generation {
            state.current = None;
        }
    }

    /// Connects, and looks at who is there.
    async fn meet(&self) -> Result<MultiplexedConnection> {
        let connection = self.dial().await?;
        if let Some(known) = self.known.get() {
            reception::meet_again(&connection, known, &self.shown).await?;
        }
        Ok(connection)
    }

    async fn dial(&self) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience.connect))
            .set_response_timeout(Some(self.patience.answer));
        let dialing = async {
            let client = self.client().await?;
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
        };
        let dialed = timeout(self.patience.connect * 2, dialing).await;
        let dialed = dialed.unwrap_or_else(|_| Err(timed_out()));
        dialed.map_err(|error| trouble::told(error, &self.shown))
    }

    async fn client(&self) -> RedisResult<Client> {
        match &self.dial {
            Dial::One(client) => Ok(client.clone()),
            Dial::Sentinel(sentinels) => sentinels.lock().await.async_get_client().await,
        }
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Whether nothing more is to be had from the connection, or from the server at its other end.
fn is_over(error: &RedisError) -> bool {
    let is_demoted = matches!(
        error.kind(),
        Kind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
    );
    is_demoted
        || error.is_timeout()
        || error.is_unrecoverable_error()
        || error.code() == Some("NOAUTH")
}

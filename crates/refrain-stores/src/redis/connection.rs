//! Shared connection to one server, with reconnect.
//!
//! Nothing is retried here: commands in progress fail when the connection breaks, and the caller decides.
//! A new connection is used only after its server was checked again.

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
    errors,
    reception::{self, OpenedServer},
};

/// After a failed connect, callers get the same error for this long, without another attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// How to connect: to one server, or through Sentinels.
pub(super) enum RedisEndpoint {
    One(Client),
    Sentinel(AsyncMutex<SentinelClient>),
}

/// Limits for connecting and for answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    pub(super) answer: Duration,
}

/// Shared connection. Clones share it.
#[derive(Clone)]
pub(super) struct SharedConnection {
    shared: Arc<RedisConnection>,
}

struct RedisConnection {
    dial: RedisEndpoint,
    shown: String,
    patience: Patience,
    /// Runtime of the connections: a caller's runtime may shut down before the store is dropped.
    runtime: Handle,
    state: Mutex<ConnectionState>,
    /// Expected state of the server, checked on every reconnect.
    known: OnceLock<Arc<OpenedServer>>,
}

#[derive(Default)]
struct ConnectionState {
    /// Number of the connection, so that only the connection that broke is dropped.
    generation: u64,
    current: Option<MultiplexedConnection>,
    dialing: Option<watch::Receiver<Option<Dialed>>>,
    /// Error of the last attempt, and until when it is returned.
    refused: Option<(Instant, Arc<SharedConnectError>)>,
}

type Dialed = Result<(u64, MultiplexedConnection), Arc<SharedConnectError>>;

/// Error that can be returned to several callers.
struct SharedConnectError(ErrorKind, String);

impl SharedConnectError {
    fn error(&self) -> Error {
        Error::new(self.0, self.1.clone()).unapplied()
    }
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedConnection")
            .field(&self.shared.shown)
            .finish()
    }
}

/// Why there is no answer.
pub(super) enum RedisCallError {
    /// Error of the driver or the server.
    Redis(RedisError),
    /// No connection.
    Told(Error),
}

impl From<RedisError> for RedisCallError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl RedisCallError {
    pub(super) fn error(self, shown: &str) -> Error {
        match self {
            Self::Redis(error) => errors::convert_error(error, shown),
            Self::Told(error) => error,
        }
    }

    /// Copy for another caller.
    pub(super) fn repeated(&self) -> Self {
        match self {
            Self::Redis(error) => Self::Redis(error.clone()),
            Self::Told(error) => Self::Told(error.repeated()),
        }
    }

    /// Whether the server did not answer in time.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Redis(error) if error.is_timeout())
    }

    /// Whether the server itself rejected the command.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Redis(error) if matches!(error.kind(), Kind::Server(_)))
    }

    /// Whether the server does not have the script, so that nothing ran.
    pub(super) fn is_no_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == Kind::Server(ServerErrorKind::NoScript))
    }
}

impl SharedConnection {
    pub(super) fn new(
        dial: RedisEndpoint,
        shown: &str,
        patience: Patience,
        runtime: Handle,
    ) -> Self {
        Self {
            shared: Arc::new(RedisConnection {
                dial,
                shown: shown.into(),
                patience,
                runtime,
                state: Mutex::default(),
                known: OnceLock::new(),
            }),
        }
    }

    /// Address without the password.
    pub(super) fn shown(&self) -> &str {
        &self.shared.shown
    }

    /// Opens a separate connection; the server is not checked.
    pub(super) async fn dial(&self) -> Result<MultiplexedConnection> {
        self.shared.dial().await
    }

    /// Client for the current primary.
    pub(super) async fn client(&self) -> RedisResult<Client> {
        self.shared.client().await
    }

    /// Returns the shared connection, for several commands in a row.
    pub(super) async fn current(&self) -> Result<MultiplexedConnection> {
        Ok(self.connection().await?.1)
    }

    /// Sets the expected state, which every server must have on reconnect.
    pub(super) fn set_expected(&self, known: Arc<OpenedServer>) {
        let _ = self.shared.known.set(known);
    }

    pub(super) async fn send_command(&self, command: &Cmd) -> Result<Value, RedisCallError> {
        let (generation, mut connection) = self.connection().await.map_err(RedisCallError::Told)?;
        let answer = connection.send_packed_command(command).await;
        self.checked(generation, answer.and_then(Value::extract_error))
    }

    /// Sends a call whose answer is a list. The inner results are the items of the list.
    pub(super) async fn send_call(
        &self,
        call: &Call,
    ) -> Result<Vec<Result<Value, RedisCallError>>, RedisCallError> {
        let (generation, mut connection) = self.connection().await.map_err(RedisCallError::Told)?;
        // A transaction answers each command with a status, and `EXEC` with the list of results.
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

    /// Sends all commands in one pipeline. The inner results are the server's answers.
    pub(super) async fn send_commands(
        &self,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, RedisCallError>>, RedisCallError> {
        let (generation, mut connection) = self.connection().await.map_err(RedisCallError::Told)?;
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

    fn checked<T>(&self, generation: u64, answer: RedisResult<T>) -> Result<T, RedisCallError> {
        answer.map_err(|error| {
            if is_over(&error) {
                self.shared.give_up(generation);
            }
            RedisCallError::Redis(error)
        })
    }

    async fn connection(&self) -> Dialing {
        let mut dialed = match self.shared.find() {
            CurrentConnection::Connection(generation, connection) => {
                return Ok((generation, connection));
            }
            CurrentConnection::Refused(refusal) => return Err(refusal.error()),
            CurrentConnection::Dialing(dialed) => dialed,
        };
        loop {
            if let Some(dialed) = &*dialed.borrow_and_update() {
                return dialed.clone().map_err(|refusal| refusal.error());
            }
            if dialed.changed().await.is_err() {
                return Err(errors::runtime_stopped(&self.shared.shown).unapplied());
            }
        }
    }
}

type Dialing = Result<(u64, MultiplexedConnection)>;

/// State of the connection when one is requested.
enum CurrentConnection {
    Connection(u64, MultiplexedConnection),
    Refused(Arc<SharedConnectError>),
    Dialing(watch::Receiver<Option<Dialed>>),
}

impl RedisConnection {
    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(self: &Arc<Self>) -> CurrentConnection {
        let mut state = self.state();
        if let Some(connection) = &state.current {
            return CurrentConnection::Connection(state.generation, connection.clone());
        }
        if let Some(dialed) = &state.dialing {
            return CurrentConnection::Dialing(dialed.clone());
        }
        if let Some((until, refusal)) = &state.refused
            && tokio::time::Instant::now() < *until
        {
            return CurrentConnection::Refused(refusal.clone());
        }
        let (sender, receiver) = watch::channel(None);
        state.dialing = Some(receiver.clone());
        let shared = self.clone();
        // In a separate task: the caller may be cancelled, and other callers wait for the same connection.
        self.runtime.spawn(async move {
            let dialed = shared.connect_and_check().await;
            let dialed = shared.finish_dialing(dialed);
            sender.send_replace(Some(dialed));
        });
        CurrentConnection::Dialing(receiver)
    }

    fn finish_dialing(&self, dialed: Result<MultiplexedConnection>) -> Dialed {
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
                let refusal = Arc::new(SharedConnectError(error.kind(), error.to_string()));
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

    /// Connects, and checks the server.
    async fn connect_and_check(&self) -> Result<MultiplexedConnection> {
        let connection = self.dial().await?;
        if let Some(known) = self.known.get() {
            reception::recheck_server(&connection, known, &self.shown).await?;
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
        dialed.map_err(|error| errors::convert_error(error, &self.shown))
    }

    async fn client(&self) -> RedisResult<Client> {
        match &self.dial {
            RedisEndpoint::One(client) => Ok(client.clone()),
            RedisEndpoint::Sentinel(sentinels) => sentinels.lock().await.async_get_client().await,
        }
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Whether the connection broke, or its server is no longer the primary.
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

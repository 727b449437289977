//! The shared Redis connection for all commands except blocking reads; reconnects on demand.

use std::{sync::PoisonError, time::Duration};

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, RedisResult, ScriptInvocation,
    aio::MultiplexedConnection,
};
use refrain::Result;
use tokio::sync::Mutex;

use super::{address::Address, errors};

const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Timeout of a non-blocking command.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

pub(super) struct StreamConnection {
    client: Client,
    /// The address without its password.
    pub(super) shown: String,
    /// Held while connecting, so that concurrent callers open one connection.
    connecting: Mutex<()>,
    current: std::sync::Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// Counts connections, so that an error closes only the connection that it occurred on.
    generation: u64,
    connection: Option<MultiplexedConnection>,
}

impl StreamConnection {
    pub(super) fn new(address: &Address) -> Result<Self> {
        let client = Client::open(address.server.clone());
        Ok(Self {
            client: client.map_err(|error| errors::convert_error(error, &address.shown))?,
            shown: address.shown.clone(),
            connecting: Mutex::new(()),
            current: std::sync::Mutex::default(),
        })
    }

    /// Opens a separate connection for blocking reads; `None` sets no response timeout.
    pub(super) async fn dial(
        &self,
        answer: Option<Duration>,
    ) -> RedisResult<MultiplexedConnection> {
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(answer);
        self.client
            .get_multiplexed_async_connection_with_config(&settings)
            .await
    }

    /// Sends a command once: if the connection breaks, the command may have been executed.
    pub(super) async fn send_command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let (generation, mut connection) = self
            .connection()
            .await
            .map_err(|it| self.convert_error(it))?;
        let answer = command.query_async(&mut connection).await;
        answer.map_err(|error| self.handle_error(generation, error))
    }

    /// As [`send_command`](Self::send_command), but retries once on a new connection; for idempotent commands only.
    pub(super) async fn send_with_retry<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        match self.try_send(command).await {
            Err(error) if errors::is_broken(&error) => self.send_command(command).await,
            answer => answer.map_err(|error| self.convert_error(error)),
        }
    }

    async fn try_send<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let (generation, mut connection) = self.connection().await?;
        let answer = command.query_async(&mut connection).await;
        answer.inspect_err(|error| self.drop_if_broken(generation, error))
    }

    /// Runs an idempotent script, with one retry on a new connection.
    pub(super) async fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> Result<T> {
        match self.try_run(script).await {
            Err(error) if errors::is_broken(&error) => self.try_run(script).await,
            answer => answer,
        }
        .map_err(|error| self.convert_error(error))
    }

    /// Runs a script once.
    pub(super) async fn try_run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> RedisResult<T> {
        let (generation, mut connection) = self.connection().await?;
        let answer = script.invoke_async(&mut connection).await;
        answer.inspect_err(|error| self.drop_if_broken(generation, error))
    }

    pub(super) fn convert_error(&self, error: RedisError) -> refrain::Error {
        errors::convert_error(error, &self.shown)
    }

    fn handle_error(&self, generation: u64, error: RedisError) -> refrain::Error {
        self.drop_if_broken(generation, &error);
        self.convert_error(error)
    }

    fn drop_if_broken(&self, generation: u64, error: &RedisError) {
        let mut current = self.current();
        if errors::is_broken(error) && current.generation == generation {
            current.connection = None;
        }
    }

    async fn connection(&self) -> RedisResult<(u64, MultiplexedConnection)> {
        if let Some(open) = self.open_connection() {
            return Ok(open);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(open) = self.open_connection() {
            return Ok(open);
        }
        let connection = self.dial(Some(ANSWER_MAX)).await?;
        let mut current = self.current();
        current.generation += 1;
        current.connection = Some(connection.clone());
        Ok((current.generation, connection))
    }

    fn open_connection(&self) -> Option<(u64, MultiplexedConnection)> {
        let current = self.current();
        let connection = current.connection.clone()?;
        Some((current.generation, connection))
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Fetching: what is due again, and then what is new.

use std::{sync::Arc, time::Duration};

use ::redis::{RedisError, RedisResult, Script, aio::MultiplexedConnection, cmd};
use refrain::{Backoff, Result, consume::Delivery};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Seat,
    entry::Fields,
    line::ANSWER_MAX,
    meet::join_again,
    millis,
    trouble::{is_broken, is_no_group},
};

/// How often it is looked for what is due again: a part of `ack_wait`, within these.
const LOOK_EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(250);
const TRIM_EVERY: Duration = Duration::from_secs(5);
/// Pauses between two tries while the server is away.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// What a walk through the list of what is handed out begins and ends with.
const BEGINNING: &str = "0-0";

/// Where the reading stands.
pub(super) struct Reader {
    /// Nobody else's: whoever waits on it for what is new would keep others waiting.
    connection: Option<MultiplexedConnection>,
    /// How far the walk for what is due has come.
    cursor: String,
    /// When the next one is due.
    look_at: Instant,
    trim_at: Instant,
    overdue: Script,
    trim: Script,
}

impl Reader {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            connection: None,
            cursor: BEGINNING.into(),
            look_at: now,
            trim_at: now + TRIM_EVERY,
            overdue: Script::new(include_str!("../../lua/streams-overdue.lua")),
            trim: Script::new(include_str!("../../lua/streams-trim.lua")),
        }
    }

    pub(super) fn hang_up(&mut self) {
        self.connection = None;
    }
}

/// The next deliveries; waits for the first, and for the server where it is away.
pub(super) async fn fetch(
    seat: Arc<Seat>,
    at_most: usize,
    wait: Duration,
) -> Result<Vec<Delivery>> {
    let deadline = Instant::now() + wait;
    let mut reader = seat.reader.lock().await;
    let mut delays = BACKOFF.delays();
    loop {
        let error = match reader.fetch_once(&seat, at_most, deadline).await {
            Ok(found) if !found.is_empty() || Instant::now() >= deadline => return Ok(found),
            Ok(_) => {
                delays.reset();
                continue;
            }
            Err(error) => error,
        };
        if is_broken(&error) {
            reader.hang_up();
        }
        let trouble = match is_no_group(&error) {
            true => join_again(&seat).await.err(),
            false => Some(seat.line.told(error)),
        };
        let Some(error) = trouble else { continue };
        if Instant::now() + delays.peek() >= deadline {
            return Err(error);
        }
        tracing::debug!(%error, stream = seat.stream, "nothing can be fetched; it is tried again");
        sleep(delays.after_failure()).await;
    }
}

impl Reader {
    async fn fetch_once(
        &mut self,
        seat: &Arc<Seat>,
        at_most: usize,
        deadline: Instant,
    ) -> RedisResult<Vec<Delivery>> {
        let now = Instant::now();
        if now >= self.look_at {
            let found = self.overdue(seat, at_most).await?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        if seat.settings.trims && now >= self.trim_at {
            self.trim_at = now + TRIM_EVERY;
            let mut trim = self.trim.prepare_invoke();
            seat.line.try_run::<i64>(trim.key(&seat.stream)).await?;
        }
        let until = self.look_at.min(deadline);
        let block = until.saturating_duration_since(Instant::now());
        self.fresh(seat, at_most, block).await
    }

    /// What was not heard of for too long, and what was given back and is due.
    async fn overdue(&mut self, seat: &Arc<Seat>, at_most: usize) -> RedisResult<Vec<Delivery>> {
        let mut script = self.overdue.prepare_invoke();
        script.key(&seat.stream).key(&seat.later);
        script.arg(&seat.group).arg(&seat.consumer);
        script.arg(millis(seat.ack_wait)).arg(at_most.max(1));
        script.arg(&self.cursor);
        let answer = seat.line.try_run::<(String, Vec<Taken>, u64)>(&script);
        let (cursor, taken, gone) = answer.await?;
        if gone > 0 {
            tracing::warn!(
                stream = seat.stream,
                gone,
                "messages were deleted or trimmed before they were handled"
            );
        }
        if cursor == BEGINNING {
            let every = (seat.ack_wait / 8).clamp(*LOOK_EVERY.start(), *LOOK_EVERY.end());
            self.look_at = Instant::now() + every;
        }
        self.cursor = cursor;
        let deliveries = taken
            .into_iter()
            .map(|(id, fields, attempt)| seat.delivery(id, fields, attempt));
        Ok(deliveries.collect())
    }

    /// What nobody in the group has been handed.
    async fn fresh(
        &mut self,
        seat: &Arc<Seat>,
        at_most: usize,
        block: Duration,
    ) -> RedisResult<Vec<Delivery>> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&seat.group).arg(&seat.consumer);
        read.arg("COUNT").arg(at_most.max(1));
        // None at all would wait without end.
        if millis(block) > 0 {
            read.arg("BLOCK").arg(millis(block));
        }
        read.arg("STREAMS").arg(&seat.stream).arg(">");
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => seat.line.dial(None).await?,
        };
        // Put back only when the answer is there: what is left in a connection would be the next one's.
        let answer = timeout(block + ANSWER_MAX, read.query_async(&mut connection));
        let silent = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let answer: RedisResult<Option<Vec<Read>>> = answer.await.map_err(silent)?;
        if !answer.as_ref().is_err_and(is_broken) {
            self.connection = Some(connection);
        }
        let streams = answer?.unwrap_or_default();
        let entries = streams.into_iter().flat_map(|(_, entries)| entries);
        let deliveries = entries.map(|(id, fields)| seat.delivery(id, fields, 1));
        Ok(deliveries.collect())
    }
}

/// An entry as the script answers it: its id, fields and attempt.
type Taken = (String, Fields, u32);
/// A stream and its entries.
type Read = (String, Vec<(String, Fields)>);

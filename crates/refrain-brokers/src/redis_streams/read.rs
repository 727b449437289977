//! Fetching: first overdue entries, then new ones.

use std::{sync::Arc, time::Duration};

use ::redis::{RedisError, RedisResult, Script, aio::MultiplexedConnection, cmd};
use refrain::{Backoff, Result, consume::Delivery};
use tokio::time::{Instant, sleep, timeout};

use super::{
    StreamMember,
    connection::ANSWER_MAX,
    entry::Fields,
    errors::{is_broken, is_no_group},
    meet::join_again,
    millis,
};

/// Bounds of the interval between checks for overdue entries, which is `ack_wait` / 8.
const LOOK_EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(250);
const TRIM_EVERY: Duration = Duration::from_secs(5);
/// Backoff while the server is unavailable.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// Start and end cursor of a scan of the pending list.
const BEGINNING: &str = "0-0";

/// State of the reader between fetches.
pub(super) struct Reader {
    /// A separate connection, because a blocking read would block other commands.
    connection: Option<MultiplexedConnection>,
    /// Cursor of the scan for overdue entries.
    cursor: String,
    /// Time of the next scan for overdue entries.
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

/// Fetches the next deliveries; waits for the first one, and retries while the server is unavailable.
pub(super) async fn fetch(
    seat: Arc<StreamMember>,
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
            false => Some(seat.line.convert_error(error)),
        };
        let Some(error) = trouble else { continue };
        if Instant::now() + delays.peek() >= deadline {
            return Err(error);
        }
        tracing::debug!(%error, stream = seat.stream, "cannot fetch messages; retrying");
        sleep(delays.after_failure()).await;
    }
}

impl Reader {
    async fn fetch_once(
        &mut self,
        seat: &Arc<StreamMember>,
        at_most: usize,
        deadline: Instant,
    ) -> RedisResult<Vec<Delivery>> {
        let now = Instant::now();
        if now >= self.look_at {
            let found = self.claim_overdue(seat, at_most).await?;
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
        self.read_new(seat, at_most, block).await
    }

    /// Claims entries that are pending for longer than `ack_wait`, and nacked entries that are due.
    async fn claim_overdue(
        &mut self,
        seat: &Arc<StreamMember>,
        at_most: usize,
    ) -> RedisResult<Vec<Delivery>> {
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
                "messages were deleted or trimmed from the stream before they were handled"
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

    /// Reads entries that were not yet delivered to the group.
    async fn read_new(
        &mut self,
        seat: &Arc<StreamMember>,
        at_most: usize,
        block: Duration,
    ) -> RedisResult<Vec<Delivery>> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&seat.group).arg(&seat.consumer);
        read.arg("COUNT").arg(at_most.max(1));
        // `BLOCK 0` would wait without a timeout.
        if millis(block) > 0 {
            read.arg("BLOCK").arg(millis(block));
        }
        read.arg("STREAMS").arg(&seat.stream).arg(">");
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => seat.line.dial(None).await?,
        };
        // The connection is kept only after a complete answer: a late answer would be taken for the next command's.
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

/// An entry in the script's reply: id, fields and attempt number.
type Taken = (String, Fields, u32);
/// A stream's name and its entries.
type Read = (String, Vec<(String, Fields)>);

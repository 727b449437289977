//! Reads, lists, counts and sweeps, on a separate connection.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use refrain::{
    Error, ErrorKind, RecordId, Result,
    clock::Timestamp,
    record::{Claimant, Command, Fence, Hold, Reason, Record, ScopeDigest, State, Trace, step},
    store::{Census, LIST_MAX, Page, Query, Reading, ScopeKeyPage, StateName},
};
use tokio::{
    runtime::Handle,
    sync::Mutex,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, Row, Statement, types::ToSql};

use super::{
    Time,
    connect::{ANSWER_TIMEOUT, LaneConnection, PostgresContext, Prepared, Session},
    errors::StatementError,
    pace::Now,
    quick::timed_out,
    rows::{self, Id},
    sql::Sql,
};

/// Approximate limit for the outcomes of one page, in bytes.
pub(super) const PAGE_BYTES_MAX: i64 = 64 << 20;
/// Records per sweep statement: few enough that no claim waits long for the row locks.
const SWEEP_BATCH: i32 = 1_000;
/// Maximum pause between two sweep statements. The pause is as long as the previous statement took.
const SWEEP_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Above this number of records, completed records and tombstones are counted in a sample.
const COUNTED_MAX: i64 = 1_000_000;
/// Data keys per page.
const SCOPE_KEYS_PAGE: i64 = 1_000;
const SAMPLE: f64 = 100_000.0;

/// Serves the operator commands and the engine's sweeps.
#[derive(Debug)]
pub(super) struct OperatorConnection {
    pub(super) place: Arc<PostgresContext>,
    link: Arc<Mutex<LaneConnection<ReadStatements>>>,
    /// Runtime of the store's thread, on which the connections live.
    runtime: Handle,
    pub(super) time: Time,
}

#[derive(Debug)]
pub(super) struct ReadStatements {
    peek: Statement,
}

impl Prepared for ReadStatements {
    async fn prepare(client: &Client, sql: &Sql) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            peek: client.prepare(&sql.peek).await?,
        })
    }
}

impl OperatorConnection {
    pub(super) fn new(place: Arc<PostgresContext>, runtime: Handle, time: Time) -> Self {
        let link = Arc::new(Mutex::new(LaneConnection::new(place.clone())));
        Self {
            place,
            link,
            runtime,
            time,
        }
    }

    pub(super) async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        let now = self.time.now();
        let ids = vec![Id(id.0)];
        let rows = self.send_statement(None, &[&now, &ids]).await?;
        match rows.first() {
            None => Ok(None),
            Some(row) => self.reading(row, Some(id)),
        }
    }

    pub(super) async fn list(&self, query: &Query) -> Result<Page> {
        if query.state.is_some() || query.is_filtered() {
            return self.search(query).await;
        }
        let limit = query.limit.clamp(1, LIST_MAX) as usize;
        let mut readings = Vec::new();
        let mut after = query.after;
        while let Some(from) = after.map_or(Some([0; 16]), next_id) {
            let (now, from) = (self.time.now(), Id(from));
            let rows = i64::try_from(limit + 1).unwrap_or(i64::MAX);
            let rows = self
                .query(&self.place.sql.list, &[&now, &from, &rows, &PAGE_BYTES_MAX])
                .await?;
            if rows.is_empty() {
                break;
            }
            for row in &rows {
                if readings.len() == limit {
                    let next = after;
                    return Ok(Page { readings, next });
                }
                after = Some(rows::id(row)?);
                readings.extend(self.listed(row, query)?);
            }
        }
        Ok(Page {
            readings,
            next: None,
        })
    }

    /// Parses a row and applies [`Command::Age`]; `None` if the record has ended.
    fn reading(&self, row: &Row, asked: Option<RecordId>) -> Result<Option<Reading>> {
        let id = rows::id(row)?;
        if asked.is_some_and(|asked| asked != id) {
            let message = format!("the reply is for another record than {id}");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let now = self.time.believe(row.try_get(21).map_err(convert_error)?);
        let record = now.step(Some(rows::read(row)?.record), Command::Age).record;
        let now = now.believed;
        Ok(record.map(|record| Reading { id, record, now }))
    }

    /// As [`reading`](Self::reading), but a damaged record is skipped with a warning, so that it does not hide the
    /// others. Reading the damaged record itself returns its error.
    pub(super) fn listed(&self, row: &Row, query: &Query) -> Result<Option<Reading>> {
        let reading = match self.reading(row, None) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                refrain::log_rarely!(warn, %error, "cannot read a record; it is omitted from the list");
                None
            }
            reading => reading?,
        };
        Ok(reading.filter(|reading| query.fits(&reading.record, reading.now)))
    }

    pub(super) async fn census(&self) -> Result<Census> {
        let now = self.time.now();
        let sql = &self.place.sql;
        let mut census = Census::default();
        for row in self.query(&sql.count_open, &[&now]).await? {
            count(&mut census, &row)?;
        }
        let estimate: i64 = self
            .query_one(&sql.estimate, &[])
            .await?
            .try_get(0)
            .map_err(convert_error)?;
        let (text, scale) = match estimate <= COUNTED_MAX {
            true => (&sql.count_ended, 1.0),
            false => (&sql.sample_ended, estimate as f64 / SAMPLE),
        };
        let percent = (100.0 / scale) as f32;
        let ended = match estimate <= COUNTED_MAX {
            true => self.query_one(text, &[]).await?,
            false => self.query_one(text, &[&percent]).await?,
        };
        let counted = |place| ended.try_get::<_, i64>(place).map_err(convert_error);
        census.completed = scaled(counted(0)?, scale);
        census.tombstones = scaled(counted(1)?, scale);
        Ok(census)
    }

    pub(super) async fn sweep(&self, at_most: u32) -> Result<u32> {
        let sql = &self.place.sql;
        let mut swept = 0;
        for text in [&sql.sweep_completed, &sql.sweep_tombstones] {
            while swept < at_most {
                let room = i32::try_from(at_most - swept).unwrap_or(i32::MAX);
                let batch = room.min(SWEEP_BATCH);
                let asked = tokio::time::Instant::now();
                let now = self.believed_now().await?;
                let row = self.query_one(text, &[&now, &batch]).await?;
                let gone: i64 = row.try_get(0).map_err(convert_error)?;
                swept += u32::try_from(gone).unwrap_or(0);
                if gone < i64::from(batch) {
                    break;
                }
                sleep(asked.elapsed().min(SWEEP_PAUSE_MAX)).await;
            }
        }
        Ok(swept)
    }

    /// Time for a sweep: overrides the database's clock if that is ahead of the believed time.
    async fn believed_now(&self) -> Result<Option<i64>> {
        let (now, fences) = (self.time.now(), 0_i32);
        let row = self
            .query_one(&self.place.sql.clock, &[&now, &fences])
            .await?;
        let Now { shown, believed } = self.time.believe(row.try_get(0).map_err(convert_error)?);
        Ok(match believed < shown {
            true => Some(believed.0.cast_signed()),
            false => now,
        })
    }

    pub(super) async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        let text = &self.place.sql.scope_key;
        let rows = self.query(text, &[&number(scope)]).await?;
        let key = rows.first().map(|row| row.try_get::<_, Vec<u8>>(0));
        let key = key.transpose().map_err(convert_error)?;
        Ok(key.map(Bytes::from))
    }

    /// Returns the key as it is after the statement: that one, or the one of a faster process.
    pub(super) async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        let sql = &self.place.sql;
        let number = number(scope);
        match &expected {
            None => {
                self.query(&sql.put_scope_key, &[&number, &&key[..]])
                    .await?
            }
            Some(old) => {
                self.query(&sql.replace_scope_key, &[&number, &&key[..], &&old[..]])
                    .await?
            }
        };
        self.scope_key(scope).await
    }

    pub(super) async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        // Scopes are in the order of signed numbers here; the cursor is the last scope before the page.
        let after = cursor.map_or(i64::MIN, u64::cast_signed);
        let text = &self.place.sql.scope_keys;
        let mut keys = Vec::new();
        if cursor.is_none() {
            // No scope is smaller than the smallest number.
            let scope = ScopeDigest(i64::MIN.to_be_bytes());
            keys.extend(self.scope_key(scope).await?.map(|key| (scope, key)));
        }
        let rows = self.query(text, &[&after, &SCOPE_KEYS_PAGE]).await?;
        for row in &rows {
            let scope: i64 = row.try_get(0).map_err(convert_error)?;
            let key: Vec<u8> = row.try_get(1).map_err(convert_error)?;
            keys.push((ScopeDigest(scope.to_be_bytes()), Bytes::from(key)));
        }
        let is_last = (rows.len() as i64) < SCOPE_KEYS_PAGE;
        let last = keys.last().filter(|_| !is_last);
        let next = last.map(|(scope, _)| number(*scope).cast_unsigned());
        Ok(ScopeKeyPage { keys, next })
    }

    pub(super) async fn query(
        &self,
        text: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.send_statement(Some(text), parameters).await
    }

    async fn query_one(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row> {
        let mut rows = self.query(text, parameters).await?;
        rows.pop().ok_or_else(|| {
            let message = "PostgreSQL returned no row where one was expected";
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    /// Runs a statement; `None` is the prepared read of records. Retries once if the connection broke, because every
    /// statement here is idempotent.
    async fn send_statement(
        &self,
        text: Option<&str>,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let mut lost = None;
        for _ in 0..2 {
            let session = self.session().await?;
            let client = &session.wire.client;
            let asked = async {
                match text {
                    Some(text) => client.query(text, parameters).await,
                    None => client.query(&session.statements.peek, parameters).await,
                }
            };
            let answered = timeout(ANSWER_TIMEOUT, asked).await;
            let trouble = match answered {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => StatementError::from(error),
                Err(_) => StatementError::Lost(timed_out()),
            };
            match trouble {
                StatementError::Refused(error) => return Err(error),
                StatementError::Lost(error) => {
                    self.link.lock().await.drop_session();
                    lost = Some(error);
                }
            }
        }
        Err(lost.unwrap_or_else(timed_out))
    }

    /// Connects on the store's own runtime, because a caller's runtime may shut down.
    async fn session(&self) -> Result<Arc<Session<ReadStatements>>> {
        let link = self.link.clone();
        let connecting = self
            .runtime
            .spawn(async move { link.lock().await.session().await });
        connecting.await.unwrap_or_else(|_| Err(closed()))
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the PostgreSQL store is closed")
}

pub(super) fn convert_error(error: tokio_postgres::Error) -> Error {
    StatementError::from(error).into_error()
}

fn number(scope: ScopeDigest) -> i64 {
    i64::from_be_bytes(scope.0)
}

fn scaled(count: i64, scale: f64) -> u64 {
    (count as f64 * scale) as u64
}

/// Next identity in order.
pub(super) fn next_id(id: RecordId) -> Option<[u8; 16]> {
    let number = u128::from_be_bytes(id.0).checked_add(1)?;
    Some(number.to_be_bytes())
}

/// Counts a group of open records, after [`Command::Age`] is applied.
fn count(census: &mut Census, row: &Row) -> Result<()> {
    let get = |place| row.try_get::<_, Option<i16>>(place).map_err(convert_error);
    let flag = |place| row.try_get::<_, Option<bool>>(place).map_err(convert_error);
    let alike: i64 = row.try_get(4).map_err(convert_error)?;
    let alike = u64::try_from(alike).unwrap_or(0);
    let guarantee = get(1)?.and_then(rows::guarantee);
    let (Some(state), Some(guarantee)) = (get(0)?, guarantee) else {
        census.unreadable += alike;
        return Ok(());
    };
    let (may_run_again, is_lapsed) = (flag(2)?.unwrap_or(false), flag(3)?.unwrap_or(false));
    let hold = Hold {
        fence: Fence {
            epoch: 0,
            counter: 0,
            nonce: 0,
        },
        claimant: Claimant::default(),
        guarantee,
        attempts: 1,
        attempts_max: if may_run_again { 2 } else { 1 },
        settle_after: Duration::ZERO,
        settles: Timestamp(0),
    };
    let state: State = match state {
        rows::IN_FLIGHT => State::InFlight {
            hold,
            lease_ends: Timestamp(if is_lapsed { 0 } else { 2 }),
        },
        _ => State::Indeterminate {
            hold,
            reason: Reason::Lapsed,
        },
    };
    let record = Record {
        fingerprint: refrain::Fingerprint::default(),
        credential: None,
        state,
        trace: Trace::default(),
    };
    let aged = step(Some(record), Command::Age, Timestamp(1)).record;
    match aged.map(|record| record.state.name()) {
        Some(StateName::InFlight) => census.in_flight += alike,
        _ => census.indeterminate += alike,
    }
    Ok(())
}

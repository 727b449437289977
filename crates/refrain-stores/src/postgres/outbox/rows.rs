//! Conversion of outbox rows.

use std::time::Duration;

use bytes::Bytes;
use refrain::consume::{Entry, Fate, Message, Refused, Return};
use tokio_postgres::{Row, types::ToSql};

type Passed = Option<(String, String)>;

/// Returns the number of candidate rows, the group where the take stopped, and the taken entries.
pub(super) fn taken(rows: Vec<Row>) -> Result<(i64, Passed, Vec<Entry>), tokio_postgres::Error> {
    let Some(first) = rows.first() else {
        return Ok((0, None, Vec::new()));
    };
    let destination: Option<String> = first.try_get(1)?;
    let passed = destination.zip(first.try_get(2)?);
    let picked = first.try_get(0)?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        entries.extend(entry(row)?);
    }
    entries.sort_unstable_by_key(|entry| entry.id);
    Ok((picked, passed, entries))
}

/// `None` for the row that carries only the counts.
fn entry(row: &Row) -> Result<Option<Entry>, tokio_postgres::Error> {
    let Some(id) = row.try_get(3)? else {
        return Ok(None);
    };
    let destination: String = row.try_get(4)?;
    let names: Vec<String> = row.try_get(8)?;
    let values: Vec<Vec<u8>> = row.try_get(9)?;
    let payload: Vec<u8> = row.try_get(10)?;
    let mut message = Message::new(payload);
    message.subject.clone_from(&destination);
    message.id = row.try_get(5)?;
    message.group = row.try_get(6)?;
    message.content_type = row.try_get(7)?;
    message.headers = names
        .into_iter()
        .zip(values.into_iter().map(Bytes::from))
        .collect();
    let count = |place| row.try_get::<_, i32>(place).map(i32::unsigned_abs);
    Ok(Some(Entry {
        id,
        destination,
        message,
        attempt: count(11)?,
        refusals: count(12)?,
    }))
}

pub(super) fn refused(row: &Row) -> Result<Refused, tokio_postgres::Error> {
    Ok(Refused {
        id: row.try_get(0)?,
        message_id: row.try_get(1)?,
        destination: row.try_get(2)?,
        group: row.try_get(3)?,
        is_held: row.try_get(4)?,
        error: row.try_get(5)?,
        age: seconds(row.try_get(6)?),
    })
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Returned entries, one array for each column.
#[derive(Default)]
pub(super) struct Columns {
    ids: Vec<i64>,
    states: Vec<i16>,
    refusals: Vec<i32>,
    delays: Vec<f64>,
    errors: Vec<Option<String>>,
}

/// Maximum length of a stored error, in characters.
const ERROR_CHARS_MAX: usize = 1_000;

impl Columns {
    pub(super) fn new(returns: &[Return]) -> Self {
        let mut columns = Self::default();
        for Return { id, fate } in returns {
            let (state, refusals, delay, error) = match fate {
                Fate::Free => (0, 0, Duration::ZERO, None),
                Fate::Rests { delay, error } => (0, 0, *delay, Some(error)),
                Fate::Refused { delay, error } => (0, 1, *delay, Some(error)),
                Fate::Held { error } => (1, 1, Duration::ZERO, Some(error)),
                Fate::Parked { error } => (2, 1, Duration::ZERO, Some(error)),
            };
            // PostgreSQL rejects NUL in text.
            let shown = |error: &String| {
                error
                    .replace('\0', " ")
                    .chars()
                    .take(ERROR_CHARS_MAX)
                    .collect()
            };
            columns.ids.push(*id);
            columns.states.push(state);
            columns.refusals.push(refusals);
            columns.delays.push(delay.as_secs_f64());
            columns.errors.push(error.map(shown));
        }
        columns
    }

    pub(super) fn parameters<'a>(&'a self, number: &'a i64) -> [&'a (dyn ToSql + Sync); 6] {
        [
            &self.ids,
            &self.states,
            &self.refusals,
            &self.delays,
            &self.errors,
            number,
        ]
    }
}

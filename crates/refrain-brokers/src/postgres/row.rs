//! Converts messages to and from rows, and defines the SQL statements.

use refrain::consume::{Message, Position};
use serde_json::Value;
use tokio_postgres::{Row, types::ToSql};

use crate::headers;

pub(super) const PUBLISH: &str = "INSERT INTO refrain_queue \
     (queue, message_id, group_key, content_type, headers, payload) VALUES ($1, $2, $3, $4, $5, $6) \
     ON CONFLICT (queue, message_id) WHERE message_id IS NOT NULL DO NOTHING";

/// Deletes a held row; returns whether the row is gone, also by an earlier attempt whose answer was lost.
pub(super) const ACK: &str = "WITH gone AS (DELETE FROM refrain_queue WHERE id = $1 AND holder = $2 RETURNING 1) \
     SELECT EXISTS (SELECT FROM gone) OR NOT EXISTS (SELECT FROM refrain_queue WHERE id = $1)";

/// Extends the hold by a time from now, or nacks the row with that delay; returns whether the row was held.
pub(super) const HOLD: &str = "WITH held AS (UPDATE refrain_queue \
         SET due_at = statement_timestamp() + $3 * interval '1 second', holder = CASE WHEN $4 THEN NULL ELSE holder END \
         WHERE id = $1 AND holder = $2 RETURNING 1) \
     SELECT EXISTS (SELECT FROM held)";

/// Takes due messages without a group, the longest due first.
pub(super) fn take_free() -> String {
    format!(
        "WITH due AS MATERIALIZED (SELECT id FROM refrain_queue \
             WHERE queue = $1 AND group_key IS NULL AND due_at <= statement_timestamp() \
             ORDER BY due_at, id LIMIT $2 FOR UPDATE SKIP LOCKED) {TAKE}"
    )
}

/// Takes the first message of each group if it is due, in order of groups, from the given group on.
///
/// Walks from group to group on the index, so that queued messages after a group's first cost nothing.
pub(super) fn take_grouped() -> String {
    let first = "SELECT id, group_key, due_at FROM refrain_queue WHERE queue = $1 AND group_key";
    format!(
        "WITH RECURSIVE heads AS ( \
             ({first} >= $5 ORDER BY group_key, id LIMIT 1) \
             UNION ALL \
             SELECT next.* FROM heads CROSS JOIN LATERAL \
                 ({first} > heads.group_key ORDER BY group_key, id LIMIT 1) next), \
         due AS MATERIALIZED (SELECT free.id FROM heads CROSS JOIN LATERAL \
                 (SELECT q.id FROM refrain_queue q WHERE q.id = heads.id AND q.due_at <= statement_timestamp() \
                  FOR UPDATE SKIP LOCKED) free \
             WHERE heads.due_at <= statement_timestamp() LIMIT $2) {TAKE}"
    )
}

/// Counts up to `$2` messages: those that wait, those that are held, and the age of the oldest in seconds.
///
/// One part for each of the partial indexes.
pub(super) const COUNT: &str = "WITH counted AS ( \
         (SELECT holder, due_at, published_at FROM refrain_queue WHERE queue = $1 AND group_key IS NULL LIMIT $2) \
         UNION ALL \
         (SELECT holder, due_at, published_at FROM refrain_queue WHERE queue = $1 AND group_key IS NOT NULL LIMIT $2) \
         LIMIT $2), \
     seen AS (SELECT holder IS NOT NULL AND due_at > statement_timestamp() AS is_held, published_at FROM counted) \
     SELECT count(*) FILTER (WHERE NOT is_held), count(*) FILTER (WHERE is_held), \
         extract(epoch FROM statement_timestamp() - min(published_at))::double precision FROM seen";

const TAKE: &str = "UPDATE refrain_queue q SET attempts = q.attempts + 1, holder = $3, \
         due_at = statement_timestamp() + $4 * interval '1 second' \
     FROM due WHERE q.id = due.id \
     RETURNING q.id, q.attempts, q.message_id, q.group_key, q.content_type, q.headers, q.payload";

/// A message's column values, in column order.
pub(super) struct Columns<'a> {
    queue: &'a str,
    message: &'a Message,
    headers: Value,
    payload: &'a [u8],
}

impl<'a> Columns<'a> {
    pub(super) fn of(queue: &'a str, message: &'a Message) -> Self {
        Self {
            queue,
            message,
            headers: headers::write(&message.headers),
            payload: &message.payload,
        }
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        let Message {
            id,
            group,
            content_type,
            ..
        } = self.message;
        let Self {
            queue,
            headers,
            payload,
            ..
        } = self;
        [queue, id, group, content_type, headers, payload]
    }
}

/// A row that was taken.
pub(super) struct Taken {
    pub(super) id: i64,
    pub(super) attempt: u32,
    pub(super) message: Message,
}

impl Taken {
    pub(super) fn read(queue: &str, row: &Row) -> Result<Self, tokio_postgres::Error> {
        let id: i64 = row.try_get(0)?;
        let attempts: i32 = row.try_get(1)?;
        let payload: Vec<u8> = row.try_get(6)?;
        let mut message = Message::new(payload);
        message.id = row.try_get(2)?;
        message.group = row.try_get(3)?;
        message.subject = queue.into();
        message.content_type = row.try_get(4)?;
        message.headers = headers::read(row.try_get(5)?);
        message.position = Some(Position {
            log: queue.into(),
            partition: 0,
            offset: id.to_string(),
        });
        Ok(Self {
            id,
            attempt: u32::try_from(attempts).unwrap_or(1),
            message,
        })
    }
}

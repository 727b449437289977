//! SQL statements of the outbox.

use tokio_postgres::{Client, Statement};

/// Payload bytes after which a take picks no further message.
const TAKE_BYTES_MAX: usize = 32 << 20;
/// Maximum number of groups that one take visits.
const GROUPS_PASSED_MAX: usize = 2_000;

/// Statements, prepared on one connection.
#[derive(Debug)]
pub(super) struct OutboxStatements {
    pub(super) take: Statement,
    pub(super) renew: Statement,
    pub(super) mark: Statement,
    pub(super) give_back: Statement,
    pub(super) backlog: Statement,
    pub(super) refused: Statement,
    pub(super) redrive: Statement,
}

impl OutboxStatements {
    pub(super) async fn prepare(
        client: &Client,
        table: &str,
    ) -> Result<Self, tokio_postgres::Error> {
        let counted = refrain::consume::Backlog::COUNTED_MAX;
        let prepare = async |sql: &str| {
            let sql = sql
                .replace("__table__", table)
                .replace("__bytes__", &TAKE_BYTES_MAX.to_string())
                .replace("__passed__", &GROUPS_PASSED_MAX.to_string())
                .replace("__counted__", &counted.to_string());
            client.prepare(&sql).await
        };
        Ok(Self {
            take: prepare(TAKE).await?,
            renew: prepare(RENEW).await?,
            mark: prepare(MARK).await?,
            give_back: prepare(GIVE_BACK).await?,
            backlog: prepare(BACKLOG).await?,
            refused: prepare(REFUSED).await?,
            redrive: prepare(REDRIVE).await?,
        })
    }
}

/// Takes messages. Walks from the first message of one group to the first of the next, starting where the last take
/// stopped, so that the rest of a blocked group is never read. Divides the batch between the free groups.
///
/// Several relays may take at once, and each skips rows that another one has locked. A message is therefore left if an
/// earlier message of its group is not locked by this take: it would overtake that message.
const TAKE: &str = r"
WITH RECURSIVE heads AS (
    (SELECT o.destination, o.group_key, o.state, o.not_before, 1 AS place
     FROM __table__ o
     WHERE o.group_key IS NOT NULL AND o.state < 2 AND (o.destination, o.group_key) > ($1::text, $2::text)
     ORDER BY o.destination, o.group_key, o.id LIMIT 1)
    UNION ALL
    SELECT n.destination, n.group_key, n.state, n.not_before, h.place + 1
    FROM heads h CROSS JOIN LATERAL (
        SELECT o.destination, o.group_key, o.state, o.not_before FROM __table__ o
        WHERE o.group_key IS NOT NULL AND o.state < 2 AND (o.destination, o.group_key) > (h.destination, h.group_key)
        ORDER BY o.destination, o.group_key, o.id LIMIT 1) n
    WHERE h.place < __passed__
), groups AS MATERIALIZED (
    SELECT destination, group_key, place FROM heads
    WHERE state = 0 AND not_before <= statement_timestamp() LIMIT $3::bigint
), passed AS (
    SELECT destination, group_key FROM (
        SELECT destination, group_key, place FROM groups WHERE (SELECT count(*) FROM groups) >= $3
        UNION ALL
        SELECT destination, group_key, place FROM heads
        WHERE (SELECT count(*) FROM groups) < $3 AND place = __passed__
    ) seen ORDER BY place DESC LIMIT 1
), waiting AS (
    SELECT o.id, o.bytes, o.turn FROM groups g CROSS JOIN LATERAL (
        SELECT id, octet_length(payload)::bigint AS bytes, row_number() OVER (ORDER BY id) AS turn FROM (
            SELECT o.id, o.payload FROM __table__ o
            WHERE o.destination = g.destination AND o.group_key = g.group_key
              AND o.group_key IS NOT NULL AND o.state < 2
            ORDER BY o.id LIMIT (SELECT greatest(1, $3 / greatest(1, count(*))) FROM groups)) o
    ) o
    UNION ALL
    SELECT id, octet_length(payload), row_number() OVER (ORDER BY id) FROM (
        SELECT o.id, o.payload FROM __table__ o
        WHERE o.group_key IS NULL AND o.state = 0 AND o.not_before <= statement_timestamp()
        ORDER BY o.id LIMIT $3) o
), picked AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, row_number() OVER so_far AS number, sum(bytes) OVER so_far - bytes AS bytes_before
        FROM waiting WINDOW so_far AS (ORDER BY turn, id)
    ) one_by_one WHERE number <= $3 AND bytes_before < __bytes__
), locked AS MATERIALIZED (
    SELECT o.id FROM __table__ o
    WHERE o.id IN (SELECT id FROM picked) AND o.state = 0 AND o.not_before <= statement_timestamp()
    FOR UPDATE OF o SKIP LOCKED
), taken AS (
    UPDATE __table__ o
    SET taken_by = $4, not_before = statement_timestamp() + $5::float8 * interval '1 second',
        attempts = o.attempts + 1
    FROM locked WHERE o.id = locked.id AND (o.group_key IS NULL OR NOT EXISTS (
        SELECT FROM __table__ e
        WHERE e.destination = o.destination AND e.group_key = o.group_key
          AND e.group_key IS NOT NULL AND e.state < 2
          AND e.id < o.id AND e.id NOT IN (SELECT id FROM locked)))
    RETURNING o.id, o.destination, o.message_id, o.group_key, o.content_type, o.header_names, o.header_values,
        o.payload, o.attempts, o.refusals
)
SELECT (SELECT count(*) FROM picked), passed.destination, passed.group_key, taken.*
FROM (SELECT) one LEFT JOIN passed ON true LEFT JOIN taken ON true";

const RENEW: &str = "
UPDATE __table__ SET not_before = statement_timestamp() + $2::float8 * interval '1 second'
WHERE id = ANY ($1::bigint[]) AND taken_by = $3 RETURNING id";

const MARK: &str = "DELETE FROM __table__ WHERE id = ANY ($1::bigint[])";

const GIVE_BACK: &str = "
UPDATE __table__ o
SET taken_by = NULL, state = r.state, refusals = o.refusals + r.refusals, error = coalesce(r.error, o.error),
    not_before = CASE WHEN r.delay > 0 THEN statement_timestamp() + r.delay * interval '1 second' ELSE '-infinity' END
FROM unnest($1::bigint[], $2::smallint[], $3::integer[], $4::float8[], $5::text[])
    AS r (id, state, refusals, delay, error)
WHERE o.id = r.id AND o.taken_by = $6";

const BACKLOG: &str = "
SELECT (SELECT count(*) FROM (SELECT FROM __table__ WHERE state = 0 LIMIT __counted__) counted),
    (SELECT count(*) FROM (SELECT FROM __table__ WHERE state > 0 LIMIT __counted__) counted),
    (SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 FROM __table__
     WHERE state = 0 ORDER BY id LIMIT 1)";

const REFUSED: &str = "
SELECT id, message_id, destination, group_key, state = 1, coalesce(error, ''),
    extract(epoch FROM clock_timestamp() - created_at)::float8
FROM __table__ WHERE state > 0 ORDER BY id LIMIT $1";

const REDRIVE: &str = "
UPDATE __table__ SET state = 0, refusals = 0, taken_by = NULL, not_before = '-infinity' WHERE state > 0";

//! SQL statements of the store, with the schema inserted.
//!
//! States and guarantees are literals, so that the planner can use partial indexes.
//! The first parameter of most statements is the time. It is null except in tests; null means the database's clock.

use super::address::Address;

/// Statements of one store.
#[derive(Debug)]
pub(super) struct Sql {
    /// Inserts new claims; skips existing records.
    pub(super) claim: String,
    /// Completes records that are in flight under the given fence; skips others.
    pub(super) complete: String,
    /// `claim` and `complete` in one statement.
    pub(super) claim_and_complete: String,
    /// Reads records without locking them.
    pub(super) peek: String,
    /// Reads records and locks them until the transaction ends.
    pub(super) hold: String,
    /// Returns the time and new fence counters; runs after the locks are taken.
    pub(super) clock: String,
    pub(super) insert: String,
    pub(super) update: String,
    pub(super) delete: String,
    /// Deletes one claim under its fence.
    pub(super) release: String,
    pub(super) notify: String,
    pub(super) listen: String,
    /// A page of all records.
    pub(super) list: String,
    /// Candidates of a search in a part of the records: of all, or of the open ones (in flight or indeterminate).
    pub(super) search: String,
    pub(super) search_open: String,
    /// The records that a search found.
    pub(super) list_found: String,
    pub(super) count_open: String,
    pub(super) count_ended: String,
    pub(super) estimate: String,
    pub(super) sample_ended: String,
    pub(super) sweep_completed: String,
    pub(super) sweep_tombstones: String,
    pub(super) scope_key: String,
    pub(super) put_scope_key: String,
    pub(super) replace_scope_key: String,
    pub(super) scope_keys: String,
    pub(super) secret: String,
    pub(super) epoch: String,
    pub(super) raise_epoch: String,
}

/// Columns that are read; `rows.rs` depends on their order.
const COLUMNS: &str = "r.id, r.fingerprint, r.credential, r.state, r.fence_epoch, r.fence_counter, r.fence_nonce, \
    r.claimant, r.guarantee, r.attempts, r.attempts_max, r.settle_after, r.settles, r.lease_ends, r.reason, \
    r.retention_ends, r.remember_ends, r.holder, r.waited, r.outcome, r.trace";
/// The same columns for writing.
const WRITTEN: &str = "id, fingerprint, credential, state, fence_epoch, fence_counter, fence_nonce, \
    claimant, guarantee, attempts, attempts_max, settle_after, settles, lease_ends, reason, \
    retention_ends, remember_ends, holder, waited, outcome, trace";
const ROWS: &str = "unnest($1::uuid[], $2::uuid[], $3::int8[], $4::int2[], $5::int4[], $6::int8[], $7::int4[], \
    $8::int8[], $9::int2[], $10::int4[], $11::int4[], $12::int8[], $13::int8[], $14::int8[], $15::int2[], \
    $16::int8[], $17::int8[], $18::int8[], $19::bool[], $20::bytea[], $21::bytea[])";
/// Current time, evaluated once per statement.
const NOW: &str = "coalesce($1::int8, floor(extract(epoch FROM clock_timestamp()) * 1000)::int8)";

impl Sql {
    pub(super) fn new(address: &Address) -> Self {
        let schema = address.quoted_schema();
        let channel = address.channel();
        let (claim, complete) = (claim(&schema), |first| complete(&schema, first));
        let ended = ended(&channel);
        let both = complete(15);
        Self {
            claim_and_complete: format!(
                "WITH granted AS ({claim}), ended AS ({both}) \
                 SELECT id, fence_counter, NULL::text FROM granted \
                 UNION ALL SELECT id, NULL, {ended} FROM ended"
            ),
            complete: format!(
                "WITH ended AS ({}) SELECT id, NULL::int8, {ended} FROM ended",
                complete(2)
            ),
            claim,
            peek: format!(
                "SELECT {COLUMNS}, c.now FROM (SELECT {NOW} AS now OFFSET 0) c, \
                 unnest($2::uuid[]) a(id) JOIN {schema}.records r ON r.id = a.id"
            ),
            hold: format!(
                "SELECT {COLUMNS} FROM {schema}.records r WHERE r.id = ANY($1::uuid[]) \
                 ORDER BY r.id FOR UPDATE"
            ),
            clock: format!(
                "SELECT {NOW}, ARRAY(SELECT nextval('{schema}.fences') FROM generate_series(1, $2::int4))"
            ),
            insert: format!(
                "INSERT INTO {schema}.records ({WRITTEN}) SELECT * FROM {ROWS} a \
                 ON CONFLICT (id) DO NOTHING RETURNING id"
            ),
            update: update(&schema),
            delete: format!("DELETE FROM {schema}.records WHERE id = ANY($1::uuid[])"),
            release: format!(
                "DELETE FROM {schema}.records WHERE id = $1::uuid AND state = 1 AND fence_epoch = $2::int4 \
                 AND fence_counter = $3::int8 AND fence_nonce = $4::int4"
            ),
            notify: format!("SELECT pg_notify('{channel}', a.id) FROM unnest($1::text[]) a(id)"),
            listen: format!("LISTEN {channel}"),
            list: list(&schema, "r.id >= $2::uuid"),
            search: search(&format!("{schema}.records")),
            search_open: search(&open(&schema)),
            list_found: list(&schema, "r.id = ANY($2::uuid[])"),
            count_open: count_open(&schema),
            count_ended: format!(
                "SELECT (SELECT count(*) FROM {schema}.records WHERE state = 2), \
                 (SELECT count(*) FROM {schema}.records WHERE state = 4)"
            ),
            estimate: format!(
                "SELECT reltuples::int8 FROM pg_catalog.pg_class WHERE oid = '{schema}.records'::regclass"
            ),
            sample_ended: format!(
                "SELECT count(*) FILTER (WHERE state = 2), count(*) FILTER (WHERE state = 4) \
                 FROM {schema}.records TABLESAMPLE SYSTEM ($1::float4)"
            ),
            sweep_completed: sweep_completed(&schema),
            sweep_tombstones: sweep_tombstones(&schema),
            scope_key: format!("SELECT key FROM {schema}.scope_keys WHERE scope = $1"),
            put_scope_key: format!(
                "INSERT INTO {schema}.scope_keys (scope, key) VALUES ($1, $2) ON CONFLICT (scope) DO NOTHING"
            ),
            replace_scope_key: format!(
                "UPDATE {schema}.scope_keys SET key = $2 WHERE scope = $1 AND key = $3"
            ),
            scope_keys: format!(
                "SELECT scope, key FROM {schema}.scope_keys WHERE scope > $1 ORDER BY scope LIMIT $2"
            ),
            secret: format!("SELECT secret FROM {schema}.meta"),
            epoch: format!("SELECT epoch FROM {schema}.meta"),
            raise_epoch: format!("UPDATE {schema}.meta SET epoch = greatest(epoch, $1::int4)"),
        }
    }
}

/// Parameters: $2 epoch, $3 handle, $4 to $14 claims.
fn claim(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.records AS r (id, fingerprint, credential, state, \
             fence_epoch, fence_counter, fence_nonce, claimant, guarantee, attempts, attempts_max, \
             settle_after, settles, lease_ends, holder, trace) \
         SELECT a.id, a.fingerprint, a.credential, 1, \
             $2::int4, a.counter, a.nonce, a.claimant, a.guarantee, 1, a.attempts_max, \
             a.settle_after, c.now + a.settle_after, c.now + a.lease, $3::int8, \
             a.head || int8send(c.now) || int4send($2::int4) || int8send(a.counter) || int4send(a.nonce) \
                 || int2send(1::int2) || a.tail \
         FROM (SELECT {NOW} AS now OFFSET 0) c, \
             (SELECT *, nextval('{schema}.fences') AS counter \
              FROM unnest($4::uuid[], $5::uuid[], $6::int8[], $7::int4[], $8::int8[], $9::int2[], $10::int4[], \
                 $11::int8[], $12::int8[], $13::bytea[], $14::bytea[]) \
              AS u(id, fingerprint, credential, nonce, claimant, guarantee, attempts_max, settle_after, lease, \
                 head, tail) OFFSET 0) a \
         ON CONFLICT (id) DO NOTHING RETURNING r.id, r.fence_counter"
    )
}

/// Completions start at parameter `first`. The trace gets the event of a completion, unless there is no trace.
/// `state + 0` keeps the planner from scanning an index of open records.
fn complete(schema: &str, first: usize) -> String {
    let [id, epoch, counter, nonce, retention, remember, outcome] =
        std::array::from_fn(|number| first + number);
    format!(
        "UPDATE {schema}.records r SET state = 2, outcome = a.outcome, \
             retention_ends = c.now + a.retention, remember_ends = c.now + a.retention + a.remember, \
             claimant = NULL, guarantee = NULL, attempts = NULL, attempts_max = NULL, \
             settle_after = NULL, settles = NULL, lease_ends = NULL, holder = NULL, \
             trace = r.trace || decode('0308', 'hex') || int8send(c.now) \
         FROM (SELECT {NOW} AS now OFFSET 0) c, \
             unnest(${id}::uuid[], ${epoch}::int4[], ${counter}::int8[], ${nonce}::int4[], \
                 ${retention}::int8[], ${remember}::int8[], ${outcome}::bytea[]) \
             AS a(id, epoch, counter, nonce, retention, remember, outcome) \
         WHERE r.id = a.id AND r.state + 0 = 1 AND r.fence_counter = a.counter \
             AND r.fence_epoch = a.epoch AND r.fence_nonce = a.nonce \
         RETURNING r.id, r.waited"
    )
}

/// Notifies only for records with waiting callers, because `NOTIFY` takes a lock on the whole server.
fn ended(channel: &str) -> String {
    format!("CASE WHEN waited THEN pg_notify('{channel}', id::text)::text END")
}

fn update(schema: &str) -> String {
    let names: Vec<_> = WRITTEN.split(", ").map(str::trim).collect();
    let sets: Vec<_> = names[1..]
        .iter()
        .map(|name| format!("{name} = a.{name}"))
        .collect();
    format!(
        "UPDATE {schema}.records r SET {} FROM {ROWS} AS a({WRITTEN}) WHERE r.id = a.id",
        sets.join(", ")
    )
}

/// Open records. `OFFSET 0` makes the planner use the indexes of open records, independent of the outer query.
fn open(schema: &str) -> String {
    format!(
        "(SELECT * FROM {schema}.records WHERE state = 1 \
         UNION ALL SELECT * FROM {schema}.records WHERE state = 3 OFFSET 0)"
    )
}

/// Parameters: $2 first identity or identities, $3 number of rows, $4 bytes of outcomes, so that a page fits into memory.
fn list(schema: &str, which: &str) -> String {
    format!(
        "WITH page AS MATERIALIZED ( \
             SELECT s.id, s.now, sum(coalesce(octet_length(s.outcome), 0)) OVER (ORDER BY s.id) \
                 - coalesce(octet_length(s.outcome), 0) AS before \
             FROM (SELECT r.id, r.outcome, c.now \
                 FROM (SELECT {NOW} AS now OFFSET 0) c, {schema}.records r \
                 WHERE {which} ORDER BY r.id LIMIT $3::int8) s) \
         SELECT {COLUMNS}, p.now FROM page p JOIN {schema}.records r ON r.id = p.id \
         WHERE p.before < $4::int8 ORDER BY r.id"
    )
}

/// Reads a limited number of rows, however few of them fit, so that the time of a statement is limited.
/// Returns identity, number, trace, time, and whether it is a candidate, of each candidate and of the last row read.
/// Parameters: $2 first identity, $3 number of rows read; null or what to search for: $4 the state as `Completed` (true)
/// or a tombstone (false), $5 the digest of a key, $6 length and name of an operation.
fn search(from: &str) -> String {
    format!(
        "WITH part AS MATERIALIZED ( \
             SELECT r.id, r.state, r.retention_ends, r.trace, c.now FROM (SELECT {NOW} AS now OFFSET 0) c, {from} r \
             WHERE r.id >= $2::uuid ORDER BY r.id LIMIT $3::int8), \
         marked AS (SELECT p.id, p.trace, p.now, row_number() OVER (ORDER BY p.id) AS number, count(*) OVER () AS rows, \
             coalesce( \
                 ($4::bool IS NULL OR $4::bool AND p.state = 2 AND p.retention_ends > p.now \
                     OR NOT $4::bool AND (p.state = 4 OR p.state = 2 AND p.retention_ends <= p.now)) \
                 AND ($5::bytea IS NULL OR substring(p.trace FROM 3 FOR 8) = $5::bytea) \
                 AND ($6::bytea IS NULL OR substring(p.trace FROM 11 FOR octet_length($6::bytea)) = $6::bytea), \
                 false) AS fits \
             FROM part p) \
         SELECT id, number, CASE WHEN fits THEN trace END, now, fits FROM marked \
         WHERE fits OR number = rows ORDER BY id"
    )
}

/// Counts open records, grouped by everything that [`Command::Age`](refrain::record::Command::Age) depends on.
fn count_open(schema: &str) -> String {
    let open = open(schema);
    format!(
        "SELECT r.state, r.guarantee, r.attempts < r.attempts_max, r.lease_ends <= c.now, count(*) \
         FROM (SELECT {NOW} AS now OFFSET 0) c, {open} r GROUP BY 1, 2, 3, 4"
    )
}

/// Parameter $2 is the maximum number of rows. Locked rows are left for the next sweep.
fn sweep_completed(schema: &str) -> String {
    format!(
        "WITH c AS MATERIALIZED (SELECT {NOW} AS now), past AS MATERIALIZED ( \
             SELECT r.id, r.remember_ends <= (SELECT now FROM c) AS is_forgotten FROM {schema}.records r \
             WHERE r.state = 2 AND r.retention_ends <= (SELECT now FROM c) \
             ORDER BY r.retention_ends LIMIT $2::int4 FOR UPDATE SKIP LOCKED), \
         gone AS (DELETE FROM {schema}.records r USING past p WHERE r.id = p.id AND p.is_forgotten RETURNING 1), \
         left_over AS (UPDATE {schema}.records r SET state = 4, outcome = NULL, credential = NULL, \
             retention_ends = NULL, fence_epoch = NULL, fence_counter = NULL, fence_nonce = NULL \
             FROM past p WHERE r.id = p.id AND NOT p.is_forgotten RETURNING 1) \
         SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM left_over)"
    )
}

fn sweep_tombstones(schema: &str) -> String {
    format!(
        "WITH c AS MATERIALIZED (SELECT {NOW} AS now), past AS MATERIALIZED ( \
             SELECT r.id FROM {schema}.records r \
             WHERE r.state = 4 AND r.remember_ends <= (SELECT now FROM c) \
             ORDER BY r.remember_ends LIMIT $2::int4 FOR UPDATE SKIP LOCKED), \
         gone AS (DELETE FROM {schema}.records r USING past p WHERE r.id = p.id RETURNING 1) \
         SELECT count(*) FROM gone"
    )
}

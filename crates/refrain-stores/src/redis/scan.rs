//! Lists and counts all records, for operators, with `SCAN`.
//!
//! There is no index, because in a cluster it could not be updated atomically with the records.
//! So each page of a list scans all keys of the server. Memory use is limited to one page.

use std::collections::{BTreeSet, HashSet};

use ::redis::{Cmd, FromRedisValue as _, Value, cmd};
use refrain::{
    RecordId, Result,
    clock::Timestamp,
    record::{Command, Record, step},
    store::{Census, LIST_MAX, Page, Query, Reading, StateName},
};

use super::{RedisState, codec, errors, reception::Node};

/// Keys per `SCAN` step.
pub(super) const STEP: u32 = 1_000;

impl RedisState {
    pub(super) async fn list(&self, query: &Query) -> Result<Page> {
        let limit = query.limit.clamp(1, LIST_MAX) as usize;
        let fits = |it: &Reading| query.fits(&it.record, it.now);
        let mut readings = Vec::with_capacity(limit);
        let mut after = query.after;
        // Repeats only if a picked record is gone when it is read.
        loop {
            let (ids, has_more) = self.pick(query, after, limit - readings.len()).await?;
            for reading in self.read_all(&ids).await? {
                match reading {
                    Ok(reading) => {
                        readings.extend(reading.filter(fits));
                    }
                    // Reading the damaged record itself returns its error.
                    Err(error) => {
                        refrain::log_rarely!(warn, %error, "cannot read a record; it is omitted from the list");
                    }
                }
            }
            after = ids.last().copied().or(after);
            if !has_more || readings.len() >= limit {
                let next = after.filter(|_| has_more);
                return Ok(Page { readings, next });
            }
        }
    }

    /// First identities after `after` whose records fit the query, and whether there are more.
    async fn pick(
        &self,
        query: &Query,
        after: Option<RecordId>,
        limit: usize,
    ) -> Result<(Vec<RecordId>, bool)> {
        // Keeps one more than the limit, to know whether there is another page.
        let mut first = BTreeSet::new();
        let all = Query {
            after: query.after,
            limit: query.limit,
            ..Query::default()
        };
        self.walk(*query != all, |found, now| {
            for (id, record) in found {
                let is_behind = after.is_none_or(|after| id > after);
                // An unreadable record is picked, too; its error is reported when it is read.
                let fits = record.is_none_or(|record| {
                    let aged = aged(record, now);
                    aged.is_some_and(|record| query.fits(&record, now))
                });
                if is_behind && fits {
                    first.insert(id);
                    if first.len() > limit + 1 {
                        first.pop_last();
                    }
                }
            }
        })
        .await?;
        let has_more = first.len() > limit;
        Ok((first.into_iter().take(limit).collect(), has_more))
    }

    pub(super) async fn census(&self) -> Result<Census> {
        let mut census = Census::default();
        // `SCAN` may return a key twice. Records in flight or indeterminate are counted exactly.
        let mut live = HashSet::new();
        self.walk(true, |found, now| {
            for (id, record) in found {
                match record.map(|record| aged(record, now).map(|it| it.state.name())) {
                    None => census.unreadable += 1,
                    Some(Some(name)) => {
                        let is_live =
                            matches!(name, StateName::InFlight | StateName::Indeterminate);
                        if !is_live || live.insert(id) {
                            census.count(name);
                        }
                    }
                    Some(None) => {}
                }
            }
        })
        .await?;
        Ok(census)
    }

    /// Visits every record at least once. With `reads` records are decoded; `None` is not read, or invalid.
    async fn walk(
        &self,
        reads: bool,
        mut show: impl FnMut(Vec<(RecordId, Option<Record<()>>)>, Timestamp),
    ) -> Result<()> {
        for node in self.nodes().await? {
            let mut cursor = "0".to_owned();
            loop {
                let (next, ids) = self.scan_step(&node, &cursor).await?;
                let now = self.now_of(&node).await?;
                let found = match reads {
                    true => self.peek(&node, ids).await?,
                    // Not read, so the state is unknown.
                    false => ids.into_iter().map(|id| (id, None)).collect(),
                };
                show(found, now);
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(())
    }

    /// One step over the records of a server: where to continue, `0` at the end, and the records found.
    pub(super) async fn scan_step(
        &self,
        node: &Node,
        cursor: &str,
    ) -> Result<(String, Vec<RecordId>)> {
        let prefix = &self.calls.prefix;
        let scanned = node.send_command(scan(cursor, prefix)).await;
        let (next, keys): (String, Vec<Vec<u8>>) =
            scanned.map_err(|error| errors::convert_error(error, &self.shown))?;
        let ids = keys.iter().filter_map(|key| id_of(key, prefix));
        Ok((next, ids.collect()))
    }

    /// Reads these records without their outcomes.
    async fn peek(
        &self,
        node: &Node,
        ids: Vec<RecordId>,
    ) -> Result<Vec<(RecordId, Option<Record<()>>)>> {
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(STEP as usize) {
            let values = self.values(node, ids).await?;
            for (id, value) in ids.iter().zip(values) {
                match value {
                    // Expired or deleted since.
                    Value::Nil => {}
                    Value::BulkString(bytes) => found.push((*id, codec::record(&bytes, *id))),
                    _ => found.push((*id, None)),
                }
            }
        }
        Ok(found)
    }

    pub(super) async fn values(&self, node: &Node, ids: &[RecordId]) -> Result<Vec<Value>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let convert = |error| errors::convert_error(error, &self.shown);
        if let Node::One(_) = node {
            let mut get = cmd("MGET");
            for id in ids {
                self.calls.key(&mut get, *id, b"");
            }
            return node.send_command(get).await.map_err(convert);
        }
        // Keys in different slots cannot be read with one command.
        let asks = ids.iter().map(|id| async {
            let mut get = cmd("GET");
            self.calls.key(&mut get, *id, b"");
            node.send_command::<Value>(get).await
        });
        let values = futures_util::future::join_all(asks).await;
        let converted = |value: ::redis::RedisResult<Value>| value.map_err(convert);
        values.into_iter().map(converted).collect()
    }

    pub(super) async fn now_of(&self, node: &Node) -> Result<Timestamp> {
        if let Some(now) = &self.calls.clock {
            return Ok(now());
        }
        let time = node.send_command::<Value>(cmd("TIME")).await;
        let time = time.and_then(|time| Ok(<(u64, u64)>::from_redis_value(time)?));
        let (seconds, micros) = time.map_err(|error| errors::convert_error(error, &self.shown))?;
        Ok(Timestamp(seconds * 1_000 + micros / 1_000))
    }
}

/// Identity in a record's key.
pub(super) fn id_of(key: &[u8], prefix: &str) -> Option<RecordId> {
    let key = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    key.strip_prefix('{')?.strip_suffix('}')?.parse().ok()
}

/// Command for one `SCAN` step over the records of a server.
pub(super) fn scan(cursor: &str, prefix: &str) -> Cmd {
    let mut scan = cmd("SCAN");
    let pattern = format!("{prefix}{{*}}");
    scan.arg(cursor)
        .arg("MATCH")
        .arg(pattern)
        .arg("COUNT")
        .arg(STEP);
    scan
}

/// The record after [`Command::Age`]; `None` if it has ended.
pub(super) fn aged(record: Record<()>, now: Timestamp) -> Option<Record<()>> {
    step(Some(record), Command::Age, now).record
}

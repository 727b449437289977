//! Lists with a filter: a part of the records at a time, so that no statement runs into its timeout.

use bytes::Bytes;
use refrain::{
    RecordId, Result,
    record::Trace,
    store::{LIST_MAX, Page, Query, Reading, StateName},
};
use tokio::time::Instant;
use tokio_postgres::Row;

use super::{
    operator::{OperatorConnection, PAGE_BYTES_MAX, convert_error, next_id},
    rows::{self, Id},
};

/// Rows that one statement reads.
const PART_ROWS: i64 = 10_000;

/// What a statement found in a part of the records.
struct Part {
    /// Identities of the records that may fit, in their order.
    found: Vec<RecordId>,
    /// The last record that was read, if there are more.
    last: Option<RecordId>,
}

impl OperatorConnection {
    /// Lists the records that fit the query. Every page gets further than the one before.
    pub(super) async fn search(&self, query: &Query) -> Result<Page> {
        let start = Instant::now();
        let limit = query.limit.clamp(1, LIST_MAX) as usize;
        let mut readings = Vec::new();
        let mut after = query.after;
        while let Some(from) = after.map_or(Some([0; 16]), next_id) {
            let part = self.part(query, from).await?;
            let unread = self
                .read_found(query, &part.found, limit, &mut readings)
                .await?;
            after = unread.or(part.last);
            let is_over = query
                .search_time
                .is_some_and(|most| start.elapsed() >= most);
            if after.is_none() || readings.len() == limit || is_over {
                return Ok(Page {
                    readings,
                    next: after,
                });
            }
        }
        Ok(Page {
            readings,
            next: None,
        })
    }

    /// Searches the next part of the records.
    async fn part(&self, query: &Query, from: [u8; 16]) -> Result<Part> {
        let sql = &self.place.sql;
        let (text, is_completed) = match query.state {
            Some(StateName::InFlight | StateName::Indeterminate) => (&sql.search_open, None),
            Some(StateName::Completed) => (&sql.search, Some(true)),
            Some(StateName::Tombstone) => (&sql.search, Some(false)),
            None => (&sql.search, None),
        };
        let (now, from) = (self.time.now(), Id(from));
        let key = query.key.map(|digest| digest.0.to_vec());
        let operation = query.operation.as_deref().map(sized);
        let rows = self
            .query(
                text,
                &[&now, &from, &PART_ROWS, &is_completed, &key, &operation],
            )
            .await?;
        let mut part = Part {
            found: Vec::new(),
            last: None,
        };
        for row in &rows {
            let id = rows::id(row)?;
            let number: i64 = row.try_get(1).map_err(convert_error)?;
            part.last = (number == PART_ROWS).then_some(id);
            part.found.extend(self.may_fit(query, row)?.then_some(id));
        }
        Ok(part)
    }

    /// Whether a record may fit, judged by its trace.
    fn may_fit(&self, query: &Query, row: &Row) -> Result<bool> {
        let is_candidate: bool = row.try_get(4).map_err(convert_error)?;
        let trace: Option<Vec<u8>> = row.try_get(2).map_err(convert_error)?;
        let now: i64 = row.try_get(3).map_err(convert_error)?;
        let now = self.time.believe(now).believed;
        let trace = Trace::from(Bytes::from(trace.unwrap_or_default()));
        Ok(is_candidate && query.fits_trace(&trace, now))
    }

    /// Reads the records that were found until the page is full. Returns the last one read if there are more.
    async fn read_found(
        &self,
        query: &Query,
        found: &[RecordId],
        limit: usize,
        readings: &mut Vec<Reading>,
    ) -> Result<Option<RecordId>> {
        let mut left = found;
        let mut last = None;
        while !left.is_empty() && readings.len() < limit {
            let some = &left[..left.len().min(limit - readings.len())];
            let ids: Vec<_> = some.iter().map(|id| Id(id.0)).collect();
            let (now, count) = (self.time.now(), ids.len() as i64);
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                [&now, &ids, &count, &PAGE_BYTES_MAX];
            let rows = self.query(&self.place.sql.list_found, &parameters).await?;
            for row in &rows {
                readings.extend(self.listed(row, query)?);
            }
            // A page ends early if its outcomes are large; records that are gone have no row.
            let end = match rows.last() {
                Some(row) => rows::id(row)?,
                None => some[some.len() - 1],
            };
            left = &left[left.partition_point(|id| *id <= end)..];
            last = Some(end);
        }
        Ok(last.filter(|_| !left.is_empty()))
    }
}

/// A text after its length, as a trace has it.
fn sized(text: &str) -> Vec<u8> {
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], text.as_bytes()].concat()
}

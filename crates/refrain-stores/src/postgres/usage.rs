//! Counts what each scope holds, for quotas: in parts of the table, so that no statement runs long.

use std::time::Duration;

use refrain::{Result, record::ScopeDigest, store::Usage};
use tokio::time::{Instant, sleep};
use tokio_postgres::Row;

use super::{
    operator::{OperatorConnection, convert_error},
    rows::Id,
};

/// About this many records are counted with one statement.
const PART_RECORDS: i64 = 20_000;
const PARTS_MAX: u32 = 1 << 16;
/// Maximum pause between two statements. The pause is as long as the previous statement took.
const PAUSE_MAX: Duration = Duration::from_millis(200);

impl OperatorConnection {
    pub(super) async fn usage(&self, scopes_max: usize) -> Result<Usage> {
        let began = Instant::now();
        let estimate = self.estimate().await?.max(0) / PART_RECORDS + 1;
        let parts = u32::try_from(estimate).unwrap_or(PARTS_MAX).min(PARTS_MAX);
        let mut usage = Usage::new(scopes_max);
        for part in 0..parts {
            let (first, last) = (start(part, parts), end(part, parts));
            let asked = Instant::now();
            let now = self.believed_now().await?;
            let rows = self
                .query(&self.sql().usage, &[&now, &Id(first), &Id(last)])
                .await?;
            for row in &rows {
                add(row, began.elapsed(), &mut usage).map_err(convert_error)?;
            }
            if part + 1 < parts {
                sleep(asked.elapsed().min(PAUSE_MAX)).await;
            }
        }
        Ok(usage)
    }

    async fn estimate(&self) -> Result<i64> {
        let row = self.query_one(&self.sql().estimate, &[]).await?;
        row.try_get(0).map_err(convert_error)
    }
}

/// The first identity of a part.
fn start(part: u32, parts: u32) -> [u8; 16] {
    (u128::MAX / u128::from(parts) * u128::from(part)).to_be_bytes()
}

/// The last identity of a part.
fn end(part: u32, parts: u32) -> [u8; 16] {
    match part + 1 == parts {
        true => [u8::MAX; 16],
        false => (u128::from_be_bytes(start(part + 1, parts)) - 1).to_be_bytes(),
    }
}

/// Adds a row: the scope, how long until the end or null, records and bytes.
fn add(row: &Row, now: Duration, usage: &mut Usage) -> Result<(), tokio_postgres::Error> {
    let scope: Vec<u8> = row.try_get(0)?;
    let left: Option<i64> = row.try_get(1)?;
    let (records, bytes): (i64, i64) = (row.try_get(2)?, row.try_get(3)?);
    let Ok(scope) = scope.try_into() else {
        return Ok(());
    };
    usage.scope(ScopeDigest(scope), |it| match left {
        None => it.add_open(records),
        Some(left) => {
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
            let records = u32::try_from(records).unwrap_or(u32::MAX);
            it.add_end(now, left, records, u64::try_from(bytes).unwrap_or(0));
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    //! A record between two parts would be missing from the count, or be counted twice.

    use super::*;

    #[test]
    fn parts_cover_every_identity_once() {
        for parts in [1, 2, 3, 7, 256, PARTS_MAX] {
            assert_eq!(start(0, parts), [0; 16]);
            assert_eq!(end(parts - 1, parts), [255; 16]);
            for part in 1..parts {
                let before = u128::from_be_bytes(end(part - 1, parts));
                let first = u128::from_be_bytes(start(part, parts));
                assert_eq!(before + 1, first, "{part} of {parts}");
            }
        }
    }
}

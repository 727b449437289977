//! Counts the messages of a queue.

use std::time::Duration;

use refrain::{
    Error, ErrorKind, Result,
    consume::{Lag, Source},
};
use refrain_stores::postgres::Dial;
use tokio_postgres::{Row, types::ToSql};

use super::{QueueState, connection::Ask, row, table};

/// Limit of the counts, which also limits the time of the statement.
const COUNTED_MAX: i64 = 100_000;

pub(crate) async fn lag_of(source: &Source) -> Result<Lag> {
    let dial = Dial::new(source.url.as_str())?;
    let wire = dial.look().await?;
    let failed = |error: tokio_postgres::Error| table::convert_error(&dial, &error);
    table::choose_schema(&dial, &wire).await.map_err(failed)?;
    let limit = COUNTED_MAX + 1;
    let parameters: [&(dyn ToSql + Sync); 2] = [&source.queue, &limit];
    let counted = wire.client().query_one(row::COUNT, &parameters).await;
    read(&counted.map_err(failed)?).map_err(failed)
}

pub(super) async fn lag(desk: &QueueState) -> Result<Lag> {
    let limit = COUNTED_MAX + 1;
    let ask = Ask::Count {
        queue: &desk.queue,
        limit,
    };
    let rows = desk.counting.request(ask).await?;
    let lag = rows.first().map(read).transpose().map_err(|error| {
        let message = format!("cannot count the messages of queue {}", desk.queue);
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?;
    Ok(lag.unwrap_or_default())
}

fn read(row: &Row) -> Result<Lag, tokio_postgres::Error> {
    let (waiting, held): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let seconds: Option<f64> = row.try_get(2)?;
    let oldest = seconds.and_then(|it| Duration::try_from_secs_f64(it.max(0.0)).ok());
    let lag = Lag::waiting(u64::try_from(waiting).unwrap_or_default())
        .with_unacknowledged(u64::try_from(held).unwrap_or_default())
        .with_oldest(oldest);
    let are_all = waiting + held <= COUNTED_MAX;
    Ok(if are_all { lag } else { lag.approximate() })
}

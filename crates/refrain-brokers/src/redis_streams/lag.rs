//! Counts the entries that a group has not finished.

use std::time::Duration;

use ::redis::Script;
use refrain::{
    Result,
    consume::{Lag, Source},
};

use super::{StreamMember, address::Address, choose_crypto, connection::StreamConnection};

pub(super) async fn lag(seat: &StreamMember) -> Result<Lag> {
    count(&seat.line, &seat.stream, &seat.group).await
}

pub(crate) async fn lag_of(source: &Source) -> Result<Lag> {
    let address = Address::parse(source.url.as_str())?;
    choose_crypto();
    let line = StreamConnection::new(&address)?;
    count(&line, &source.queue, &source.consumer).await
}

async fn count(line: &StreamConnection, stream: &str, group: &str) -> Result<Lag> {
    let script = Script::new(include_str!("../../lua/streams-lag.lua"));
    let mut count = script.prepare_invoke();
    count.key(stream).arg(group);
    let (waiting, is_bound, held, oldest): (u64, bool, u64, i64) = line.run(&count).await?;
    let oldest = u64::try_from(oldest).ok().map(Duration::from_millis);
    let lag = Lag::waiting(waiting)
        .with_unacknowledged(held)
        .with_oldest(oldest);
    Ok(if is_bound { lag.approximate() } else { lag })
}

//! Counts the entries that the group has not finished.

use std::time::Duration;

use ::redis::Script;
use refrain::{Result, consume::Lag};

use super::StreamMember;

pub(super) async fn lag(seat: &StreamMember) -> Result<Lag> {
    let script = Script::new(include_str!("../../lua/streams-lag.lua"));
    let mut count = script.prepare_invoke();
    count.key(&seat.stream).arg(&seat.group);
    let (waiting, is_bound, held, oldest): (u64, bool, u64, i64) = seat.line.run(&count).await?;
    let oldest = u64::try_from(oldest).ok().map(Duration::from_millis);
    let lag = Lag::waiting(waiting)
        .with_unacknowledged(held)
        .with_oldest(oldest);
    Ok(if is_bound { lag.approximate() } else { lag })
}

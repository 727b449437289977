//! Counts the messages of a queue that no consumer has received; the server tells a client no other number.

use refrain::{
    Result,
    consume::{Lag, Source},
};

use super::{address::Address, connect::RabbitConnection, queues};

pub(super) async fn lag(desk: &RabbitConnection, queue: &str) -> Result<Lag> {
    let connection = desk.connection().await?;
    let queue = queues::name(queue)?;
    let waiting = queues::count(&connection, desk.server(), &queue).await?;
    Ok(Lag::waiting(waiting.unwrap_or(0).into()))
}

pub(crate) async fn lag_of(source: &Source) -> Result<Lag> {
    let desk = RabbitConnection::new(Address::parse(source.url.as_str())?);
    let lag = lag(&desk, &source.queue).await;
    desk.close().await;
    lag
}

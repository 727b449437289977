//! Reads the counts that the server keeps of the consumer.

use std::error::Error as StdError;

use refrain::{Result, consume::Lag};

use super::{Nats, errors};

pub(super) async fn lag(nats: &Nats) -> Result<Lag> {
    let info = nats.consumer.get_info().await.map_err(|error| {
        let name = &nats.consumer.cached_info().name;
        let what = format!("cannot read the state of the consumer {name:?}");
        let error: &(dyn StdError + 'static) = &error;
        errors::convert_error(nats.publisher.server(), &what, None, error)
    })?;
    Ok(Lag::waiting(info.num_pending).with_unacknowledged(info.num_ack_pending as u64))
}

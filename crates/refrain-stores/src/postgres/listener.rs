//! Listens for settlements by other processes, and wakes the callers that wait for them here.

use std::{sync::Arc, time::Duration};

use refrain::{Backoff, Result, store::Watches};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_postgres::AsyncMessage;

use super::{
    connect::{ANSWER_TIMEOUT, PostgresContext},
    dial::Wire,
    errors,
};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How often the connection is checked while it is idle.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Listens until the store is dropped. While there is no connection, waiting callers poll.
pub(super) async fn run(place: Arc<PostgresContext>, watches: Watches, over: Arc<Notify>) {
    let over = over.notified();
    tokio::pin!(over);
    let listening = async {
        let mut delays = BACKOFF.delays();
        loop {
            match listen(&place, watches.clone()).await {
                Ok(wire) => {
                    delays.reset();
                    // Settlements may have been missed since the last connection.
                    watches.all_settled();
                    while !wire.client.is_closed() {
                        sleep(LOOK_EVERY).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot receive notifications of settlements by other processes; polling instead");
                    sleep(delays.after_failure()).await;
                }
            }
        }
    };
    tokio::select! {
        () = &mut over => {}
        () = listening => {}
    }
}

async fn listen(place: &PostgresContext, watches: Watches) -> Result<Wire> {
    let heard = move |message| {
        if let AsyncMessage::Notification(told) = message
            // A `uuid` cast to text has dashes.
            && let Ok(id) = told.payload().replace('-', "").parse()
        {
            watches.settled(id);
        }
    };
    let (wire, _) = place.connect(heard).await?;
    let listening = wire.client.batch_execute(&place.sql.listen);
    match timeout(ANSWER_TIMEOUT, listening).await {
        Ok(Ok(())) => Ok(wire),
        Ok(Err(error)) => Err(errors::convert_error(&error, &place.address)),
        Err(_) => Err(super::quick::timed_out()),
    }
}

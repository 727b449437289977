//! Acknowledges and nacks deliveries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use lapin::{
    Acker, BasicProperties,
    options::{BasicAckOptions, BasicNackOptions},
};
use refrain::{
    Result,
    consume::{Answer, Ticket},
};
use tokio::runtime::Handle;

use super::{RabbitPublisher, codec, delay, errors};

/// Number of unsettled deliveries.
pub(super) type Held = Arc<AtomicUsize>;

/// Acknowledgement handle of one delivery.
pub(super) struct RabbitTicket {
    pub(super) acker: Acker,
    pub(super) held: Held,
    pub(super) publisher: RabbitPublisher,
    pub(super) queue: Arc<str>,
    pub(super) payload: Bytes,
    pub(super) properties: BasicProperties,
    pub(super) subject: String,
    pub(super) attempt: u32,
}

impl RabbitTicket {
    async fn acknowledge(&self) -> Result<()> {
        let sending = self.acker.ack(BasicAckOptions::default());
        self.check_sent(errors::wait_for_reply(self.publisher.server(), sending).await?)
    }

    async fn give_back(&self) -> Result<()> {
        let sending = self.acker.nack(requeue());
        self.check_sent(errors::wait_for_reply(self.publisher.server(), sending).await?)
    }

    /// Returns an error if the delivery's channel is gone: the server then requeues the message.
    fn check_sent(&self, is_sent: bool) -> Result<()> {
        match is_sent {
            true => Ok(()),
            false => Err(errors::requeued(self.publisher.server())),
        }
    }

    async fn redeliver_later(&self, time: Duration) -> Result<()> {
        if !self.acker.usable() {
            // The server has requeued the message already; a delayed copy would be a duplicate.
            return Err(errors::requeued(self.publisher.server()));
        }
        let properties = codec::delay_properties(&self.properties, self.attempt, &self.subject);
        let (rabbit, queue) = (&self.publisher, &self.queue);
        delay::publish_delayed(rabbit, queue, time, &self.payload, properties).await?;
        self.acknowledge().await
    }
}

impl Ticket for RabbitTicket {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move { self.acknowledge().await })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        Box::pin(async move {
            match delay.is_zero() {
                true => self.give_back().await,
                false => self.redeliver_later(delay).await,
            }
        })
    }

    fn extend(&self) -> Answer<'_, ()> {
        let is_sent = self.acker.usable();
        Box::pin(async move { self.check_sent(is_sent) })
    }
}

impl Drop for RabbitTicket {
    /// Requeues the message; otherwise the server waits for its `consumer_timeout` (30 minutes by default).
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        if !self.acker.usable() {
            return;
        }
        // Without a runtime the connection is about to close, and then the server requeues the message.
        if let Ok(runtime) = Handle::try_current() {
            let acker = self.acker.clone();
            runtime.spawn(async move { acker.nack(requeue()).await });
        }
    }
}

fn requeue() -> BasicNackOptions {
    BasicNackOptions {
        multiple: false,
        requeue: true,
    }
}

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
        let told = self.acker.ack(BasicAckOptions::default());
        self.known(errors::answered(self.publisher.server(), told).await?)
    }

    async fn give_back(&self) -> Result<()> {
        let told = self.acker.nack(requeue());
        self.known(errors::answered(self.publisher.server(), told).await?)
    }

    /// Returns an error if the delivery's channel is gone: the server then requeues the message.
    fn known(&self, is_told: bool) -> Result<()> {
        match is_told {
            true => Ok(()),
            false => Err(errors::taken_back(self.publisher.server())),
        }
    }

    async fn put_off(&self, time: Duration) -> Result<()> {
        if !self.acker.usable() {
            // The server has requeued the message already; a delayed copy would be a duplicate.
            return Err(errors::taken_back(self.publisher.server()));
        }
        let properties = codec::waiting(&self.properties, self.attempt, &self.subject);
        let (rabbit, queue) = (&self.publisher, &self.queue);
        delay::put(rabbit, queue, time, &self.payload, properties).await?;
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
                false => self.put_off(delay).await,
            }
        })
    }

    fn extend(&self) -> Answer<'_, ()> {
        let is_told = self.acker.usable();
        Box::pin(async move { self.known(is_told) })
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

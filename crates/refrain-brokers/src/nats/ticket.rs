//! Acknowledges, nacks and extends deliveries; JetStream confirms each of them.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, Request, RequestErrorKind, Subject, jetstream::AckKind};
use refrain::{
    Error, ErrorKind, Result,
    consume::{Answer, Ticket},
};

use super::{NatsPublisher, connect::NatsConnection, errors};

/// Acknowledgement handle of one delivery.
pub(super) struct JetTicket {
    client: Client,
    link: Arc<NatsConnection>,
    /// The delivery's acknowledgement subject.
    reply: Subject,
}

impl JetTicket {
    pub(super) fn new(nats: &NatsPublisher, reply: Subject) -> Self {
        Self {
            client: nats.context.client(),
            link: nats.link.clone(),
            reply,
        }
    }

    /// Sends the acknowledgement as a request, because only a reply proves that JetStream received it.
    async fn send_ack(&self, kind: AckKind) -> Result<()> {
        let request = Request::new().payload(kind.into());
        let sent = self.client.send_request(self.reply.clone(), request).await;
        sent.map(|_| ()).map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => {
                let message = format!(
                    "the consumer of this delivery no longer exists on NATS at {}, or JetStream is not ready yet",
                    self.link.server
                );
                Error::new(ErrorKind::Unavailable, message)
            }
            _ if !self.link.is_up() => errors::disconnected(&self.link.server),
            _ => errors::unavailable(&self.link.server, error),
        })
    }
}

impl Ticket for JetTicket {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move { self.send_ack(AckKind::Ack).await })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        let delay = Some(delay).filter(|delay| *delay > Duration::ZERO);
        Box::pin(async move { self.send_ack(AckKind::Nak(delay)).await })
    }

    fn extend(&self) -> Answer<'_, ()> {
        Box::pin(self.send_ack(AckKind::Progress))
    }
}

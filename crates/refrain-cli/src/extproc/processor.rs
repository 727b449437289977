//! The gRPC service: one task for each stream, up to a limit.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use envoy_types::pb::envoy::service::ext_proc::v3::{
    ProcessingRequest, ProcessingResponse, external_processor_server::ExternalProcessor,
};
use refrain::http::Code;
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Response, Status, Streaming, codegen::tokio_stream::Stream};

use super::session::{ExchangeSession, Guarding, StreamEnd};

/// Replies that wait until Envoy reads them. Envoy waits for each before it sends more.
const REPLIES_MAX: usize = 4;

/// The service that Envoy calls for each request.
#[derive(Debug)]
pub(super) struct Processor {
    guarding: Arc<Guarding>,
    /// Limits the open streams.
    room: Arc<Semaphore>,
}

impl Processor {
    pub(super) fn new(guarding: Guarding, streams_max: usize) -> Self {
        Self {
            guarding: Arc::new(guarding),
            room: Arc::new(Semaphore::new(streams_max)),
        }
    }
}

#[tonic::async_trait]
impl ExternalProcessor for Processor {
    type ProcessStream = ReplyStream;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<ReplyStream>, Status> {
        let (sender, receiver) = mpsc::channel(REPLIES_MAX);
        let replies = Replies(sender);
        let session = ExchangeSession {
            guarding: self.guarding.clone(),
            messages: request.into_inner(),
            replies: replies.clone(),
        };
        let place = self.room.clone().try_acquire_owned();
        tokio::spawn(async move {
            let ended = match place {
                Ok(_place) => session.run().await,
                Err(_) => {
                    let why = "Too many requests are in progress. Send the same request again.";
                    session.refuse(Code::OverBudget, why).await
                }
            };
            if let Err(StreamEnd::Refused(status)) = ended {
                replies.fail(status).await;
            }
        });
        Ok(Response::new(ReplyStream {
            receiver,
            is_over: false,
        }))
    }
}

/// The sending end of a stream.
#[derive(Debug, Clone)]
pub(super) struct Replies(mpsc::Sender<StreamReply>);

#[derive(Debug)]
enum StreamReply {
    Next(ProcessingResponse),
    Last(ProcessingResponse),
    Failed(Status),
}

impl Replies {
    pub(super) async fn send(&self, message: ProcessingResponse) -> Result<(), StreamEnd> {
        let sent = self.0.send(StreamReply::Next(message)).await;
        sent.map_err(|_| StreamEnd::ByEnvoy)
    }

    /// Sends the last message, after which the stream ends in order.
    pub(super) async fn end_with(&self, message: ProcessingResponse) -> Result<(), StreamEnd> {
        let sent = self.0.send(StreamReply::Last(message)).await;
        sent.map_err(|_| StreamEnd::ByEnvoy)
    }

    async fn fail(&self, status: Status) {
        let _ = self.0.send(StreamReply::Failed(status)).await;
    }
}

/// The replies of one stream. Fails if they end without a last one, because Envoy would continue without Refrain.
#[derive(Debug)]
pub(super) struct ReplyStream {
    receiver: mpsc::Receiver<StreamReply>,
    is_over: bool,
}

impl Stream for ReplyStream {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let reply = ready!(self.receiver.poll_recv(context));
        self.is_over = !matches!(reply, Some(StreamReply::Next(_)));
        Poll::Ready(Some(match reply {
            Some(StreamReply::Next(message) | StreamReply::Last(message)) => Ok(message),
            Some(StreamReply::Failed(status)) => Err(status),
            None => Err(Status::aborted("the stream ended early")),
        }))
    }
}

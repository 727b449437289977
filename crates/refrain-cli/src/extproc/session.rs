//! One stream of Envoy, which is one HTTP exchange: carries its parts to the layer, and the decisions of the layer back.
//!
//! ```text
//!  request headers --> does the layer want the body? --> request body --> claim
//!      |                                                                    |
//!      +-- unguarded: continue, and end the stream                          +-- no grant: immediate response
//!                                                                           +-- grant: continue
//!  response headers --> response body --> settle --> continue with the recorded response
//! ```
//!
//! A stream that ends before its response is complete leaves an unknown outcome, or releases a claim that was not passed on.
//! Envoy continues without Refrain if a stream ends in order, so it ends in order only after its last message.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody as BodyMessage, HttpHeaders, ProcessingRequest, ProcessingResponse,
    processing_request::Request as Message,
};
use http::{HeaderMap, HeaderName, Request, Response, header, request, response};
use http_body_util::BodyExt as _;
use refrain::{
    http::{Body, Code, LOOKUP_PATH, RefrainService},
    policy::{Mode, Policy},
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};
use tower_service::Service as _;

use super::{
    handover::{ExchangeHandle, FromUpstream, Handover, OnDemand, StreamBody, UpstreamCall},
    messages::{self, EnvoyStep, WantedParts},
    origin::ResponseOrigin,
    processor::Replies,
};

/// What all streams share.
#[derive(Debug)]
pub(super) struct Guarding {
    pub(super) policy: Policy,
    /// Base of the `type` of problems.
    pub(super) problems: String,
    pub(super) service: RefrainService<Handover>,
}

/// One exchange.
pub(super) struct ExchangeSession {
    pub(super) guarding: Arc<Guarding>,
    pub(super) messages: Streaming<ProcessingRequest>,
    pub(super) replies: Replies,
}

type LayerReply = Result<Response<Body<StreamBody>>, Infallible>;
type Replying = Pin<Box<dyn Future<Output = LayerReply> + Send>>;

/// Why a stream ends before its last message.
#[derive(Debug)]
pub(super) enum StreamEnd {
    /// Envoy ended it: the client or the upstream is gone.
    ByEnvoy,
    /// Refrain ends it, which fails the request.
    Refused(Status),
}

/// The channels between a request in the layer and its stream.
struct ExchangeChannels {
    calls: mpsc::Receiver<UpstreamCall>,
    body_wanted: oneshot::Receiver<()>,
    body: Option<oneshot::Sender<Bytes>>,
}

/// What the layer decided about a request.
enum LayerDecision {
    Replied(LayerReply),
    Called(UpstreamCall),
}

impl ExchangeSession {
    /// Serves the exchange to its end.
    pub(super) async fn run(mut self) -> Result<(), StreamEnd> {
        let first = self.next().await?;
        self.check(&first)?;
        let Some(Message::RequestHeaders(headers)) = first.request else {
            return Err(out_of_order("request headers"));
        };
        let is_bodiless = headers.end_of_stream;
        let head = match messages::request_head(headers) {
            Ok(head) => head,
            Err(why) => return self.refuse(Code::RequestMalformed, why).await,
        };
        let sent = head.headers.clone();
        let found = self
            .guarding
            .policy
            .find(head.method.as_str(), head.uri.path());
        if found.is_none() && !self.guarding.serves(&head) {
            return self.pass(&sent).await;
        }
        let is_observed = found.is_some_and(|it| it.operation.mode == Mode::Observe);
        let (request, channels) = exchange(head, is_bodiless, is_observed);
        let mut replying: Replying = Box::pin(self.guarding.service.clone().call(request));
        let (decided, step) = self.decide(&mut replying, channels).await?;
        let call = match decided {
            LayerDecision::Replied(reply) => return self.reply(reply).await,
            LayerDecision::Called(call) => call,
        };
        let parts = match call.is_watched {
            true => WantedParts::All,
            false => WantedParts::ResponseHeaders,
        };
        let changes = messages::changes(&sent, &call.headers);
        self.send(messages::go_on(step, changes, parts)).await?;
        self.respond(call, replying).await
    }

    /// Lets a request pass that matches no operation, without the headers that only Refrain may send to the upstream.
    async fn pass(self, sent: &HeaderMap) -> Result<(), StreamEnd> {
        let is_ours = |name: &HeaderName| {
            let rest = name.as_str().strip_prefix("refrain");
            rest.is_some_and(|rest| rest.starts_with(['-', '_']))
        };
        let ours = sent.keys().filter(|name| is_ours(name));
        let changes = messages::removing(ours);
        self.end_with(messages::go_on(
            EnvoyStep::RequestHeaders,
            changes,
            WantedParts::Nothing,
        ))
        .await
    }

    /// Rejects a filter whose configuration would let requests pass unguarded.
    fn check(&self, first: &ProcessingRequest) -> Result<(), StreamEnd> {
        let fault = match first.observability_mode {
            true => Some("the Envoy filter has observability_mode: true, so that nothing is guarded; remove it".into()),
            false => first.protocol_config.as_ref().and_then(messages::fault_in),
        };
        let Some(fault) = fault else { return Ok(()) };
        refrain::log_rarely!(error, "{fault}");
        Err(StreamEnd::Refused(Status::failed_precondition(fault)))
    }

    /// Drives the layer until it replies or calls the upstream, and sends it the body if it wants it.
    async fn decide(
        &mut self,
        replying: &mut Replying,
        mut channels: ExchangeChannels,
    ) -> Result<(LayerDecision, EnvoyStep), StreamEnd> {
        let mut step = EnvoyStep::RequestHeaders;
        loop {
            tokio::select! {
                biased;
                reply = &mut *replying => return Ok((LayerDecision::Replied(reply), step)),
                Some(call) = channels.calls.recv() => return Ok((LayerDecision::Called(call), step)),
                Ok(()) = &mut channels.body_wanted, if step == EnvoyStep::RequestHeaders => {
                    let whole = self.ask_for(step).await?;
                    step = EnvoyStep::RequestBody;
                    if let Some(body) = channels.body.take() {
                        let _ = body.send(whole.body.into());
                    }
                }
                message = self.messages.message() => {
                    let message = received(message)?;
                    return Err(self.given_up(&message, "no message before the reply").await);
                }
            }
        }
    }

    /// Continues with the request headers, and returns the body that follows.
    async fn ask_for(&mut self, step: EnvoyStep) -> Result<BodyMessage, StreamEnd> {
        self.send(messages::go_on(step, None, WantedParts::All))
            .await?;
        let message = self.next().await?;
        match message.request {
            Some(Message::RequestBody(body)) if body.end_of_stream => Ok(body),
            // The override was ignored, or trailers follow.
            Some(Message::RequestBody(_)) => Err(out_of_order("the whole request body")),
            _ => Err(self.given_up(&message, "the request body").await),
        }
    }

    /// Lets Envoy end a request that it did not pass on, such as one whose body is over its own limit.
    async fn given_up(&self, message: &ProcessingRequest, expected: &str) -> StreamEnd {
        let is_response = matches!(message.request, Some(Message::ResponseHeaders(_)));
        if !is_response || !ResponseOrigin::of(message).is_of_envoy() {
            return out_of_order(expected);
        }
        let go_on = messages::go_on(EnvoyStep::ResponseHeaders, None, WantedParts::Nothing);
        let _ = self.replies.end_with(go_on).await;
        StreamEnd::ByEnvoy
    }

    /// Carries the response of the upstream to the layer, and what the layer makes of it to Envoy.
    async fn respond(
        mut self,
        call: UpstreamCall,
        mut replying: Replying,
    ) -> Result<(), StreamEnd> {
        let message = match self.upstream(&mut replying).await? {
            Ok(message) => message,
            Err(reply) => return self.reply(reply).await,
        };
        let origin = ResponseOrigin::of(&message);
        let Some(Message::ResponseHeaders(headers)) = message.request else {
            return Err(out_of_order("response headers"));
        };
        let has_body = call.is_watched && !headers.end_of_stream;
        let head = read_response(headers, &origin, call.is_watched)?;
        let sent = head.headers.clone();
        let (mut step, mut body) = (EnvoyStep::ResponseHeaders, None);
        if has_body {
            self.send(messages::go_on(step, None, WantedParts::All))
                .await?;
            let message = match self.upstream(&mut replying).await? {
                Ok(message) => message.request,
                Err(reply) => return self.reply(reply).await,
            };
            let Some(Message::ResponseBody(message)) = message else {
                return Err(out_of_order("the response body"));
            };
            (step, body) = (EnvoyStep::ResponseBody, Some(message.body.into()));
        }
        let response = Response::from_parts(head, StreamBody::Whole(body));
        let _ = call.response.send(response);
        self.end_recorded(step, &sent, replying.await).await
    }

    /// The next message from the upstream's side, or the reply of the layer, if the operation timed out before.
    async fn upstream(
        &mut self,
        replying: &mut Replying,
    ) -> Result<Result<ProcessingRequest, LayerReply>, StreamEnd> {
        tokio::select! {
            biased;
            reply = &mut *replying => Ok(Err(reply)),
            message = self.messages.message() => received(message).map(Ok),
        }
    }

    /// Continues with the upstream's response, which is recorded now, or replaces it by that of Refrain.
    async fn end_recorded(
        self,
        step: EnvoyStep,
        sent: &HeaderMap,
        reply: LayerReply,
    ) -> Result<(), StreamEnd> {
        let Ok(reply) = reply;
        if reply.extensions().get::<FromUpstream>().is_none() {
            return self.reply(Ok(reply)).await;
        }
        let (head, body) = reply.into_parts();
        // Its end means that the outcome is stored.
        whole(body).await?;
        let changes = messages::changes(sent, &head.headers);
        self.end_with(messages::go_on(step, changes, WantedParts::Nothing))
            .await
    }

    /// Ends the exchange with a response of Refrain.
    async fn reply(self, reply: LayerReply) -> Result<(), StreamEnd> {
        let Ok(reply) = reply;
        let (head, body) = reply.into_parts();
        let body = whole(body).await?;
        self.end_with(messages::immediate(&head, &body)).await
    }

    /// Ends the exchange with a problem.
    pub(super) async fn refuse(self, code: Code, why: &str) -> Result<(), StreamEnd> {
        let problem = self.guarding.service.problem(code, why);
        self.reply(Ok(problem)).await
    }

    async fn send(&self, message: ProcessingResponse) -> Result<(), StreamEnd> {
        self.replies.send(message).await
    }

    async fn end_with(self, message: ProcessingResponse) -> Result<(), StreamEnd> {
        self.replies.end_with(message).await
    }

    async fn next(&mut self) -> Result<ProcessingRequest, StreamEnd> {
        received(self.messages.message().await)
    }
}

fn received(
    message: Result<Option<ProcessingRequest>, Status>,
) -> Result<ProcessingRequest, StreamEnd> {
    message.ok().flatten().ok_or(StreamEnd::ByEnvoy)
}

impl Guarding {
    /// Whether the layer itself answers such requests: pages of problems, and look-ups.
    fn serves(&self, head: &request::Parts) -> bool {
        let path = head.uri.path();
        path.starts_with(LOOKUP_PATH)
            || self.problems.starts_with('/') && path.starts_with(&self.problems)
    }
}

/// The request for the layer, and the channels to its stream.
fn exchange(
    mut head: request::Parts,
    is_bodiless: bool,
    is_observed: bool,
) -> (Request<StreamBody>, ExchangeChannels) {
    let (wanted, body_wanted) = oneshot::channel();
    let (body, bytes) = oneshot::channel();
    let (sender, calls) = mpsc::channel(1);
    head.extensions.insert(ExchangeHandle {
        calls: sender,
        is_observed,
    });
    let on_demand = OnDemand {
        wanted: Some(wanted),
        bytes,
        declared: declared_length(&head.headers),
    };
    let request_body = match is_bodiless {
        true => StreamBody::Whole(None),
        false => StreamBody::OnDemand(on_demand),
    };
    let channels = ExchangeChannels {
        calls,
        body_wanted,
        body: Some(body),
    };
    (Request::from_parts(head, request_body), channels)
}

fn declared_length(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or_default()
}

/// The head of a response, with the reason if the upstream did not send it.
fn read_response(
    message: HttpHeaders,
    origin: &ResponseOrigin,
    is_watched: bool,
) -> Result<response::Parts, StreamEnd> {
    let mut head = messages::response_head(message)
        .map_err(|why| StreamEnd::Refused(Status::invalid_argument(why)))?;
    if is_watched && !origin.is_known() {
        refrain::log_rarely!(
            error,
            "Envoy does not say whether responses come from the upstream, so failures are unknown outcomes; \
             add the response_attributes of docs/operating/envoy.md to the filter"
        );
    }
    if is_watched && origin.is_retried() {
        refrain::log_rarely!(
            error,
            "Envoy sent a guarded request more than once; remove the retry_policy of the route"
        );
    }
    head.extensions.insert(FromUpstream);
    if let Some(failure) = origin.failure(head.status) {
        head.extensions.insert(failure);
    }
    Ok(head)
}

/// The whole body; an error if it was cut off because its outcome could not be stored.
async fn whole(body: Body<StreamBody>) -> Result<Bytes, StreamEnd> {
    let collected = body.collect().await.map_err(|error| {
        StreamEnd::Refused(Status::aborted(format!(
            "the response is incomplete: {error}"
        )))
    })?;
    Ok(collected.to_bytes())
}

fn out_of_order(expected: &str) -> StreamEnd {
    let message = format!(
        "unexpected message: expected {expected}; configure the Envoy filter as in docs/operating/envoy.md"
    );
    refrain::log_rarely!(error, by = expected, "{message}");
    StreamEnd::Refused(Status::failed_precondition(message))
}

//! Service in front of the layer: makes requests of all HTTP versions alike, and tracks those in progress.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header, request};
use http_body::{Body as HttpBody, Frame, SizeHint};
use refrain::http::{Body, BodyError, Code, RefrainService};
use tower_service::Service;

use super::ClientBody;
use crate::{
    admin::RefusedHeads,
    faults,
    forward::Forward,
    headers,
    upstream_body::UpstreamBody,
    watch::{Active, Client, Taking},
};

/// The service that handles a connection's requests.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) service: RefrainService<Forward>,
    pub(super) client: Arc<Client>,
    /// Counts the problem responses that this service makes itself.
    pub(super) refused_heads: RefusedHeads,
}

impl Front {
    pub(super) fn call(&mut self, mut head: request::Parts, body: ClientBody) -> Fronting {
        if let Some(fault) = faults::find(&head, !body.is_end_stream()) {
            return self.refused(Code::RequestMalformed, fault);
        }
        // Bytes for the tunnel must not be parsed as a request: the connection ends with this response.
        if head.method == Method::CONNECT {
            let detail = "CONNECT is not supported: this server opens no tunnels.";
            return self.refused(Code::MethodUnsupported, detail);
        }
        headers::normalise(&mut head);
        let asked = (head.method.clone(), head.uri.clone());
        Fronting {
            making: Making::Answer(self.service.call(Request::from_parts(head, body))),
            active: Some(Active::answering(&self.client, asked)),
        }
    }

    /// The response to a request whose head is refused.
    pub(super) fn refused(&self, code: Code, why: &str) -> Fronting {
        Fronting::made(self.refusal(code, why), Active::start(&self.client))
    }

    /// A problem response, after which the connection ends.
    fn refusal(&self, code: Code, why: &str) -> Response<Body<UpstreamBody>> {
        let labels = [("code", code.code())];
        self.refused_heads.get_or_create(&labels).inc();
        let mut response = self.service.problem(code, why);
        close_after(&mut response);
        response
    }
}

/// Ends the connection after this response.
fn close_after<B>(response: &mut Response<B>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
}

/// Future of a response.
pub(super) struct Fronting {
    making: Making,
    active: Option<Active>,
}

enum Making {
    Answer(<RefrainService<Forward> as Service<Request<ClientBody>>>::Future),
    /// The response is ready. `None` once it was returned.
    Made(Option<Box<Response<Body<UpstreamBody>>>>),
}

impl Fronting {
    fn made(answer: Response<Body<UpstreamBody>>, active: Active) -> Self {
        Self {
            making: Making::Made(Some(Box::new(answer))),
            active: Some(active),
        }
    }
}

impl Future for Fronting {
    type Output = Result<Response<FrontResponse>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match &mut self.making {
            Making::Answer(answering) => Pin::new(answering).poll(context),
            Making::Made(answer) => match answer.take() {
                Some(answer) => Poll::Ready(Ok(*answer)),
                None => Poll::Pending,
            },
        };
        polled.map_ok(|mut response| {
            let active = self.active.take();
            if let Some(active) = &active {
                active.note_status(response.status());
                if active.is_last() {
                    close_after(&mut response);
                }
            }
            let taking = active.map(Taking::start);
            response.map(|body| FrontResponse { body, taking })
        })
    }
}

/// The body of a response; the request counts as in progress until this is dropped.
pub(super) struct FrontResponse {
    body: Body<UpstreamBody>,
    taking: Option<Taking>,
}

impl HttpBody for FrontResponse {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Some(taking) = &self.taking {
            taking.note(polled.is_ready());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

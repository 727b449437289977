//! Service in front of the layer: makes requests of all HTTP versions alike, rejects heads that two servers may read
//! differently, and tracks the requests in progress.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, request,
    uri::Authority,
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use refrain::http::{Body, BodyError, ClientCertificate, Code, RefrainService};
use tower_service::Service;

use super::ClientBody;
use crate::{
    current::ConnectionService,
    forward::Forward,
    headers,
    telemetry::Telemetry,
    upstream_body::UpstreamBody,
    watch::{Active, Client, Taking},
};

/// Why the method of the preface of HTTP/2 is rejected: a server that gets it over HTTP/1 may switch protocols.
pub(super) const PRI: &str = "The method PRI is reserved for HTTP/2; send another method.";

/// The service that handles a connection's requests.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) service: Arc<ConnectionService>,
    pub(super) client: Arc<Client>,
    /// Counts the problem responses that this service makes itself.
    pub(super) telemetry: Option<Arc<Telemetry>>,
    /// Whether requests are sent below a base path, which their targets must not leave.
    pub(super) has_base: bool,
    /// The client's verified certificate.
    pub(super) certificate: Option<ClientCertificate>,
}

impl Front {
    pub(super) fn call(&self, mut head: request::Parts, body: ClientBody) -> Fronting {
        if let Some(fault) = find_fault(&head, !body.is_end_stream()) {
            return self.refused(Code::RequestMalformed, fault);
        }
        // Bytes for the tunnel must not be parsed as a request: the connection ends with this response.
        if head.method == Method::CONNECT {
            let detail = "CONNECT is not supported: this server opens no tunnels.";
            return self.refused(Code::MethodUnsupported, detail);
        }
        if self.has_base && headers::leaves_base(head.uri.path()) {
            let why = "The request target has more `..` than segments before them; remove them.";
            return self.refused(Code::RequestMalformed, why);
        }
        headers::normalise(&mut head);
        if let Some(certificate) = &self.certificate {
            head.extensions.insert(certificate.clone());
        }
        if let Some(tracer) = self.telemetry.as_ref().and_then(|it| it.tracer()) {
            tracer.begin(&mut head);
        }
        let asked = (head.method.clone(), head.uri.clone());
        let is_old = head.version == Version::HTTP_10;
        let service = self.service.get();
        let request = Request::from_parts(head, body);
        Fronting {
            making: Making::Call(Some(Box::new((service, request)))),
            active: Some(Active::answering(&self.client, asked)),
            is_old,
        }
    }

    /// The response to a request whose head is refused.
    pub(super) fn refused(&self, code: Code, why: &str) -> Fronting {
        Fronting::made(self.refusal(code, why), Active::start(&self.client))
    }

    /// A problem response, after which the connection ends.
    fn refusal(&self, code: Code, why: &str) -> Response<Body<UpstreamBody>> {
        let mut response = self.service.get().problem(code, why);
        if let Some(telemetry) = &self.telemetry {
            telemetry.head_refused(code, response.status());
        }
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
    /// Whether the client speaks HTTP/1.0.
    is_old: bool,
}

enum Making {
    /// The layer is called when this is first polled: by then hyper has read the body, if it came with the head.
    Call(Option<Box<(RefrainService<Forward>, Request<ClientBody>)>>),
    Answer(<RefrainService<Forward> as Service<Request<ClientBody>>>::Future),
    /// The response is ready. `None` once it was returned.
    Made(Option<Box<Response<Body<UpstreamBody>>>>),
}

impl Fronting {
    fn made(answer: Response<Body<UpstreamBody>>, active: Active) -> Self {
        Self {
            making: Making::Made(Some(Box::new(answer))),
            active: Some(active),
            is_old: false,
        }
    }
}

impl Future for Fronting {
    type Output = Result<Response<FrontResponse>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Making::Call(call) = &mut self.making
            && let Some(call) = call.take()
        {
            let (mut service, request) = *call;
            self.making = Making::Answer(service.call(request));
        }
        let polled = match &mut self.making {
            Making::Call(_) => Poll::Pending,
            Making::Answer(answering) => Pin::new(answering).poll(context),
            Making::Made(answer) => match answer.take() {
                Some(answer) => Poll::Ready(Ok(*answer)),
                None => Poll::Pending,
            },
        };
        polled.map_ok(|mut response| {
            let active = self.active.take();
            if let Some(active) = &active {
                active.note_response();
                active.note_status(response.status());
                let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                if active.is_last() && !is_switch {
                    close_after(&mut response);
                    if self.is_old {
                        // hyper would announce that it keeps the connection open.
                        *response.version_mut() = Version::HTTP_10;
                    }
                }
            }
            let taking = active.map(Taking::start);
            response.map(|body| FrontResponse(Some(Box::new(UnsentResponse { body, taking }))))
        })
    }
}

/// The body of a response. `None` once the last part of it was taken.
pub(super) struct FrontResponse(Option<Box<UnsentResponse>>);

/// What a response holds until it was sent: its share of the memory budget, and the request that counts as in progress.
struct UnsentResponse {
    body: Body<UpstreamBody>,
    taking: Option<Taking>,
}

/// A part of a response. hyper drops it after it was written.
pub(super) struct ResponsePart {
    bytes: Bytes,
    /// Set in the last part.
    _response: Option<Box<UnsentResponse>>,
}

impl Buf for ResponsePart {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, len: usize) {
        self.bytes.advance(len);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.bytes.copy_to_bytes(len)
    }
}

impl HttpBody for FrontResponse {
    type Data = ResponsePart;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponsePart>, BodyError>>> {
        let Some(response) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut response.body).poll_frame(context);
        if let Some(taking) = &response.taking {
            taking.note(polled.is_ready());
        }
        let frame = ready!(polled);
        let is_over = response.body.is_end_stream();
        Poll::Ready(frame.map(|frame| {
            Ok(frame?.map_data(|bytes| ResponsePart {
                bytes,
                _response: self.0.take_if(|_| is_over),
            }))
        }))
    }

    fn is_end_stream(&self) -> bool {
        let response = self.0.as_ref();
        response.is_none_or(|response| response.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let response = self.0.as_ref();
        response.map_or(SizeHint::with_exact(0), |response| {
            response.body.size_hint()
        })
    }
}

/// Returns the fault of a head, explained for the client.
fn find_fault(head: &request::Parts, has_body: bool) -> Option<&'static str> {
    in_method(&head.method)
        .or_else(|| in_body(&head.method, has_body))
        .or_else(|| in_target(&head.method, &head.uri))
        .or_else(|| in_fields(head))
}

/// The parser of HTTP/1 rejects this method itself.
fn in_method(method: &Method) -> Option<&'static str> {
    (method.as_str() == "PRI").then_some(PRI)
}

/// Rejects bodies about whose end servers disagree.
fn in_body(method: &Method, has_body: bool) -> Option<&'static str> {
    match *method {
        Method::CONNECT if has_body => Some("CONNECT must not have a body; remove it."),
        Method::TRACE if has_body => Some("TRACE must not have a body; remove it."),
        _ => None,
    }
}

fn in_target(method: &Method, uri: &Uri) -> Option<&'static str> {
    if method == Method::CONNECT {
        return None;
    }
    match (uri.scheme(), uri.authority()) {
        (_, Some(authority)) if has_user(authority) => {
            Some("The request target contains a user; send credentials in Authorization.")
        }
        (None, Some(_)) => Some("The request target is not a path; start it with a slash."),
        _ if !is_ascii(uri) => Some("The request target has non-ASCII bytes; percent-encode them."),
        _ => None,
    }
}

/// Whether the target is ASCII; servers disagree about the encoding of other bytes.
fn is_ascii(uri: &Uri) -> bool {
    let target = uri.path_and_query();
    target.is_none_or(|target| target.as_str().is_ascii())
}

fn in_fields(head: &request::Parts) -> Option<&'static str> {
    let mut host = None;
    for (name, value) in &head.headers {
        if *name == header::HOST && host.replace(value).is_some() {
            return Some("Host is sent twice; send it once.");
        }
    }
    match host {
        Some(host) if !is_host(host) => Some("Host is malformed; send HOST or HOST:PORT."),
        None if head.version == Version::HTTP_11 => Some("Host is missing; send it."),
        _ => None,
    }
}

fn is_host(host: &HeaderValue) -> bool {
    // Clients send an empty Host if their target has no host.
    let parsed = || Authority::try_from(host.as_bytes());
    is_plain(host.as_bytes()) || parsed().is_ok_and(|authority| !has_user(&authority))
}

/// Whether it consists of letters, digits, dots and hyphens, as most names do.
fn is_plain(host: &[u8]) -> bool {
    let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    host.len() < 256 && host.iter().all(is_usual)
}

fn has_user(authority: &Authority) -> bool {
    authority.as_str().contains('@')
}

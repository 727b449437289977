//! Plays Envoy: sends the parts of an exchange over gRPC, as the filter does with `BUFFERED` bodies.

use envoy_types::pb::{
    envoy::{
        config::core::v3::{HeaderMap, HeaderValue},
        extensions::filters::http::ext_proc::v3::{
            ProcessingMode,
            processing_mode::{BodySendMode, HeaderSendMode},
        },
        service::ext_proc::v3::{
            CommonResponse, HeaderMutation, HttpBody, HttpHeaders, ImmediateResponse,
            ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
            external_processor_client::ExternalProcessorClient, processing_request::Request as Ask,
            processing_response::Response as Reply,
        },
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use tokio::sync::mpsc;
use tonic::{Code, Status, Streaming, codegen::tokio_stream::Stream};

use super::support::Proxy;

/// One exchange.
pub(crate) struct Exchange {
    to: Option<mpsc::Sender<ProcessingRequest>>,
    from: Streaming<ProcessingResponse>,
}

/// The sending half as a stream.
struct Sending(mpsc::Receiver<ProcessingRequest>);

impl Stream for Sending {
    type Item = ProcessingRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<ProcessingRequest>> {
        self.0.poll_recv(context)
    }
}

impl Exchange {
    pub(crate) async fn open(server: &Proxy) -> Self {
        let url = format!("http://{}", server.address);
        let mut client = ExternalProcessorClient::connect(url).await.unwrap();
        let (to, sending) = mpsc::channel(8);
        let from = client.process(Sending(sending)).await.unwrap().into_inner();
        Self { to: Some(to), from }
    }

    pub(crate) async fn send(&self, message: ProcessingRequest) {
        self.to.as_ref().unwrap().send(message).await.unwrap();
    }

    /// The next reply.
    pub(crate) async fn next(&mut self) -> ProcessingResponse {
        self.from.message().await.unwrap().expect("a reply")
    }

    /// How the server ended the stream: in order, or with a code.
    pub(crate) async fn end(mut self) -> Option<Code> {
        match self.from.message().await {
            Ok(None) => None,
            Ok(Some(message)) => panic!("not the end: {message:?}"),
            Err(status) => Some(Status::code(&status)),
        }
    }

    /// Sends a `POST` with this key and body; the reply is what the filter does with it.
    pub(crate) async fn post(server: &Proxy, key: &str, body: &str) -> (Self, ProcessingResponse) {
        let mut exchange = Self::open(server).await;
        exchange
            .send(request(&[("idempotency-key", key)], false))
            .await;
        let asked = exchange.next().await;
        let Some(Reply::RequestHeaders(_)) = &asked.response else {
            return (exchange, asked);
        };
        let mode = asked.mode_override.expect("the body is asked for");
        assert_eq!(mode.request_body_mode(), BodySendMode::Buffered);
        exchange.send(request_body(body)).await;
        let reply = exchange.next().await;
        (exchange, reply)
    }

    /// Sends the upstream's response; the reply is what the client gets.
    pub(crate) async fn respond(
        &mut self,
        status: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> ProcessingResponse {
        self.send(response(
            status,
            headers,
            body.is_empty(),
            "via_upstream",
            0,
        ))
        .await;
        let reply = self.next().await;
        if body.is_empty() {
            return reply;
        }
        let Some(Reply::ResponseHeaders(_)) = &reply.response else {
            return reply;
        };
        self.send(response_body(body)).await;
        self.next().await
    }
}

/// A request to the guarded operation.
pub(crate) fn request(headers: &[(&str, &str)], is_bodiless: bool) -> ProcessingRequest {
    request_to("POST", "/v1/payments", headers, is_bodiless)
}

pub(crate) fn request_to(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    is_bodiless: bool,
) -> ProcessingRequest {
    let pseudo = [
        (":method", method),
        (":path", path),
        (":authority", "shop.example"),
        (":scheme", "http"),
    ];
    let ask = Ask::RequestHeaders(head(pseudo.iter().chain(headers), is_bodiless));
    ProcessingRequest {
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: BodySendMode::Streamed.into(),
            response_body_mode: BodySendMode::Buffered.into(),
            ..ProtocolConfiguration::default()
        }),
        ..message(ask)
    }
}

pub(crate) fn request_body(body: &str) -> ProcessingRequest {
    message(Ask::RequestBody(whole(body)))
}

/// Response headers, with what Envoy says about their origin.
pub(crate) fn response(
    status: &str,
    headers: &[(&str, &str)],
    is_bodiless: bool,
    details: &str,
    flags: u32,
) -> ProcessingRequest {
    let pseudo = [(":status", status)];
    let ask = Ask::ResponseHeaders(head(pseudo.iter().chain(headers), is_bodiless));
    let attributes = [
        ("response.code_details", Kind::StringValue(details.into())),
        ("response.flags", Kind::NumberValue(flags.into())),
        ("upstream.request_attempt_count", Kind::NumberValue(1.0)),
    ];
    let fields = attributes.map(|(name, kind)| (name.to_owned(), Value { kind: Some(kind) }));
    let space = Struct {
        fields: fields.into(),
    };
    ProcessingRequest {
        attributes: [("envoy.filters.http.ext_proc".to_owned(), space)].into(),
        ..message(ask)
    }
}

pub(crate) fn response_body(body: &str) -> ProcessingRequest {
    message(Ask::ResponseBody(whole(body)))
}

fn message(ask: Ask) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(ask),
        ..ProcessingRequest::default()
    }
}

fn whole(body: &str) -> HttpBody {
    HttpBody {
        body: body.into(),
        end_of_stream: true,
        ..HttpBody::default()
    }
}

fn head<'h>(
    fields: impl Iterator<Item = &'h (&'h str, &'h str)>,
    is_bodiless: bool,
) -> HttpHeaders {
    let headers = fields.map(|(key, value)| HeaderValue {
        key: (*key).into(),
        value: String::new(),
        raw_value: (*value).into(),
    });
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: headers.collect(),
        }),
        end_of_stream: is_bodiless,
        ..HttpHeaders::default()
    }
}

/// The change of headers with which the exchange continues.
pub(crate) fn continued(reply: &ProcessingResponse) -> HeaderMutation {
    let common: Option<CommonResponse> = match reply.response.clone().expect("a response") {
        Reply::RequestHeaders(it) | Reply::ResponseHeaders(it) => it.response,
        Reply::RequestBody(it) | Reply::ResponseBody(it) => it.response,
        other => panic!("not continued: {other:?}"),
    };
    let common = common.unwrap_or_default();
    assert_eq!(common.body_mutation, None, "the body is passed on as it is");
    common.header_mutation.unwrap_or_default()
}

/// The value that a header gets.
pub(crate) fn set(mutation: &HeaderMutation, name: &str) -> Option<String> {
    let mut headers = mutation
        .set_headers
        .iter()
        .filter_map(|it| it.header.as_ref());
    let found = headers.find(|header| header.key == name)?;
    Some(String::from_utf8(found.raw_value.clone()).unwrap())
}

/// The response of Refrain itself.
pub(crate) fn immediate(reply: ProcessingResponse) -> ImmediateResponse {
    match reply.response.expect("a response") {
        Reply::ImmediateResponse(response) => response,
        other => panic!("no immediate response: {other:?}"),
    }
}

/// Status and problem code of the response of Refrain itself.
pub(crate) fn problem(reply: ProcessingResponse) -> (i32, String) {
    let response = immediate(reply);
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    (
        response.status.unwrap().code,
        body["code"].as_str().unwrap().into(),
    )
}

/// Whether Envoy is told to send nothing more.
pub(crate) fn is_left_alone(mode: &ProcessingMode) -> bool {
    mode.request_body_mode() == BodySendMode::None
        && mode.response_body_mode() == BodySendMode::None
        && mode.response_header_mode() == HeaderSendMode::Skip
}

//! Converts between HTTP and the messages of Envoy's protocol, and builds the messages that Refrain sends.

use bytes::Bytes;
use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            HeaderMap as EnvoyHeaders, HeaderValue as EnvoyHeader, HeaderValueOption,
            header_value_option::HeaderAppendAction,
        },
        extensions::filters::http::ext_proc::v3::{
            ProcessingMode,
            processing_mode::{BodySendMode, HeaderSendMode},
        },
        service::ext_proc::v3::{
            BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpHeaders,
            ImmediateResponse, ProcessingResponse, ProtocolConfiguration,
            processing_response::Response as Reply,
        },
        r#type::v3::HttpStatus,
    },
    google::protobuf::BoolValue,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
    request, response,
};

/// Headers that Envoy itself writes into an immediate response.
const WRITTEN_BY_ENVOY: [HeaderName; 3] = [
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
];

/// The message of Envoy that the next reply belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnvoyStep {
    RequestHeaders,
    RequestBody,
    ResponseHeaders,
    ResponseBody,
}

/// Which further parts of an exchange Envoy sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedParts {
    /// Both bodies and the response headers.
    All,
    /// The response headers only.
    ResponseHeaders,
    /// None.
    Nothing,
}

impl WantedParts {
    fn mode(self) -> ProcessingMode {
        let (headers, body) = match self {
            Self::All => (HeaderSendMode::Send, BodySendMode::Buffered),
            Self::ResponseHeaders => (HeaderSendMode::Send, BodySendMode::None),
            Self::Nothing => (HeaderSendMode::Skip, BodySendMode::None),
        };
        ProcessingMode {
            request_header_mode: HeaderSendMode::Send.into(),
            response_header_mode: headers.into(),
            request_body_mode: body.into(),
            response_body_mode: body.into(),
            request_trailer_mode: HeaderSendMode::Skip.into(),
            response_trailer_mode: HeaderSendMode::Skip.into(),
        }
    }
}

/// Lets the exchange continue with changed headers. Envoy applies `parts` only in reply to headers.
pub(super) fn go_on(
    step: EnvoyStep,
    headers: Option<HeaderMutation>,
    parts: WantedParts,
) -> ProcessingResponse {
    let response = Some(CommonResponse {
        header_mutation: headers,
        ..CommonResponse::default()
    });
    let reply = match step {
        EnvoyStep::RequestHeaders => Reply::RequestHeaders(HeadersResponse { response }),
        EnvoyStep::RequestBody => Reply::RequestBody(BodyResponse { response }),
        EnvoyStep::ResponseHeaders => Reply::ResponseHeaders(HeadersResponse { response }),
        EnvoyStep::ResponseBody => Reply::ResponseBody(BodyResponse { response }),
    };
    let is_headers = matches!(step, EnvoyStep::RequestHeaders | EnvoyStep::ResponseHeaders);
    ProcessingResponse {
        response: Some(reply),
        mode_override: is_headers.then(|| parts.mode()),
        ..ProcessingResponse::default()
    }
}

/// Ends the exchange with this response, which Envoy sends to the client.
pub(super) fn immediate(head: &response::Parts, body: &Bytes) -> ProcessingResponse {
    let mut headers = HeaderMutation::default();
    for name in head
        .headers
        .keys()
        .filter(|it| !WRITTEN_BY_ENVOY.contains(it))
    {
        set(&mut headers, name, &head.headers);
    }
    if !head.headers.contains_key(header::CONTENT_TYPE) {
        headers
            .remove_headers
            .push(header::CONTENT_TYPE.to_string());
    }
    let response = ImmediateResponse {
        status: Some(HttpStatus {
            code: head.status.as_u16().into(),
        }),
        headers: Some(headers),
        body: body.to_vec(),
        grpc_status: None,
        details: "refrain".into(),
    };
    ProcessingResponse {
        response: Some(Reply::ImmediateResponse(response)),
        ..ProcessingResponse::default()
    }
}

/// The changes that turn the headers `from` into `to`; `None` if they are equal.
pub(super) fn changes(from: &HeaderMap, to: &HeaderMap) -> Option<HeaderMutation> {
    let mut changes = HeaderMutation::default();
    let is_equal = |name: &HeaderName| from.get_all(name).iter().eq(to.get_all(name).iter());
    for name in to.keys().filter(|name| !is_equal(name)) {
        set(&mut changes, name, to);
    }
    let gone = from.keys().filter(|name| !to.contains_key(*name));
    changes.remove_headers = gone.map(ToString::to_string).collect();
    let is_empty = changes.set_headers.is_empty() && changes.remove_headers.is_empty();
    (!is_empty).then_some(changes)
}

/// The changes that remove these headers; `None` if there are none.
pub(super) fn removing<'h>(names: impl Iterator<Item = &'h HeaderName>) -> Option<HeaderMutation> {
    let changes = HeaderMutation {
        remove_headers: names.map(ToString::to_string).collect(),
        ..HeaderMutation::default()
    };
    (!changes.remove_headers.is_empty()).then_some(changes)
}

/// Replaces the values of a header.
fn set(changes: &mut HeaderMutation, name: &HeaderName, headers: &HeaderMap) {
    let values = headers.get_all(name).iter().enumerate();
    changes.set_headers.extend(values.map(|(at, value)| {
        let action = match at {
            0 => HeaderAppendAction::OverwriteIfExistsOrAdd,
            _ => HeaderAppendAction::AppendIfExistsOrAdd,
        };
        option(name, value, action)
    }));
}

#[expect(deprecated, reason = "Envoy reads `append` for values after the first")]
fn option(name: &HeaderName, value: &HeaderValue, action: HeaderAppendAction) -> HeaderValueOption {
    let is_appended = action == HeaderAppendAction::AppendIfExistsOrAdd;
    HeaderValueOption {
        header: Some(EnvoyHeader {
            key: name.as_str().into(),
            value: String::new(),
            raw_value: value.as_bytes().to_vec(),
        }),
        append: is_appended.then_some(BoolValue { value: true }),
        append_action: action.into(),
        keep_empty_value: true,
    }
}

/// Why a request head is rejected, explained for the client.
pub(super) type Malformed = &'static str;

/// The head of a request, as the client sent it to Envoy.
pub(super) fn request_head(message: HttpHeaders) -> Result<request::Parts, Malformed> {
    let (pseudo, headers) = split(message.headers.unwrap_or_default())?;
    let find = |name: &str| pseudo.iter().find(|(it, _)| it == name);
    let value = |name| find(name).map_or(&[][..], |(_, value)| value);
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = Method::from_bytes(value(":method")).map_err(|_| "The method is malformed.")?;
    head.uri = target(value(":path"))?;
    head.headers = headers;
    if let Some((_, host)) = find(":authority") {
        let host = HeaderValue::from_bytes(host).map_err(|_| "Host is malformed.")?;
        head.headers.insert(header::HOST, host);
    }
    Ok(head)
}

fn target(path: &[u8]) -> Result<Uri, Malformed> {
    match path.is_ascii() && !path.contains(&b'#') && path.starts_with(b"/") || path == b"*" {
        true => Uri::try_from(path).map_err(|_| "The request target is malformed."),
        false => {
            Err("The request target is not a path, or has bytes that must be percent-encoded.")
        }
    }
}

/// The head of a response.
pub(super) fn response_head(message: HttpHeaders) -> Result<response::Parts, Malformed> {
    let (pseudo, headers) = split(message.headers.unwrap_or_default())?;
    let status = pseudo.iter().find(|(name, _)| name == ":status");
    let status = status.and_then(|(_, value)| StatusCode::from_bytes(value).ok());
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = status.ok_or("The status is malformed.")?;
    head.headers = headers;
    Ok(head)
}

/// Names and values of pseudo-headers, such as `:path`.
type PseudoHeaders = Vec<(String, Vec<u8>)>;

fn split(envoy: EnvoyHeaders) -> Result<(PseudoHeaders, HeaderMap), Malformed> {
    let (mut pseudo, mut headers) = (PseudoHeaders::new(), HeaderMap::new());
    for EnvoyHeader {
        key,
        value,
        raw_value,
    } in envoy.headers
    {
        // Envoy sends the value in one of the two fields, which one depends on its version.
        let value = match raw_value.is_empty() {
            true => value.into_bytes(),
            false => raw_value,
        };
        if key.starts_with(':') {
            pseudo.push((key, value));
            continue;
        }
        let name = HeaderName::try_from(key).map_err(|_| "The name of a header is malformed.")?;
        let value = HeaderValue::try_from(value).map_err(|_| "A header is malformed.")?;
        headers.append(name, value);
    }
    Ok((pseudo, headers))
}

/// Why the filter's configuration cannot guard anything; `None` if it can.
pub(super) fn fault_in(filter: &ProtocolConfiguration) -> Option<String> {
    use BodySendMode::{Buffered, Streamed};
    let request = filter.request_body_mode();
    if !matches!(request, Streamed | Buffered) {
        return Some(fault("request_body_mode", request, Streamed));
    }
    let response = filter.response_body_mode();
    (response != Buffered).then(|| fault("response_body_mode", response, Buffered))
}

fn fault(name: &str, mode: BodySendMode, needed: BodySendMode) -> String {
    let (mode, needed) = (mode.as_str_name(), needed.as_str_name());
    format!("the Envoy filter has {name}: {mode}; write {name}: {needed} in its processing_mode")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let pairs = fields.iter().map(|(name, value)| {
            let name: HeaderName = name.parse().expect("a name");
            (name, value.parse().expect("a value"))
        });
        pairs.fold(
            HeaderMap::new(),
            |mut all, (name, value): (_, HeaderValue)| {
                all.append(name, value);
                all
            },
        )
    }

    /// What Envoy would have after a mutation.
    fn applied(mut from: HeaderMap, changes: HeaderMutation) -> HeaderMap {
        for name in changes.remove_headers {
            from.remove(&name);
        }
        for option in changes.set_headers {
            let action = option.append_action();
            let header = option.header.expect("a header");
            let name: HeaderName = header.key.parse().expect("a name");
            let value = HeaderValue::try_from(header.raw_value).expect("a value");
            match action {
                HeaderAppendAction::AppendIfExistsOrAdd => drop(from.append(name, value)),
                _ => drop(from.insert(name, value)),
            }
        }
        from
    }

    #[test]
    fn the_changes_turn_one_head_into_the_other() {
        let cases: [(&[(&str, &str)], &[(&str, &str)]); 5] = [
            (&[("a", "1")], &[("a", "1"), ("refrain-attempt", "1")]),
            (
                &[("a", "1"), ("refrain-attempt", "9")],
                &[("a", "1"), ("refrain-attempt", "1")],
            ),
            (&[("refrain-outcome", "keep"), ("b", "")], &[("b", "")]),
            (
                &[("link", "1"), ("link", "2")],
                &[("link", "2"), ("link", "3"), ("link", "")],
            ),
            (&[("link", "1")], &[]),
        ];
        for (from, to) in cases {
            let (from, to) = (headers(from), headers(to));
            let changes = changes(&from, &to).expect("they differ");
            assert_eq!(applied(from, changes), to);
        }
        let same = headers(&[("link", "1"), ("link", "2")]);
        assert_eq!(changes(&same, &same), None);
    }

    #[test]
    fn heads_that_two_servers_may_read_differently_are_rejected() {
        let head = |path: &str| {
            let fields = [(":method", "POST"), (":path", path), (":authority", "shop")];
            let headers = fields.map(|(key, value)| EnvoyHeader {
                key: key.into(),
                value: String::new(),
                raw_value: value.into(),
            });
            let headers = Some(EnvoyHeaders {
                headers: headers.into(),
            });
            request_head(HttpHeaders {
                headers,
                ..HttpHeaders::default()
            })
        };
        for path in ["", "a", "/a#b", "/\u{e4}", "http://other/a", "/a b"] {
            assert!(head(path).is_err(), "{path:?}");
        }
        let head = head("/a?b").expect("a head");
        assert_eq!(
            (head.uri.to_string(), &head.headers["host"]),
            ("/a?b".into(), &HeaderValue::from_static("shop"))
        );
    }
}

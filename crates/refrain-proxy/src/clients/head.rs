//! Checks the head of a request before hyper parses it.
//!
//! hyper accepts some heads that another server may read differently, such as one with two equal `Content-Length` fields,
//! and rejects others without saying why. Here each of them gets a problem response.

use std::mem::MaybeUninit;

use http::{Uri, header};
use refrain::http::Code;
use refrain_http1::{Broken, Framing, Limits, Lines, Said, check_start, head_end, parsed};

use crate::faults;

/// Longest target that is accepted: the limit of the `http` crate.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// A head that passed the check.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckedHead {
    /// Length of the head in bytes.
    pub(super) len: usize,
    /// Framing of the body after it.
    pub(super) framing: Framing,
    /// Whether no other request may follow: the head has both `Transfer-Encoding`, which takes precedence, and `Content-Length`.
    pub(super) is_last: bool,
}

/// Why a head is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusedHead {
    pub(super) code: Code,
    /// Explanation for the client.
    pub(super) why: &'static str,
}

impl RefusedHead {
    fn new(code: Code, why: &'static str) -> Self {
        Self { code, why }
    }

    /// The head did not arrive in time.
    pub(super) fn timed_out() -> Self {
        let why = "The request head did not arrive in time. Nothing was executed.";
        Self::new(Code::RequestTimeout, why)
    }
}

impl From<Broken> for RefusedHead {
    fn from(Broken(why): Broken) -> Self {
        Self::new(Code::RequestMalformed, why)
    }
}

/// State of the check that a connection keeps between reads.
#[derive(Debug, Default)]
pub(super) struct HeadCheck {
    /// Offset of the first line that is not complete yet.
    start: usize,
}

impl HeadCheck {
    /// Checks the head at the front of the input; `None` if it is incomplete.
    ///
    /// # Errors
    /// When the head is malformed, over a limit, or ambiguous.
    pub(super) fn check(
        &mut self,
        input: &[u8],
        limits: Limits,
    ) -> Result<Option<CheckedHead>, RefusedHead> {
        if self.start == 0 {
            check_start(input)?;
        }
        // Servers have always accepted requests whose lines end with LF alone; they are forwarded with CR LF.
        let end = head_end(input, &mut self.start, Lines::Either)?;
        if end.unwrap_or(input.len()) > limits.bytes_max {
            return Err(too_large(input, limits));
        }
        let Some(end) = end else {
            return Ok(None);
        };
        self.start = 0;
        let head = &input[..end];
        parsed(limits.fields_max, |fields| check(head, fields).map(Some))
    }
}

/// The refusal for a head that is too large, depending on which part is.
fn too_large(head: &[u8], limits: Limits) -> RefusedHead {
    let line = head.iter().position(|byte| *byte == b'\n');
    let first = line.unwrap_or(head.len());
    if first > TARGET_BYTES_MAX.min(limits.bytes_max) {
        return target_too_long();
    }
    let why = "The request head is too large; send fewer or shorter headers.";
    RefusedHead::new(Code::HeadTooLarge, why)
}

fn target_too_long() -> RefusedHead {
    let why = "The request target is too long; send a shorter one.";
    RefusedHead::new(Code::TargetTooLong, why)
}

fn check<'h>(
    head: &'h [u8],
    fields: &mut [MaybeUninit<httparse::Header<'h>>],
) -> Result<CheckedHead, RefusedHead> {
    let mut parsed = httparse::Request::new(&mut []);
    let complete = httparse::ParserConfig::default()
        .parse_request_with_uninit_headers(&mut parsed, head, fields)
        .map_err(refused)?;
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Broken("The request line is malformed.").into());
    };
    if complete != httparse::Status::Complete(head.len()) {
        return Err(Broken("The end of the request head is ambiguous.").into());
    }
    if method == "PRI" {
        return Err(Broken(faults::PRI).into());
    }
    check_target(target)?;
    let said = said(parsed.headers)?;
    if said.is_chunked && version == 0 {
        let why = "HTTP/1.0 has no chunked encoding; send Content-Length.";
        return Err(Broken(why).into());
    }
    Ok(CheckedHead {
        len: head.len(),
        framing: match said.is_chunked {
            true => Framing::chunked(),
            false => Framing::Length(said.length.unwrap_or(0)),
        },
        is_last: said.is_chunked && said.length.is_some(),
    })
}

fn refused(error: httparse::Error) -> RefusedHead {
    let why = match error {
        httparse::Error::TooManyHeaders => {
            let why = "The request has too many headers; send fewer.";
            return RefusedHead::new(Code::HeadTooLarge, why);
        }
        httparse::Error::HeaderName => "A header name is malformed.",
        httparse::Error::HeaderValue | httparse::Error::NewLine => "A header line is malformed.",
        httparse::Error::Version => "The HTTP version is not supported; send HTTP/1.1.",
        _ => "The request line is malformed.",
    };
    Broken(why).into()
}

fn check_target(target: &str) -> Result<(), RefusedHead> {
    if target.len() > TARGET_BYTES_MAX {
        return Err(target_too_long());
    }
    // Most targets are plain paths, which need no parser.
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~%?=&".contains(&byte);
    if target.starts_with('/') && target.bytes().all(is_usual) {
        return Ok(());
    }
    // The `http` crate would drop the fragment, and the client's intent would be lost.
    if target.contains('#') {
        return Err(Broken("The request target has a fragment; remove it.").into());
    }
    match Uri::try_from(target) {
        Ok(_) => Ok(()),
        Err(_) => Err(Broken("The request target is malformed.").into()),
    }
}

/// What the fields say about the length of the body.
fn said(fields: &[httparse::Header<'_>]) -> Result<Said, Broken> {
    let mut said = Said::default();
    for field in fields {
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
            if field.name.eq_ignore_ascii_case(name.as_str()) {
                said.hear(&name, field.value)?;
            }
        }
    }
    Ok(said)
}

//! The stream that hyper reads: one whole request at a time, and the same bytes however they arrive.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll};

use bytes::BytesMut;
use proptest::prelude::*;
use refrain::http::Code;
use refrain_http1::{Input, Limits, Step};
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf},
    net::{TcpListener, TcpStream},
};

use crate::{
    clients::checked::{CheckedStream, HeadCheck, Refusal},
    stream::Io,
    watch::{Active, Client, Watch},
};

const LIMITS: Limits = Limits {
    bytes_max: 1 << 10,
    fields_max: 8,
};

/// A client, and the stream that hyper would read.
struct Pair {
    client: TcpStream,
    stream: CheckedStream,
    refusal: Arc<Refusal>,
    state: Arc<Client>,
}

impl Pair {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let state = Arc::<Watch>::default().open();
        let refusal = Arc::<Refusal>::default();
        let input = Input::default();
        let stream = CheckedStream::new(Io::Plain(stream), input, &state, LIMITS, refusal.clone());
        Self {
            client,
            stream,
            refusal,
            state,
        }
    }

    /// The bytes that are passed before the current request is answered, the connection ends, or the stream fails.
    async fn passed(&mut self) -> Vec<u8> {
        let mut passed = Vec::new();
        poll_fn(|context| {
            loop {
                let mut bytes = [0; 64];
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                    Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                        passed.extend_from_slice(buffer.filled());
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending if self.stream.is_withheld() => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        passed
    }

    fn answer(&self) {
        drop(Active::start(&self.state));
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).await.unwrap();
    }
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test)
}

/// What each request of a connection passed, and the code of the refusal at its end.
fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (Vec<Vec<u8>>, Option<Code>) {
    run(async {
        let mut pair = Pair::new().await;
        for piece in pieces {
            pair.write(piece).await;
            tokio::task::yield_now().await;
        }
        pair.client.shutdown().await.unwrap();
        let mut requests = Vec::new();
        loop {
            let passed = pair.passed().await;
            if let Some(refused) = pair.refusal.take() {
                assert!(passed.starts_with(b"GET / HTTP/1.1\r\n\r\n"));
                return (requests, Some(refused.code));
            }
            if passed.is_empty() {
                return (requests, None);
            }
            requests.push(passed);
            pair.answer();
        }
    })
}

const FIRST: &str = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
const NEXT: &str = "GET /next HTTP/1.1\r\nhost: a\r\n\r\n";

#[test]
fn next_request_is_withheld_until_the_current_one_is_answered() {
    let all = format!("{FIRST}{NEXT}{NEXT}");
    let (requests, refused) = read([all.as_bytes()]);
    assert_eq!(requests, [FIRST, NEXT, NEXT].map(str::as_bytes));
    assert_eq!(refused, None);
}

#[test]
fn chunks_are_passed_without_extensions() {
    let head = "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for (body, passed) in [
        ("0\r\n\r\n", "0\r\n\r\n"),
        ("2;a=\"b\"\r\nok\r\n00;x\r\n\r\n", "2\r\nok\r\n0\r\n\r\n"),
        (
            "0A \r\n0123456789\r\n0\r\nX-Sum: 7\r\n\r\n",
            "a\r\n0123456789\r\n0\r\nx-sum: 7\r\n\r\n",
        ),
    ] {
        let (requests, refused) = read([format!("{head}{body}{NEXT}").as_bytes()]);
        let expected = [format!("{head}{passed}"), NEXT.to_owned()];
        assert_eq!(requests, expected.map(String::into_bytes), "{body}");
        assert_eq!(refused, None);
    }
}

#[test]
fn malformed_chunks_are_an_error_and_nothing_follows() {
    let head = "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let long = format!("1;{}\r\nx\r\n", "e".repeat(1_000)).repeat(17);
    for body in [
        "x\r\n",
        "2\nok\r\n",
        "2\r\nokx",
        "1\r\no\n",
        "-1\r\n",
        &long,
    ] {
        run(async {
            let mut pair = Pair::new().await;
            pair.write(format!("{head}{body}{NEXT}").as_bytes()).await;
            let mut passed = Vec::new();
            let error = pair.stream.read_to_end(&mut passed).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{body:?}");
            assert!(!passed.ends_with(NEXT.as_bytes()), "{body:?}");
        });
    }
}

#[test]
fn refused_head_is_replaced_after_the_requests_before_it() {
    for bad in [
        "\r\n",
        "GET /a HTTP/1.1\r\na b: c\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\n",
    ] {
        let (requests, refused) = read([format!("{FIRST}{bad}{NEXT}").as_bytes()]);
        assert_eq!(requests, [FIRST.as_bytes()], "{bad:?}");
        assert_eq!(refused, Some(Code::RequestMalformed), "{bad:?}");
    }
}

#[test]
fn nothing_follows_a_request_with_both_lengths() {
    let both =
        "POST /a HTTP/1.1\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let (requests, refused) = read([format!("{both}{NEXT}").as_bytes()]);
    assert_eq!((requests, refused), (vec![both.as_bytes().to_vec()], None));
}

#[test]
fn connection_is_quiet_only_after_whole_requests() {
    run(async {
        for (bytes, is_quiet) in [
            ("", true),
            (FIRST, true),
            (NEXT, true),
            (&FIRST[..FIRST.len() - 1], false),
            (&format!("{NEXT}G"), false),
            (&format!("{NEXT}{NEXT}"), false),
        ] {
            let mut pair = Pair::new().await;
            pair.write(bytes.as_bytes()).await;
            pair.client.shutdown().await.unwrap();
            pair.passed().await;
            assert_eq!(pair.stream.is_quiet(), is_quiet, "{bytes:?}");
        }
    });
}

/// Valid and nearly valid requests, one after the other.
fn requests() -> impl Strategy<Value = String> {
    let start = prop_oneof![
        6 => Just("POST /a HTTP/1.1\r\n"),
        1 => Just("POST /a HTTP/1.1\n"),
        1 => Just("GET http://b/c?d HTTP/1.0\r\n"),
        1 => Just("\r\nGET / HTTP/1.1\r\n"),
        1 => Just("GET / HTTP/1.1 \r\n"),
    ];
    let field = prop_oneof![
        Just("content-length: 5\r\n"),
        Just("transfer-encoding: chunked\r\n"),
        Just("connection: close\r\n"),
        Just("x-a: b\r\n"),
        Just("X-Long-Name: b\n"),
        Just("x a: b\r\n"),
    ];
    let body = prop_oneof![
        Just(""),
        Just("hello"),
        Just("5\r\nhello\r\n0\r\n\r\n"),
        Just("0\r\n\r\n"),
        Just("\r\n"),
    ];
    let fields = prop::collection::vec(field, 0..3);
    let request = (start, fields, body)
        .prop_map(|(start, fields, body)| format!("{start}{}\r\n{body}", fields.concat()));
    prop::collection::vec(request, 1..4).prop_map(|requests| requests.concat())
}

/// The heads and bodies that were passed. How the bytes arrive decides where chunks are cut, not what they contain.
fn contents((requests, refused): (Vec<Vec<u8>>, Option<Code>)) -> (Vec<Vec<u8>>, Option<Code>) {
    let content = |request: Vec<u8>| {
        let Ok(Some(head)) = HeadCheck::default().check(&request, LIMITS) else {
            return request;
        };
        let (mut framing, mut input) = (head.framing, BytesMut::from(&request[head.len..]));
        let mut content = request[..head.len].to_vec();
        while let Ok(Step::Data(data)) = framing.next(&mut input) {
            content.extend_from_slice(&data);
        }
        content.extend_from_slice(if framing.is_over() { b"over" } else { b"cut" });
        content
    };
    (requests.into_iter().map(content).collect(), refused)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_of_the_bytes_passes_the_same_requests(
        requests in requests(),
        cuts in prop::collection::vec(0_usize..400, 0..20),
    ) {
        let bytes = requests.as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
        prop_assert_eq!(contents(read(pieces)), contents(read([bytes])));
    }
}

//! Records decode as encoded, and invalid bytes are rejected.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use proptest::{collection::vec, prelude::*};

use super::codec::{self, Answered, Intent, Record};
use crate::{
    Fingerprint, Key,
    client::moment::Moment,
    clock::{Steady, Timestamp},
    log::frame::FramePosition,
};

fn key() -> impl Strategy<Value = Key> {
    "[!-~]{1,255}".prop_map(|text| Key::new(text).unwrap())
}

fn moment() -> impl Strategy<Value = Moment> {
    any::<(u64, Option<[u8; 16]>, u64)>().prop_map(|(wall, boot, millis)| Moment {
        wall: Timestamp(wall),
        steady: Steady { boot, millis },
    })
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    let value = vec(prop_oneof![Just(b'\t'), 32_u8..127, 128_u8..], 0..40);
    vec(("[a-z0-9-]{1,20}", value), 0..8).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::try_from(name).unwrap();
            headers.append(name, HeaderValue::from_bytes(&value).unwrap());
        }
        headers
    })
}

fn body() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..600).prop_map(Bytes::from)
}

fn request() -> impl Strategy<Value = Request<Bytes>> {
    let uri = "https?://[a-z]{1,9}(:[1-9][0-9]{0,3})?/[a-z0-9/%.-]{0,30}(\\?[a-z=&]{0,9})?";
    let method = prop_oneof![Just("POST"), Just("PATCH"), Just("DELETE"), Just("BREW")];
    (method, uri, headers(), body()).prop_map(|(method, uri, headers, body)| {
        let mut request = Request::new(body);
        *request.method_mut() = Method::try_from(method).unwrap();
        *request.uri_mut() = uri.parse().unwrap();
        *request.headers_mut() = headers;
        request
    })
}

fn record() -> impl Strategy<Value = Record> {
    let left_out = vec(
        "[a-z-]{1,20}".prop_map(|it| HeaderName::try_from(it).unwrap()),
        0..4,
    );
    let fingerprint = || any::<[u8; 16]>().prop_map(Fingerprint);
    let intent = (
        key(),
        fingerprint(),
        moment(),
        any::<u64>(),
        left_out,
        request(),
    )
        .prop_map(|(key, fingerprint, created, deadline, left_out, request)| {
            Record::Intent(Box::new(Intent {
                key,
                fingerprint,
                created,
                deadline: Duration::from_millis(deadline),
                left_out,
                request,
            }))
        });
    let answered = (
        key(),
        fingerprint(),
        moment(),
        100_u16..1_000,
        headers(),
        body(),
    )
        .prop_map(|(key, fingerprint, at, status, headers, body)| {
            let mut response = Response::new(body);
            *response.status_mut() = status.try_into().unwrap();
            *response.headers_mut() = headers;
            Record::Answered(Box::new(Answered {
                key,
                fingerprint,
                at,
                response,
            }))
        });
    let dropped = (key(), moment(), ".{0,40}").prop_map(|(key, at, reason)| Record::Dropped {
        key,
        at,
        reason,
    });
    prop_oneof![intent, answered, dropped]
}

/// A release that wrote other bytes could not read the journals of earlier ones.
#[test]
fn frame_has_the_bytes_of_earlier_releases() {
    let place = FramePosition {
        seed: 0x5eed,
        start: 48,
        ordinal: 3,
    };
    let (frame, ranges) = codec::assemble([&b"one"[..], &[0; 1_200]], place);
    let header = [
        b"rJn1".as_slice(),
        &1_235_u32.to_le_bytes(),
        &3_u64.to_le_bytes(),
        &1_u32.to_le_bytes(),
        &0x041e_5664_u32.to_le_bytes(),
    ];
    assert_eq!(frame[..24], header.concat());
    assert_eq!((frame.len(), crc32fast::hash(&frame)), (1_235, 0x7728_3a7f));
    assert_eq!(ranges, [25..28, 30..1_230]);
}

proptest! {
    #[test]
    fn records_read_back_as_they_were_written(record in record()) {
        let bytes = record.encode();
        let read = Record::decode(&bytes).unwrap();
        prop_assert_eq!(read.encode(), bytes);
        prop_assert_eq!(format!("{read:?}"), format!("{record:?}"));
    }

    #[test]
    fn rejects_truncated_or_overlong_records(record in record(), cut in any::<prop::sample::Index>()) {
        let bytes = record.encode();
        prop_assert!(Record::decode(&bytes.slice(..cut.index(bytes.len()))).is_none());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(Record::decode(&longer.into()).is_none());
    }

    #[test]
    fn arbitrary_bytes_decode_safely(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Record::decode(&bytes.into());
    }
}

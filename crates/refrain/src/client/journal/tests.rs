//! Records and frames decode as encoded, and invalid bytes are rejected.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use proptest::{collection::vec, prelude::*};

use super::{
    codec::{Answered, Intent, Record},
    frame::{self, Found, JournalFramePosition},
};
use crate::{
    Fingerprint, Key,
    client::moment::Moment,
    clock::{Steady, Timestamp},
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

fn place(start: usize, ordinal: u64) -> JournalFramePosition {
    JournalFramePosition {
        seed: 0x5eed,
        start,
        ordinal,
    }
}

/// Builds a file of these frames; returns it with the end of each frame.
fn file(frames: &[Vec<Bytes>]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut ends) = (vec![7; 48], Vec::new());
    for (ordinal, records) in (0..).zip(frames) {
        let records = records.iter().map(|it| &it[..]);
        let (frame, _) = frame::assemble(records, place(bytes.len(), ordinal));
        bytes.extend(frame);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

/// Reads frames until another result; returns the records and that result.
fn read(bytes: &[u8]) -> (Vec<Vec<Bytes>>, Found) {
    let (mut frames, mut at) = (Vec::new(), 48);
    loop {
        match frame::find(bytes, place(at, frames.len() as u64)) {
            Found::Frame(ranges, end) => {
                let record = |range: std::ops::Range<usize>| Bytes::copy_from_slice(&bytes[range]);
                frames.push(ranges.into_iter().map(record).collect());
                at = end;
            }
            other => return (frames, other),
        }
    }
}

fn frames() -> impl Strategy<Value = Vec<Vec<Bytes>>> {
    // Zeros, so that an unwritten sector could be mistaken for a body.
    let record = prop_oneof![body(), (0_usize..2_000).prop_map(|len| vec![0; len].into())];
    vec(vec(record, 1..4), 1..5)
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

    #[test]
    fn frames_read_back_as_they_were_written(frames in frames()) {
        let (bytes, _) = file(&frames);
        prop_assert_eq!(read(&bytes), (frames, Found::End));
    }

    #[test]
    fn a_cut_file_loses_what_was_cut_and_nothing_else(frames in frames(), cut in any::<prop::sample::Index>()) {
        let (bytes, ends) = file(&frames);
        let cut = 48 + cut.index(bytes.len() - 48);
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let found = if cut == 48 || ends.contains(&cut) { Found::End } else { Found::Torn };
        prop_assert_eq!(read(&bytes[..cut]), (frames[..whole].to_vec(), found));
    }

    #[test]
    fn a_flipped_bit_is_damage_wherever_it_is(frames in frames(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let (mut bytes, ends) = file(&frames);
        let at = 48 + at.index(bytes.len() - 48);
        bytes[at] ^= 1_u8 << bit;
        let whole = ends.iter().filter(|end| **end <= at).count();
        prop_assert_eq!(read(&bytes), (frames[..whole].to_vec(), Found::Damage));
    }

    #[test]
    fn an_empty_sector_is_torn_at_the_end_and_damage_before(frames in frames(), sector in any::<prop::sample::Index>()) {
        let (mut bytes, ends) = file(&frames);
        let sectors = bytes.len().div_ceil(512);
        let sector = sector.index(sectors);
        let range = (sector * 512).max(48)..bytes.len().min((sector + 1) * 512);
        prop_assume!(bytes[range.clone()].iter().any(|byte| *byte != 0));
        let first = (range.start..range.end).find(|at| bytes[*at] != 0).unwrap();
        bytes[range.clone()].fill(0);
        let whole = ends.iter().filter(|end| **end <= first).count();
        let last_start = ends[..ends.len() - 1].last().copied().unwrap_or(48);
        let (read, found) = read(&bytes);
        prop_assert_eq!(&read[..], &frames[..whole]);
        // A torn write does not blank a sector that contains part of the previous frame.
        if first >= last_start && range.start >= last_start {
            prop_assert_eq!(found, Found::Torn);
        } else if range.end < last_start {
            prop_assert_eq!(found, Found::Damage);
        } else {
            prop_assert_ne!(found, Found::End);
        }
    }
}

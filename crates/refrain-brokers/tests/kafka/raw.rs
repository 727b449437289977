//! Writes record batches that our producer never writes.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

/// Compression bits of a batch's attributes: an unassigned codec.
pub(crate) const UNKNOWN: i16 = 6;
pub(crate) const GZIP: i16 = 1;

/// Appends a batch of one record whose bytes do not match the given compression.
pub(crate) fn produce(server: &str, topic: &str, partition: i32, compression: i16) {
    let mut body = Vec::new();
    body.extend((-1_i32).to_be_bytes()); // leader's epoch
    body.push(2); // format
    body.extend(0_u32.to_be_bytes()); // checksum, which the cluster does not verify
    body.extend(compression.to_be_bytes());
    body.extend(0_i32.to_be_bytes()); // last offset, from the first
    body.extend([0; 16]); // first and last time
    body.extend((-1_i64).to_be_bytes()); // producer
    body.extend((-1_i16).to_be_bytes()); // its epoch
    body.extend((-1_i32).to_be_bytes()); // its sequence
    body.extend(1_i32.to_be_bytes()); // records
    body.extend(b"not compressed at all");
    let mut batch = 0_i64.to_be_bytes().to_vec();
    batch.extend(size(&body));
    batch.extend(body);

    let mut request = Vec::new();
    request.extend(0_i16.to_be_bytes()); // Produce
    request.extend(3_i16.to_be_bytes()); // version
    request.extend(7_i32.to_be_bytes()); // correlation id
    request.extend((-1_i16).to_be_bytes()); // client id
    request.extend((-1_i16).to_be_bytes()); // transactional id
    request.extend(1_i16.to_be_bytes()); // acks: leader only
    request.extend(10_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(i16::try_from(topic.len()).unwrap().to_be_bytes());
    request.extend(topic.as_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(partition.to_be_bytes());
    request.extend(size(&batch));
    request.extend(batch);

    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(&size(&request)).unwrap();
    stream.write_all(&request).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    // Skips the correlation id, one topic and one partition.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[at..at + 2], [0, 0], "refused: {answer:?}");
}

fn size(bytes: &[u8]) -> [u8; 4] {
    i32::try_from(bytes.len()).unwrap().to_be_bytes()
}

//! Requests that no client library sends.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::cluster::BROKERS;

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    out.extend(text.as_bytes());
}

/// Sends the request and returns the response behind the correlation id.
fn ask(key: u8, version: u8, body: &[u8]) -> Vec<u8> {
    let mut request = vec![0, key, 0, version, 0, 0, 0, 7];
    text(&mut request, "idem-test");
    request.extend(body);
    let mut stream = TcpStream::connect(&**BROKERS).unwrap();
    stream.write_all(&u32::try_from(request.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
    stream.read_exact(&mut answer).unwrap();
    answer.split_off(4)
}

/// `LeaveGroup` in a member's name, which does not hear of it before its next heartbeat.
pub(crate) fn leave(group: &str, member: &str) {
    let mut body = Vec::new();
    text(&mut body, group);
    text(&mut body, member);
    let answer = ask(13, 1, &body);
    // Behind the throttle time stands the error code.
    assert_eq!(answer[4..], [0, 0], "the member could not be taken out");
}

/// `Produce` of one record to partition 0, with these headers, whose names need not be UTF-8.
pub(crate) fn produce_with_headers(topic: &str, headers: &[(&[u8], &[u8])]) {
    let mut record = vec![0, 0, 0, 1, 2, b'x'];
    record.extend(zigzag(headers.len()));
    for part in headers.iter().flat_map(|(name, value)| [name, value]) {
        record.extend(zigzag(part.len()));
        record.extend(*part);
    }
    let mut checked = vec![0, 0, 0, 0, 0, 0];
    checked.extend(1_700_000_000_000_i64.to_be_bytes());
    checked.extend(1_700_000_000_000_i64.to_be_bytes());
    // No producer id, epoch or sequence; one record.
    checked.extend([0xff; 14]);
    checked.extend([0, 0, 0, 1]);
    checked.extend(zigzag(record.len()));
    checked.extend(record);
    let mut batch = vec![0; 8];
    batch.extend(u32::try_from(checked.len() + 9).unwrap().to_be_bytes());
    batch.extend([0xff, 0xff, 0xff, 0xff, 2]);
    batch.extend(crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    // No transaction, all replicas, 5 s, one topic with one partition.
    let mut body = vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0x13, 0x88, 0, 0, 0, 1];
    text(&mut body, topic);
    body.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    body.extend(u32::try_from(batch.len()).unwrap().to_be_bytes());
    body.extend(batch);
    let answer = ask(0, 3, &body);
    let code = 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[code..code + 2], [0, 0], "the record was refused: {answer:?}");
}

/// A length as a variable number of bytes, seven bits in each.
fn zigzag(length: usize) -> Vec<u8> {
    let (mut rest, mut out) = (length * 2, Vec::new());
    while rest >= 128 {
        out.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    out.push(u8::try_from(rest).unwrap());
    out
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

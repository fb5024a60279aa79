//! A producer that sends properties as the test's own bytes, which no client library would.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::broker::{host, url};

/// Before the end of each frame.
const END: u8 = 0xCE;

/// Publishes through `exchange` with properties that are these bytes, their flags first, and waits for the confirmation.
pub(crate) async fn publish(exchange: &str, key: &[u8], properties: Vec<u8>, payload: &[u8]) {
    let (exchange, key, payload) = (exchange.as_bytes().to_vec(), key.to_vec(), payload.to_vec());
    tokio::task::spawn_blocking(move || {
        let mut producer = Producer::connect();
        let publish = [&[0, 60, 0, 40, 0, 0][..], &short(&exchange), &short(&key), &[1]].concat();
        let size = (payload.len() as u64).to_be_bytes();
        producer.send(1, 1, &publish);
        producer.send(2, 1, &[&[0, 60, 0, 0][..], &size, &properties].concat());
        producer.send(3, 1, &payload);
        producer.expect(&[0, 60, 0, 80]);
    })
    .await
    .unwrap();
}

/// Headers alone, as the bytes of their table.
pub(crate) fn headers(table: &[u8]) -> Vec<u8> {
    [&(1_u16 << 13).to_be_bytes()[..], &long(table)].concat()
}

/// `x`: an array in an array, to this depth.
pub(crate) fn nested(depth: usize) -> Vec<u8> {
    // From the outermost to the innermost, whose length is 0.
    let levels = (0..depth).rev().flat_map(|within| {
        let [a, b, c, d] = u32::try_from(within * 5).unwrap().to_be_bytes();
        [b'A', a, b, c, d]
    });
    [1, b'x'].into_iter().chain(levels).collect()
}

pub(crate) fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

pub(crate) fn short(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

struct Producer(TcpStream);

impl Producer {
    fn connect() -> Self {
        let mut producer = Self(TcpStream::connect(host(&url())).unwrap());
        producer.0.write_all(b"AMQP\0\0\x09\x01").unwrap();
        producer.expect(&[0, 10, 0, 10]);
        let login = [&[0, 10, 0, 11, 0, 0, 0, 0][..], &short(b"PLAIN"), &long(b"\0guest\0guest"), &short(b"en_US")];
        producer.send(1, 0, &login.concat());
        let tune = producer.expect(&[0, 10, 0, 30]);
        producer.send(1, 0, &[&[0, 10, 0, 31][..], &tune[4..]].concat());
        producer.send(1, 0, &[&[0, 10, 0, 40][..], &short(b"/"), &[0, 0]].concat());
        producer.expect(&[0, 10, 0, 41]);
        producer.send(1, 1, &[0, 20, 0, 10, 0]);
        producer.expect(&[0, 20, 0, 11]);
        producer.send(1, 1, &[0, 85, 0, 10, 0]);
        producer.expect(&[0, 85, 0, 11]);
        producer
    }

    fn send(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let frame = [&[kind][..], &channel.to_be_bytes(), &long(payload), &[END]].concat();
        self.0.write_all(&frame).unwrap();
    }

    /// The payload of the next frame that is no heartbeat, which is this method.
    fn expect(&mut self, method: &[u8; 4]) -> Vec<u8> {
        loop {
            let mut start = [0; 7];
            self.0.read_exact(&mut start).unwrap();
            let size = u32::from_be_bytes([start[3], start[4], start[5], start[6]]) as usize;
            let mut payload = vec![0; size + 1];
            self.0.read_exact(&mut payload).unwrap();
            payload.pop();
            if start[0] == 1 {
                assert_eq!(&payload[..4], method, "{:?}", String::from_utf8_lossy(&payload));
                return payload;
            }
        }
    }
}

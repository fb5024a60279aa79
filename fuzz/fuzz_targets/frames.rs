//! G14: whatever a broker sends and however it is cut, the same is passed on, and of any properties the client library is
//! given what it can read.
#![no_main]

use amq_protocol::frame::{AMQPFrame, parsing::parse_frame};
use idem_amqp::fuzzing::pass;
use libfuzzer_sys::fuzz_target;

/// A content header's kind, channel and end; class, weight and body size stand before the properties.
const HEADER: [u8; 3] = [2, 0, 1];
const BEFORE_PROPERTIES: [u8; 12] = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
const END: [u8; 1] = [0xCE];

fuzz_target!(|input: (u16, u8, &[u8])| {
    let (frame_max, cut, bytes) = input;
    let frame_max = usize::from(frame_max);
    let cut = pass(frame_max, bytes.chunks(usize::from(cut).max(1))).ok();
    assert_eq!(pass(frame_max, [bytes]).ok(), cut, "the same however it is cut");

    let size = u32::try_from(BEFORE_PROPERTIES.len() + bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let frame = [&HEADER[..], &size, &BEFORE_PROPERTIES, bytes, &END].concat();
    let passed = pass(0, [&frame[..]]).unwrap_or_default();
    match parse_frame(&passed[..]) {
        Ok((rest, AMQPFrame::Header(..))) => assert!(rest.is_empty(), "one frame is one frame"),
        read => panic!("the library reads {read:?}"),
    }
});

//! Properties that hold for every input. Each property is a function of bytes that panics where it does not hold.
//!
//! The targets in `fuzz/` drive them with a nightly compiler for as long as you want; `tests/it/` does with drawn inputs,
//! a few seconds each, in `./test`. [`ALL`] has them by the names of their targets.

#![allow(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a property that does not hold panics, and that is what it is for"
)]

mod amqp;
mod core;
mod http;
mod kafka;
mod service;
mod stored;

pub use self::{
    amqp::{amqp, frames},
    core::{cloud_events, headers, json, keys},
    http::{http_fingerprint, http_key},
    kafka::kafka,
    service::{key_rules, settings},
    stored::{dead_letter_headers, envelopes},
};

/// A property: it panics where it does not hold of the input.
pub type Property = fn(&[u8]);

/// Every property by its name.
pub const ALL: [(&str, Property); 13] = [
    ("amqp", amqp),
    ("cloud_events", cloud_events),
    ("dead_letter_headers", dead_letter_headers),
    ("envelopes", envelopes),
    ("frames", frames),
    ("headers", headers),
    ("http_fingerprint", http_fingerprint),
    ("http_key", http_key),
    ("json", json),
    ("kafka", kafka),
    ("key_rules", key_rules),
    ("keys", keys),
    ("settings", settings),
];

/// The input as lines of a name and a value; a line without `=` has no value.
fn lines(input: &[u8]) -> impl Iterator<Item = (String, Option<&[u8]>)> {
    input.split(|byte| *byte == b'\n').map(|line| {
        let mut parts = line.splitn(2, |byte| *byte == b'=');
        (String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned(), parts.next())
    })
}

//! The messages of producers, good and bad, as brokers accept them. The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::ops::Range;

use serde_json::json;

use super::purchase::Purchase;

/// The workers of a flood take no larger payload than this, so that a payload that is too large need not be huge.
pub(crate) const PAYLOAD_MAX: usize = 20 << 10;

/// The header and the member that keys are in.
pub(crate) const KEY: &str = "idempotencykey";

/// A message before any broker has it. A broker's tests take away the parts that it cannot carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    /// `None` where there is not even an empty one.
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Value)>,
    /// The key of its ordering or partition.
    pub(crate) group: Option<Vec<u8>>,
    /// The purchase that takes effect, unless another payload of its key did. Without one, the message has to be set aside.
    pub(crate) purchase: Option<Purchase>,
}

/// The value of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Absent,
    Bytes(Vec<u8>),
    /// This many tables in each other, of which the last is empty.
    Tables(usize),
}

impl Value {
    fn text(text: impl Into<String>) -> Self {
        Self::Bytes(text.into().into_bytes())
    }
}

impl Input {
    fn good(purchase: &Purchase, headers: Vec<(String, Value)>) -> Self {
        Self { headers, ..Self::of(purchase.json(), Some(purchase.clone()), purchase) }
    }

    fn of(payload: impl Into<Vec<u8>>, effect: Option<Purchase>, purchase: &Purchase) -> Self {
        let group = Some(purchase.customer.clone().into_bytes());
        Self { payload: Some(payload.into()), headers: Vec::new(), group, purchase: effect }
    }

    fn header(mut self, name: &str, value: Value) -> Self {
        self.headers.push((name.to_owned(), value));
        self
    }

    /// Leaves the first of each header, by name, for brokers that have them in no order.
    pub(crate) fn with_headers_by_name(mut self) -> Self {
        self.headers.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.headers.dedup_by(|(later, _), (first, _)| later == first);
        self
    }
}

/// The inputs of these numbers, in any order.
pub(crate) fn draw(rng: &mut fastrand::Rng, numbers: Range<i64>) -> Vec<Input> {
    let mut inputs = Vec::new();
    for number in numbers {
        let purchase = Purchase::number(number);
        let headers = if rng.u8(..3) == 0 { headers(rng) } else { Vec::new() };
        match rng.u8(..20) {
            0..11 => inputs.push(Input::good(&purchase, headers)),
            11..13 => (0..rng.u8(2..5)).for_each(|_| inputs.push(Input::good(&purchase, headers.clone()))),
            13 => {
                inputs.push(Input::good(&purchase, headers));
                inputs.push(Input::good(&Purchase { cents: number + 1_000_000, ..purchase }, Vec::new()));
            }
            14 => {
                let text = json!({ KEY: format!("odd-{number}"), "customer": number }).to_string();
                inputs.push(Input { headers, ..Input::of(text, None, &purchase) });
            }
            15..18 => inputs.push(Input { headers, ..Input::of(junk(rng, number), None, &purchase) }),
            _ => inputs.push(hostile(rng, number, &purchase)),
        }
    }
    rng.shuffle(&mut inputs);
    inputs
}

/// A payload that no handler can make sense of, each time another one.
fn junk(rng: &mut fastrand::Rng, number: i64) -> Vec<u8> {
    let key = |key: &str| json!({ KEY: key, "number": number }).to_string();
    let text = match rng.u8(..14) {
        0 => format!("no JSON, number {number}"),
        1 => json!({ "customer": "00001", "number": number }).to_string(),
        2 => key(""),
        3 => key(&"k".repeat(300)),
        4 => key(&format!("line\nbreak {number}")),
        5 => format!(r#"{{"idempotencykey":"a","idempotencykey":"b-{number}"}}"#),
        6 => format!("{}{number}{}", "[".repeat(300), "]".repeat(300)),
        7 => format!("[{number}]"),
        8 => format!(r#"{{"idempotencykey":"\ud800","number":{number}}}"#),
        9 => format!(r#"{{"idempotencykey":"a\u0000b","number":{number}}}"#),
        10 => format!("{{\"x\":\"{}\", \"number\": {number}", "y".repeat(rng.usize(..2 * PAYLOAD_MAX))),
        11 => return [format!("number {number} ").as_bytes(), &[0xff, 0xfe, 0xc0, 0x80]].concat(),
        12 => return (0..rng.usize(1..3_000)).map(|_| rng.u8(..)).collect(),
        // A text that is one in another encoding.
        _ => return key("a").encode_utf16().flat_map(u16::to_be_bytes).collect(),
    };
    text.into_bytes()
}

/// A message that is bad for its place, its size or its headers, with any payload.
fn hostile(rng: &mut fastrand::Rng, number: i64, purchase: &Purchase) -> Input {
    let good = || Input::of(purchase.json(), None, purchase);
    let junk = || Input::of(format!("no JSON, number {number}"), None, purchase);
    match rng.u8(..12) {
        0 => Input { payload: None, ..good() },
        1 => Input { payload: None, group: None, ..good() },
        2 => Input::of("", None, purchase),
        3 => Input { headers: headers(rng), group: Some(vec![0xff, 0]), ..Input::of("", None, purchase) },
        4 => {
            let text = purchase.json().replacen('{', &format!("{{\"x\":\"{}\",", "é".repeat(PAYLOAD_MAX / 2)), 1);
            Input::of(text, None, purchase)
        }
        5 => good().header(KEY, Value::text(format!("another-{number}"))),
        6 => good().header(KEY, Value::Bytes(vec![b'k', 0xff, 0xfe])),
        7 => good().header("long", Value::text("h".repeat(70_000))),
        8 => {
            let count = if rng.bool() { 1_100 } else { 5_000 };
            (0..count)
                .fold(junk(), |input, header| input.header(&format!("h{header}"), Value::text(number.to_string())))
        }
        9 => junk().header("idem-unreadable", Value::Bytes(vec![0, 0xff])),
        _ => {
            let depth = [3, 40, 63, 64, 200, 10_000][rng.usize(..6)];
            junk().header("nested", Value::Tables(depth)).header("number", Value::text(number.to_string()))
        }
    }
}

/// Headers that are no reason to set a message aside: idem's own names, names that other programs know, and names and values
/// that are strange.
fn headers(rng: &mut fastrand::Rng) -> Vec<(String, Value)> {
    const NAMES: [&str; 14] = [
        "idem-reason",
        "idem-attempts",
        "idem-payload-omitted",
        "idem",
        "traceparent",
        "content-type",
        "reply-to",
        "EventType",
        "x-odd",
        "X-Odd",
        "é ☃\n",
        " ",
        "a.b-c_d",
        "'; DROP TABLE purchases; --",
    ];
    let count = if rng.u8(..8) == 0 { 40 } else { rng.usize(1..6) };
    let header = |place: usize| {
        let name = match rng.u8(..6) {
            0 => format!("n{place}-{}", "n".repeat(rng.usize(..240))),
            _ => NAMES[rng.usize(..NAMES.len())].to_owned(),
        };
        let value = match rng.u8(..7) {
            0 => Value::Absent,
            1 => Value::Bytes(Vec::new()),
            2 => Value::Bytes((0..rng.usize(1..60)).map(|_| rng.u8(..)).collect()),
            3 => Value::text("v".repeat(rng.usize(..1_000))),
            4 => Value::text("\u{0}\n\"\\u0000 ☃"),
            5 => Value::text("null"),
            _ => Value::text(rng.i64(..).to_string()),
        };
        (name, value)
    };
    (0..count).map(header).collect()
}

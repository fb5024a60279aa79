//! Each property with drawn inputs, in an ordinary test: no nightly compiler, the same inputs from the same `IDEM_SEED`.

#![allow(clippy::panic, clippy::print_stdout, reason = "a test that cannot go on fails, and says why")]

use fastrand::Rng;
use properties::{ALL, Property};

/// How many inputs each property is given: some seconds all together.
fn inputs() -> u64 {
    if std::env::var_os("IDEM_TEST_ALL").is_some() { 1_000_000 } else { 20_000 }
}

/// The pieces of inputs: tokens that the readers look for, and tokens that they stumble over.
const PIECES: [&str; 62] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "\n",
    "=",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "-0",
    "1e400",
    "0.1",
    "9007199254740993",
    "\"a\":",
    "{\"a\":[{\"b\":\"k\"}]}",
    "{\"id\":\"1\",\"source\":\"/s\",\"specversion\":\"1.0\"}",
    "idempotencykey=k\n",
    "\"idempotencykey\":\"k\"",
    "ce_id=1\n",
    "ce_source=/s\n",
    "content-type=application/json\n",
    "idem-reason=conflict\n",
    "x-delivery-count=3\n",
    "x-death\n",
    "idem-exchange=e\n",
    "{\"Type\":\"Notification\",\"Message\":\"m\",\"MessageId\":\"i\"}",
    "\"MessageAttributes\":{\"a\":{\"Type\":\"Binary\",\"Value\":\"AA==\"}}",
    "{\"detail-type\":\"t\",\"detail\":{\"a\":1},\"id\":\"i\"}",
    "lanes = 2\n",
    "drain = \"5s\"\n",
    "key = [\"record-key\"]\n",
    "migrate = true\n",
    "database-url = \"hunter2-4711\"\n",
    "[table]\n",
    "\"\"\"",
    "'",
    "application/json; a=1",
    "multipart/form-data",
    "?a=1&b",
    "\"k\"",
    "record-key",
    "message-id",
    "json:/a/b",
    "header:a",
    "first:",
    "join:",
    "#",
    " ",
    "\t",
    "é",
    "☃",
    "\u{0}",
    "\u{7f}",
    "\u{202e}",
    "k",
    "0",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// A few pieces, and now and then bytes that are anything, a part twice, or one byte another.
fn input(rng: &mut Rng) -> Vec<u8> {
    let mut input = Vec::new();
    for _ in 0..rng.usize(0..14) {
        match rng.u8(0..12) {
            0 => input.extend((0..rng.usize(0..9)).map(|_| rng.u8(..))),
            1 if !input.is_empty() => {
                let from = rng.usize(..input.len());
                let part = input[from..].to_vec();
                input.extend(part);
            }
            2 if !input.is_empty() => {
                let at = rng.usize(..input.len());
                input[at] = rng.u8(..);
            }
            _ => input.extend_from_slice(PIECES[rng.usize(..PIECES.len())].as_bytes()),
        }
    }
    input
}

/// Holds of every input, or the one that it does not hold of is shown.
fn holds(name: &str, property: Property) {
    let mut rng = Rng::with_seed(idem_testkit::seed());
    for number in 0..inputs() {
        let input = input(&mut rng);
        if let Err(panic) = std::panic::catch_unwind(|| property(&input)) {
            println!("{name}, input {number}: \"{}\"", input.escape_ascii());
            std::panic::resume_unwind(panic);
        }
    }
}

macro_rules! each {
    ($($property:ident),* $(,)?) => {
        $(#[test]
        fn $property() {
            holds(stringify!($property), properties::$property);
        })*

        /// None is left out here.
        #[test]
        fn each_property_has_its_test() {
            let here = [$(stringify!($property)),*];
            assert_eq!(ALL.map(|(name, _)| name), here);
        }
    };
}

each!(
    amqp,
    cloud_events,
    dead_letter_headers,
    envelopes,
    frames,
    headers,
    http_fingerprint,
    http_key,
    json,
    kafka,
    key_rules,
    keys,
    settings
);

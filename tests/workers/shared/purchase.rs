//! One purchase, as a producer sends it. The tests of every worker include this file, and say how many customers there are.

use serde_json::json;

use crate::CUSTOMERS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Purchase {
    pub(crate) key: String,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

impl Purchase {
    /// The one of this number, with a price that no other has.
    pub(crate) fn number(number: i64) -> Self {
        Self { key: format!("purchase-{number}"), customer: format!("{:05}", number % CUSTOMERS), cents: number }
    }

    pub(crate) fn json(&self) -> String {
        let Self { key, customer, cents } = self;
        json!({ "idempotencykey": key, "customer": customer, "day": "1997-01-01", "cds": 1, "cents": cents })
            .to_string()
    }

    /// The same with a note of this many bytes, where the tests of this worker have large messages.
    #[allow(dead_code, reason = "SQS has no large messages")]
    pub(crate) fn json_with_note(&self, bytes: usize) -> String {
        let text = self.json();
        let (members, _) = text.rsplit_once('}').expect("an object");
        format!(r#"{members},"note":"{}"}}"#, "x".repeat(bytes))
    }
}

//! The messages of the workers' demonstrations: real purchases, with the mistakes that producers make.

use std::{error::Error, io::Read};

use serde_json::json;

/// See the quickstart's `data/README.md` for where it comes from.
const DATA: &[u8] = include_bytes!("../../../../examples/quickstart/data/purchases.csv.gz");

/// How many purchases there are.
pub const PURCHASES: usize = 69_659;

/// One message that is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Whose purchase it is: the key of the order, where the broker keeps one.
    pub customer: String,
    /// The payload.
    pub payload: String,
    /// It has the key of an earlier purchase and another amount. A broker without an order may deliver it first, and then
    /// it would be the one that counts.
    pub is_conflict: bool,
}

/// The messages about the first `purchases` purchases, in the order in which they are sent. The key of a purchase is the
/// number of its line, because 255 of them equal another in every column.
///
/// # Errors
/// Where the data is damaged.
pub fn records(purchases: usize) -> Result<Vec<Record>, Box<dyn Error>> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(DATA).read_to_string(&mut text)?;
    let mut bought = Vec::new();
    for (number, line) in text.lines().skip(1).enumerate() {
        let [customer, day, cds, dollars] = line.split(',').collect::<Vec<_>>()[..] else {
            return Err(format!("line {} is no purchase", number + 2).into());
        };
        let cents: i64 = dollars.replace('.', "").parse()?;
        bought.push((day, customer, format!("cdnow-{:05}", number + 1), cds.parse::<u32>()?, cents));
    }
    bought.sort_by_key(|(day, ..)| *day);
    bought.truncate(purchases);
    // Messages that arrive out of order, by the position after which they come.
    let mut stream: Vec<(usize, Record)> = Vec::new();
    for (position, (day, customer, key, cds, cents)) in bought.into_iter().enumerate() {
        let payload = |cents: i64| {
            json!({ "idempotencykey": key, "customer": customer, "day": day, "cds": cds, "cents": cents }).to_string()
        };
        let record = |payload| Record { customer: customer.to_owned(), payload, is_conflict: false };
        // The confirmation did not arrive in time, so the producer sends the same message a second time.
        if position % 50 == 7 {
            stream.push((position + 150, record(payload(cents))));
        }
        // A bug sends another amount under the key of an earlier purchase. The first one must win.
        if position % 1_000 == 500 {
            stream.push((position + 75, Record { is_conflict: true, ..record(payload(cents + 500)) }));
        }
        // Unreadable messages, and some without a key.
        if position % 6_000 == 3_000 {
            let without_key = json!({ "customer": customer, "day": day, "cds": cds, "cents": cents }).to_string();
            let broken = if position % 18_000 == 3_000 { without_key } else { "{\"customer\":".to_owned() };
            stream.push((position, record(broken)));
        }
        stream.push((position, record(payload(cents))));
    }
    stream.sort_by_key(|(position, _)| *position);
    Ok(stream.into_iter().map(|(_, record)| record).collect())
}

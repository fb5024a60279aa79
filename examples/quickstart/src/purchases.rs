//! The data, and its producer: every message that the broker is given.

use std::{collections::HashSet, io::Read};

use idem_core::{BoxError, Message, key::KEY_FIELD};

use crate::{handler::Purchase, ledger::Totals};

/// See `data/README.md` for where it comes from.
const DATA: &[u8] = include_bytes!("../data/purchases.csv.gz");

/// The totals of any consumer that counts each purchase once.
pub(crate) const SOLD: Totals = Totals { purchases: 69_659, customers: 23_570, cds: 167_881, cents: 250_031_563 };

/// Reads the purchases, each with the key that its producer gives it, in the order in which they were made.
///
/// The key is the number of the line, because the producer must be able to tell purchases apart that are equal in
/// every column: 255 of these are. In an application it is the order's number, or an id that the producer draws once
/// and keeps with the order. It is never made from the content.
pub(crate) fn read() -> Result<Vec<(String, Purchase)>, BoxError> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(DATA).read_to_string(&mut text)?;
    let lines = text.lines().skip(1).enumerate();
    let mut purchases = lines
        .map(|(index, line)| {
            let purchase = parse(line).ok_or_else(|| format!("line {} is no purchase", index + 2))?;
            Ok((format!("cdnow-{:05}", index + 1), purchase))
        })
        .collect::<Result<Vec<_>, BoxError>>()?;
    // The file is sorted by customer.
    purchases.sort_by(|(_, one), (_, other)| one.day.cmp(&other.day));
    Ok(purchases)
}

/// `00001,1997-01-01,1,11.77`; money is counted in cents, because binary fractions lose some.
fn parse(line: &str) -> Option<Purchase> {
    let mut columns = line.split(',');
    let (customer, day) = (columns.next()?.to_owned(), columns.next()?.to_owned());
    let cds = columns.next()?.parse().ok()?;
    let (dollars, cents) = columns.next()?.split_once('.')?;
    let cents = dollars.parse::<i64>().ok()? * 100 + cents.parse::<i64>().ok()?;
    columns.next().is_none().then_some(Purchase { customer, day, cds, cents })
}

/// How many purchases equal an earlier one in every column, and their price.
pub(crate) fn repeated(purchases: &[(String, Purchase)]) -> (usize, i64) {
    let mut seen = HashSet::new();
    let repeated = purchases.iter().filter(|(_, p)| !seen.insert((&p.customer, &p.day, p.cds, p.cents)));
    repeated.fold((0, 0), |(count, cents), (_, purchase)| (count + 1, cents + purchase.cents))
}

/// Every message that the producer sends, in order.
pub(crate) struct Sent {
    pub(crate) messages: Vec<Message>,
    /// How many of them are copies with the same key and payload.
    pub(crate) again: usize,
    /// How many have the key of an earlier one and another amount.
    pub(crate) altered: usize,
    /// The sum of these.
    pub(crate) altered_cents: i64,
    /// How many cannot be handled as they are.
    pub(crate) unusable: usize,
}

/// Sends each purchase, and the mistakes that producers make.
pub(crate) fn send(purchases: &[(String, Purchase)]) -> Sent {
    let mut sent = Sent { messages: Vec::new(), again: 0, altered: 0, altered_cents: 0, unusable: 0 };
    let mut stream = Vec::new();
    for (position, (key, purchase)) in purchases.iter().enumerate() {
        let message = with_key(message(purchase), key);
        // The confirmation did not arrive in time, so the producer sends the same message a second time.
        if position % 50 == 7 {
            stream.push((position + 150, message.clone()));
            sent.again += 1;
        }
        // A bug sends another amount under the key of an earlier purchase. The first one must win. It always does,
        // because both have the customer as their record key, and a broker keeps the order of those.
        if position % 1_000 == 500 {
            let wrong = Purchase { cents: purchase.cents + 500, ..purchase.clone() };
            stream.push((position + 75, with_key(self::message(&wrong), key)));
            sent.altered += 1;
            sent.altered_cents += wrong.cents;
        }
        stream.push((position, message));
    }
    for (position, message) in unusable(purchases) {
        stream.push((position, message));
        sent.unusable += 1;
    }
    stream.sort_by_key(|(position, _)| *position);
    sent.messages = stream.into_iter().map(|(_, message)| message).collect();
    sent
}

/// Messages that no consumer can count: each kind comes in a row, as from a producer that was deployed and rolled back.
fn unusable(purchases: &[(String, Purchase)]) -> impl Iterator<Item = (usize, Message)> {
    let at = |percent: usize| purchases.len() * percent / 100;
    let no_key = purchases[..4].iter().map(move |(_, purchase)| (at(20), message(purchase)));
    let no_json =
        (1..=3).map(move |n| (at(45), with_key(Message::new("customer=00042;cents=1177"), &format!("form-{n}"))));
    let no_cents = (1..=3).map(move |n| {
        let payload = r#"{"customer":"00042","day":"1997-07-01","cds":1}"#;
        (at(70), with_key(Message::new(payload), &format!("no-cents-{n}")))
    });
    let empty_key = purchases[..2].iter().map(move |(_, purchase)| (at(85), with_key(message(purchase), "")));
    no_key.chain(no_json).chain(no_cents).chain(empty_key)
}

fn message(Purchase { customer, day, cds, cents }: &Purchase) -> Message {
    let payload = format!(r#"{{"customer":"{customer}","day":"{day}","cds":{cds},"cents":{cents}}}"#);
    Message::new(payload).with_record_key(customer.clone())
}

fn with_key(message: Message, key: &str) -> Message {
    message.with_header(KEY_FIELD, key.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_data_is_what_its_readme_says() {
        let purchases = read().unwrap();
        let customers: HashSet<_> = purchases.iter().map(|(_, purchase)| &purchase.customer).collect();
        let totals = Totals {
            purchases: purchases.len() as i64,
            customers: customers.len() as i64,
            cds: purchases.iter().map(|(_, purchase)| i64::from(purchase.cds)).sum(),
            cents: purchases.iter().map(|(_, purchase)| purchase.cents).sum(),
        };
        assert_eq!(totals, SOLD);
        assert_eq!(repeated(&purchases), (255, 433_288));
    }

    #[test]
    fn copies_and_altered_amounts_follow_the_purchase_that_they_repeat() {
        let purchases = read().unwrap();
        let right: HashMap<_, _> = purchases.iter().map(|(key, purchase)| (key.as_str(), purchase.cents)).collect();
        let sent = send(&purchases);
        let (mut seen, mut again, mut altered) = (HashSet::new(), 0, 0);
        for message in &sent.messages {
            let Some(key) = message.headers().text(KEY_FIELD) else { continue };
            let Some(cents) = right.get(key) else { continue };
            let purchase: Purchase = message.json().unwrap();
            assert_eq!(message.record_key().unwrap(), purchase.customer.as_bytes(), "or the broker would not order it");
            match (seen.insert(key), purchase.cents == *cents) {
                (true, right) => assert!(right, "{key} comes with another amount before its own"),
                (false, true) => again += 1,
                (false, false) => altered += 1,
            }
        }
        assert_eq!((seen.len(), again, altered), (purchases.len(), sent.again, sent.altered));
        assert_eq!(sent.messages.len(), purchases.len() + sent.again + sent.altered + sent.unusable);
    }

    #[test]
    fn a_broken_line_is_no_purchase() {
        for line in ["", "1,1997-01-01,1", "1,1997-01-01,1,11", "1,1997-01-01,x,1.00", "1,1997-01-01,1,1.00,"] {
            assert!(parse(line).is_none(), "{line}");
        }
    }
}

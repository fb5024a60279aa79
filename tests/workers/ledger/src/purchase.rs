//! The form of a message.

use std::{collections::HashMap, fmt};

use idem_core::{HandlerError, Message, handler::BatchAnswer, message::DecodePayloadError};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;

/// A purchase: `{"customer":"00001","day":"1997-01-01","cds":1,"cents":1177}`, and other members as the producer likes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purchase {
    /// 1 to 200 characters.
    pub customer: String,
    /// `1997-01-01`.
    pub day: String,
    /// From 0.
    pub cds: i32,
    /// From 0.
    pub cents: i64,
}

impl Purchase {
    /// Reads a message.
    ///
    /// # Errors
    /// Where it is no purchase; the message is then a dead letter, `malformed`. The text names the member and quotes
    /// nothing of the payload.
    pub fn read(message: &Message) -> Result<Self, DecodePayloadError> {
        let members: Members = message.json()?;
        let broken = |rule: &str| DecodePayloadError::new(rule);
        if members.repeated {
            return Err(broken("a member is repeated, so readers may disagree about which one counts"));
        }
        let text = |name| members.members.get(name).and_then(Value::as_str);
        let number = |name| members.members.get(name).and_then(Value::as_i64).filter(|number| *number >= 0);
        // A database may not be able to store U+0000 in a text; PostgreSQL is not.
        let is_customer = |text: &&str| (1..=200).contains(&text.chars().count()) && !text.contains('\0');
        Ok(Self {
            customer: text("customer")
                .filter(is_customer)
                .ok_or_else(|| broken("customer must be a text of 1 to 200 characters"))?
                .to_owned(),
            day: text("day")
                .filter(|day| is_date(day))
                .ok_or_else(|| broken("day must be a date such as 1997-01-01"))?
                .to_owned(),
            cds: number("cds")
                .and_then(|cds| cds.try_into().ok())
                .ok_or_else(|| broken("cds must be a whole number from 0 to 2147483647"))?,
            cents: number("cents")
                .ok_or_else(|| broken("cents must be a whole number from 0 to 9223372036854775807"))?,
        })
    }

    /// Reads a batch. Where some are no purchases, the answer names them; the others then run again without them.
    pub(crate) fn read_all(messages: &[&Message]) -> Result<Vec<Self>, BatchAnswer> {
        let read: Vec<_> = messages.iter().map(|message| Self::read(message)).collect();
        if read.iter().all(Result::is_ok) {
            return Ok(read.into_iter().flatten().collect());
        }
        Err(BatchAnswer::each(read.into_iter().map(|read| read.map(|_| ()).map_err(HandlerError::from)).collect()))
    }
}

/// Whether this is a day of the calendar, written as ISO 8601 has it.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| -> Option<u32> {
        let digits = bytes.get(range)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, digit| n * 10 + u32::from(digit - b'0')))
    };
    let (Some(year), Some(month), Some(day)) = (digits(0..4), digits(5..7), digits(8..10)) else { return false };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    // Databases begin with the year 1.
    bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-' && year > 0 && (1..=days).contains(&day)
}

/// The members of a JSON object. serde's derived readers take an unknown member that is repeated in silence.
struct Members {
    members: HashMap<String, Value>,
    repeated: bool,
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut read = Members { members: HashMap::new(), repeated: false };
                while let Some((name, value)) = map.next_entry()? {
                    read.repeated |= read.members.insert(name, value).is_some();
                }
                Ok(read)
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests;

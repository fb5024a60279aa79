//! Spans of time as people write them: a number and a unit.

use std::{str::FromStr, time::Duration};

const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// `30s`, `2m`, `1h`, `7d`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| seconds);
    match (seconds, u64::from_str(number)) {
        (Some(seconds), Ok(number)) if number <= 4_000_000_000 => Ok(Duration::from_secs(number * seconds)),
        _ => Err("write a number and one of the units s, m, h, d, such as 24h or 7d".to_owned()),
    }
}

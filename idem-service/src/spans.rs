//! Spans of time as people write them: a number and a unit.

use std::{ops::RangeInclusive, str::FromStr, time::Duration};

use idem_core::Retention;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A time: `500ms`, `5s`, `2m`, `1h`, `7d`.
///
/// # Errors
/// The required form of a time.
pub fn span(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let milliseconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, milliseconds)| milliseconds);
    let (Some(milliseconds), Ok(number)) = (milliseconds, u64::from_str(number)) else {
        return Err("write a number and one of the units ms, s, m, h, d, such as 500ms, 5s or 7d".to_owned());
    };
    number.checked_mul(*milliseconds).map(Duration::from_millis).ok_or_else(|| "it is too long".to_owned())
}

/// Those of the engine, which reports them in its own words: checked here, they are reported before anything is
/// connected.
const BOUNDS: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3650 * 24 * 3600);

/// A span within the bounds of a retention, or `forever`.
pub(crate) fn retention(text: &str) -> Result<Retention, String> {
    match text {
        "forever" => Ok(Retention::Forever),
        _ => match span(text) {
            Ok(time) if BOUNDS.contains(&time) => Ok(Retention::For(time)),
            Ok(_) => Err("it must be from 1m to 3650d, or forever".to_owned()),
            Err(error) => Err(format!("{error}, or forever")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_whole_number_and_a_unit() {
        for (text, milliseconds) in
            [("0s", 0), ("500ms", 500), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000), ("7d", 604_800_000)]
        {
            assert_eq!(span(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in
            ["", "5", "s", "5 s", " 5s", "5s ", "-5s", "1.5s", "5S", "5sec", "1m30s", "99999999999999999d", "٣s"]
        {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_a_retention_may_be_forever() {
        assert_eq!(retention("forever"), Ok(Retention::Forever));
        assert_eq!(retention("7d"), Ok(Retention::For(Duration::from_secs(604_800))));
        for text in ["1s", "59s", "3651d", "0d"] {
            assert_eq!(retention(text), Err("it must be from 1m to 3650d, or forever".to_owned()), "{text}");
        }
        assert!(span("forever").is_err() && retention("Forever").is_err() && retention("0").is_err());
    }
}

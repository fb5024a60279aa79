//! Compares senders' times with ours.

use std::time::{Duration, SystemTime};

/// Whether a time, in seconds since 1970, is no older than the limit, and no further ahead than clocks may differ.
pub(super) fn is_near(seconds: u64, ago_max: Duration, ahead_max: Duration) -> bool {
    let now = now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    seconds <= now.saturating_add(ahead_max.as_secs()) && now.saturating_sub(seconds) <= ago_max.as_secs()
}

#[allow(clippy::disallowed_methods, reason = "senders sign the time of their wall clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// The seconds since 1970 of a time such as `2012-05-02T00:54:06.655Z`, in UTC.
pub(super) fn of_iso_8601(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let time = time
        .split_once('.')
        .map_or(Some(time), |(time, part)| part.bytes().all(|b| b.is_ascii_digit()).then_some(time))?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let fits = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    (fits && hour < 24 && minute < 60 && second <= 60)
        .then(|| days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut found = [0; 3];
    for (number, digits) in found.iter_mut().zip(digits) {
        let part =
            parts.next().filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(found)
}

/// The days from 1970 to a date of the Gregorian calendar. The year begins in March, so that a leap day is its last day.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year / 4 - year / 100 + year / 400;
    (year * 365 + leaps + (153 * month + 2) / 5 + day - 1) - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_calendar_has_them() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2012-05-02T00:54:06.655Z", 1_335_920_046),
            ("2000-02-29T12:00:00.000Z", 951_825_600),
            ("2026-03-01T00:00:00Z", 1_772_323_200),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(of_iso_8601(text), Some(seconds), "{text}");
        }
        for text in [
            "",
            "2012-05-02",
            "2012-05-02T00:54:06",
            "2012-13-02T00:54:06Z",
            "2012-05-02T24:54:06Z",
            "12-05-02T00:54:06Z",
            "2012-05-02T00:54:06.6x5Z",
            "2012-05-02T+0:54:06Z",
        ] {
            assert_eq!(of_iso_8601(text), None, "{text}");
        }
    }
}

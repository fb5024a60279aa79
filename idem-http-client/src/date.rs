//! Dates and times of RFC 3339 in UTC, as they are in answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Reads a date and time in UTC, with any number of digits behind the seconds. `None` for every other form, and before
/// 1970.
pub(crate) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2; 3])?;
    let is_digits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = hour < 24 && minute < 60 && second < 60 && is_digits;
    if !(is_time && year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day)) {
        return None;
    }
    // Howard Hinnant's days from civil date; his years begin in March.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    let milliseconds = format!("{fraction:0<3.3}").parse().ok()?;
    let of_day = Duration::from_secs(hour * 3_600 + minute * 60 + second) + Duration::from_millis(milliseconds);
    UNIX_EPOCH.checked_add(Duration::from_secs(days * DAY) + of_day)
}

/// Three numbers with these counts of digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut all = [0; 3];
    for (number, digits) in all.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w10_dates_are_of_utc_and_none_is_before_1970() {
        let at = |seconds, milliseconds: u32| UNIX_EPOCH + Duration::new(seconds, milliseconds * 1_000_000);
        for (time, text) in [
            (at(0, 0), "1970-01-01T00:00:00.000Z"),
            (at(951_782_400, 7), "2000-02-29T00:00:00.007Z"),
            (at(951_868_800, 0), "2000-03-01T00:00:00.000Z"),
            (at(1_795_569_961, 999), "2026-11-25T01:26:01.999Z"),
            (at(4_107_542_399, 120), "2100-02-28T23:59:59.120Z"),
        ] {
            assert_eq!(parse_rfc3339(text), Some(time), "{text}");
        }
        assert_eq!(parse_rfc3339("2000-02-29T00:00:00Z"), Some(at(951_782_400, 0)));
        assert_eq!(parse_rfc3339("2000-02-29T00:00:00.0071239Z"), Some(at(951_782_400, 7)));
        assert_eq!(parse_rfc3339("2000-02-29T00:00:00.1Z"), Some(at(951_782_400, 100)));
        for text in [
            "",
            "2000-02-29",
            "2000-02-29T00:00:00",
            "2000-02-29T00:00:00+00:00",
            "2000-02-29T24:00:00Z",
            "2000-13-01T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "2000-02-29T00:00:00.Z",
            "2000-2-29T00:00:00Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}

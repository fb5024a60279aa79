//! Dates and times of RFC 3339, as they stand in headers and bodies: in UTC, to the millisecond.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// A date and time in UTC, to the millisecond.
#[cfg(feature = "server")]
pub(crate) fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (seconds, milliseconds) = (since.as_secs(), since.subsec_millis());
    let (days, of_day) = (seconds / DAY, seconds % DAY);
    // Howard Hinnant's days to civil date, for days since 1970.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// Reads a date and time as [`rfc3339`] writes it, with any number of digits behind the seconds. `None` for every other form, and before
/// 1970.
#[cfg(feature = "client")]
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
#[cfg(feature = "client")]
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

#[cfg(all(test, feature = "client", feature = "server"))]
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
            assert_eq!(rfc3339(time), text);
            assert_eq!(parse_rfc3339(text), Some(time), "{text}");
        }
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
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

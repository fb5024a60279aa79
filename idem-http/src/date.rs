//! Dates and times of RFC 3339, as they stand in headers and bodies: in UTC, to the millisecond.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// A date and time in UTC, to the millisecond.
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
            assert_eq!(rfc3339(time), text);
        }
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
    }
}

//! Spans of time for people.

use std::{fmt, time::Duration};

/// Shows a span of time as it is, in the largest unit that it is a whole number of: `0s`, `90s`, `36h`, `7d`. This is how settings
/// are written.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(idem_core::internal::Exactly(Duration::from_secs(604_800)).to_string(), "7d");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exactly(pub Duration);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
        let whole = u64::try_from(self.0.as_millis()).ok().filter(|whole| Duration::from_millis(*whole) == self.0);
        let unit = whole.and_then(|whole| units.into_iter().find(|(unit, _)| whole.is_multiple_of(*unit)));
        match (whole, unit) {
            (Some(0), _) => f.write_str("0s"),
            (Some(whole), Some((unit, name))) => write!(f, "{}{name}", whole / unit),
            // Finer than any setting.
            (Some(_) | None, _) => write!(f, "{:?}", self.0),
        }
    }
}

/// Shows a span of time as people say it, in its largest unit and without what is left: `61 s`, `12 min`, `36 h`, `8 days`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roughly(pub Duration);

impl fmt::Display for Roughly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..120 => write!(f, "{seconds} s"),
            120..7_200 => write!(f, "{} min", seconds / 60),
            7_200..172_800 => write!(f, "{} h", seconds / 3_600),
            _ => write!(f, "{} days", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_is_shown_with_its_unit() {
        for (milliseconds, exactly, roughly) in [
            (0, "0s", "0 s"),
            (999, "999ms", "0 s"),
            (1_500, "1500ms", "1 s"),
            (90_000, "90s", "90 s"),
            (120_000, "2m", "2 min"),
            (129_600_000, "36h", "36 h"),
            (604_800_000, "7d", "7 days"),
            (604_801_000, "604801s", "7 days"),
        ] {
            let span = Duration::from_millis(milliseconds);
            assert_eq!((&*Exactly(span).to_string(), &*Roughly(span).to_string()), (exactly, roughly));
        }
        for (span, exactly) in
            [(Duration::from_micros(1_500), "1.5ms"), (Duration::MAX, "18446744073709551615.999999999s")]
        {
            assert_eq!(Exactly(span).to_string(), exactly);
        }
    }
}

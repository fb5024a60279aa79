//! Numbers as people write them: counts within bounds, and sizes, which are a number of bytes, or one with a unit, as `16MiB`.

use std::ops::RangeInclusive;

const UNITS: [(&str, usize); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

/// A number of bytes, or one with a unit: `1048576`, `256KiB`, `16MiB`.
///
/// # Errors
/// The required form of a size.
pub fn size(text: &str) -> Result<usize, String> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    // No sign and no blank, which `parse` would let through in part.
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<usize>().ok().filter(|_| is_number);
    number
        .and_then(|number| number.checked_mul(bytes))
        .ok_or_else(|| "it must be a number of bytes, or one with a unit, such as 256KiB or 16MiB".to_owned())
}

/// A parser of whole numbers within these bounds, so that a wrong one is reported before anything else happens.
pub(crate) fn count<T>(bounds: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| format!("it must be a whole number from {} to {}", bounds.start(), bounds.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_whole_number_within_its_bounds() {
        let lanes = count(1_usize..=1024);
        assert_eq!((lanes("1"), lanes("1024")), (Ok(1), Ok(1024)));
        for text in ["0", "1025", "two", "-1", "1.5", "", " 1", "99999999999999999999"] {
            assert_eq!(lanes(text), Err("it must be a whole number from 1 to 1024".to_owned()), "{text:?}");
        }
    }

    #[test]
    fn a_size_is_bytes_or_a_number_with_a_unit() {
        for (text, bytes) in [("0", 0), ("1048576", 1 << 20), ("7B", 7), ("256KiB", 256 << 10), ("16MiB", 16 << 20)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "1.5MiB", "-1", "+1", "1 MiB", "1MB", "1m", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}

//! Sizes as people write them: a number of bytes, or one with a unit, as `16MiB`.

const UNITS: [(&str, usize); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

/// # Errors
/// What a size must look like.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    // No sign and no blank, which `parse` would let through in part.
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<usize>().ok().filter(|_| is_number);
    number
        .and_then(|number| number.checked_mul(bytes))
        .ok_or_else(|| "it must be a number of bytes, or one with a unit, such as 256KiB or 16MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! The canonical form with exact numbers. `serde_json` hands numbers over as doubles, or, where any crate of an application
//! turns on a feature of it, as an object that a payload can imitate. So it only checks that the text is JSON, and reads the
//! strings; the rest is read here.

use std::collections::BTreeSet;

use serde::de::IgnoredAny;

use crate::json::{Canonical, DEPTH_MAX, deeper_than_max, quoted};

/// Parses `json`; `Err` says what makes it unfit for a canonical form, without quoting it.
pub(crate) fn exact(json: &[u8]) -> Result<Canonical, String> {
    if deeper_than_max(json) {
        return Err(format!("it is nested deeper than {DEPTH_MAX} levels"));
    }
    serde_json::from_slice::<IgnoredAny>(json)
        .map_err(|error| format!("it is no valid JSON at line {} column {}", error.line(), error.column()))?;
    Reader { rest: json }.value().ok_or_else(no_json)?
}

/// Cases that the check above has excluded.
fn no_json() -> String {
    "it is no valid JSON".to_owned()
}

/// Reads text that is known to be JSON. `None` where it is not, which the caller reports.
struct Reader<'a> {
    rest: &'a [u8],
}

type Read = Option<Result<Canonical, String>>;

impl<'a> Reader<'a> {
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    /// Whether another element follows, or the end is here. The separator or bracket is taken.
    fn goes_on(&mut self) -> Option<bool> {
        self.peek()?;
        match self.take(1)? {
            b"," => Some(true),
            b"]" | b"}" => Some(false),
            _ => None,
        }
    }

    fn is_empty(&mut self, end: u8) -> Option<bool> {
        self.take(1)?;
        let empty = self.peek()? == end;
        if empty {
            self.take(1)?;
        }
        Some(empty)
    }

    fn value(&mut self) -> Read {
        match self.peek()? {
            b'{' => self.object(),
            b'[' => self.list(),
            b'"' => Some(self.string()?.map(|text| Canonical::Scalar(quoted(&text)))),
            b't' | b'n' => self.word(4),
            b'f' => self.word(5),
            _ => self.number(),
        }
    }

    fn word(&mut self, bytes: usize) -> Read {
        Some(Ok(Canonical::Scalar(std::str::from_utf8(self.take(bytes)?).ok()?.to_owned())))
    }

    fn object(&mut self) -> Read {
        let (mut names, mut members) = (BTreeSet::new(), Vec::new());
        let mut more = !self.is_empty(b'}')?;
        while more {
            self.peek()?;
            let name = match self.string()? {
                Ok(name) => name,
                Err(problem) => return Some(Err(problem)),
            };
            if !names.insert(name.clone()) {
                return Some(Err("a member repeats".to_owned()));
            }
            self.peek()?;
            self.take(1).filter(|colon| colon == b":")?;
            match self.value()? {
                Ok(value) => members.push((name, value)),
                Err(problem) => return Some(Err(problem)),
            }
            more = self.goes_on()?;
        }
        Some(Ok(Canonical::Object(members)))
    }

    fn list(&mut self) -> Read {
        let mut items = Vec::new();
        let mut more = !self.is_empty(b']')?;
        while more {
            match self.value()? {
                Ok(item) => items.push(item),
                Err(problem) => return Some(Err(problem)),
            }
            more = self.goes_on()?;
        }
        Some(Ok(Canonical::List(items)))
    }

    fn string(&mut self) -> Option<Result<String, String>> {
        let mut escaped = true; // The opening quote ends nothing.
        let end = self.rest.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        // The check above looks neither at UTF-8 nor at surrogates.
        let text = serde_json::from_slice(self.take(end + 1)?);
        Some(text.map_err(|_| "it holds a string that is no Unicode text".to_owned()))
    }

    fn number(&mut self) -> Read {
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = self.rest.iter().take_while(|byte| is_part(byte)).count();
        let text = std::str::from_utf8(self.take(length)?).ok().filter(|text| !text.is_empty())?;
        Some(decimal(text).map(Canonical::Scalar))
    }
}

/// A number as its digits without a zero at either end, and the power of ten that they count: `-1.50` is `-15e-1`. Equal
/// numbers have one form, whatever they were written like. Zero has no sign (RFC 8785 §3.2.2.3).
fn decimal(text: &str) -> Result<String, String> {
    let (sign, unsigned) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, power) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let written = format!("{whole}{fraction}");
    let leading = written.trim_start_matches('0');
    let digits = leading.trim_end_matches('0');
    if digits.is_empty() {
        return Ok("0".to_owned());
    }
    let power = power.parse::<i64>().ok().and_then(|power| {
        let shift = i64::try_from(leading.len() - digits.len()).ok()?;
        power.checked_add(shift)?.checked_sub(i64::try_from(fraction.len()).ok()?)
    });
    match power {
        Some(0) => Ok(format!("{sign}{digits}")),
        Some(power) => Ok(format!("{sign}{digits}e{power}")),
        None => Err("it holds a number whose exponent is beyond 2^63".to_owned()),
    }
}

#[cfg(test)]
mod tests;

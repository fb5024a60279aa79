//! An error's text without values of statements or rows.

use std::error::Error;

use crate::{error::chain, store::Store};

/// The texts of an error and its sources in one line, down to the error of the store's driver, for which
/// [`Store::describe`] has words without the values of statements and rows. The sources behind that one may quote such
/// values and are left out, and so are errors around it that repeat the driver's own words.
#[must_use]
pub fn describe<S: Store>(error: &(dyn Error + 'static)) -> String {
    let links: Vec<_> = chain(error).collect();
    let secrets: Vec<String> =
        links.iter().filter(|link| S::describe(**link).is_some()).map(ToString::to_string).collect();
    let mut texts: Vec<String> = Vec::new();
    for link in links {
        let described = S::describe(link);
        let is_drivers = described.is_some();
        let text = described.unwrap_or_else(|| link.to_string());
        let repeats = !is_drivers && secrets.iter().any(|secret| text.contains(secret.as_str()));
        // Some libraries print their sources too.
        if !repeats && !texts.last().is_some_and(|last| last.ends_with(&text)) {
            texts.push(text);
        }
        if is_drivers {
            break;
        }
    }
    texts.join(": ")
}

/// The database's code of an error, which its store finds in the chain.
pub(crate) fn code<S: Store>(error: &(dyn Error + 'static)) -> Option<String> {
    chain(error).find_map(S::code)
}

/// The longest text of an error that is kept.
const ERROR_CHARS_MAX: usize = 500;

/// An error's [text](describe) in one line of bounded length.
pub(crate) fn one_line<S: Store>(error: &(dyn Error + 'static)) -> String {
    let text = describe::<S>(error);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_CHARS_MAX).collect()
}

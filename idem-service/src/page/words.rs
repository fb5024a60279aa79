//! Numbers, spans and commands as people read and type them.

use std::{fmt::Display, time::Duration};

use idem_core::internal::Roughly;
pub(super) use idem_core::standing::command_word as word;

/// Where the documentation can be read, whatever machine the page is looked at from.
pub(super) const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/");

/// The placeholder of a number that is not known yet.
pub(super) const UNKNOWN: &str = "not known yet";

/// A span as people say it.
pub(super) fn span(span: Duration) -> String {
    Roughly(span).to_string()
}

/// A count with its thousands apart: 3,011.
pub(super) fn grouped(count: impl Display) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The rate a second of this count over this time.
pub(super) fn rate(count: u64, over: Duration) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a rate is shown with two digits")]
    let rate = count as f64 / over.as_secs_f64().max(1.0);
    match rate {
        0.0 => "0".to_owned(),
        ..0.1 => "under 0.1".to_owned(),
        ..10.0 => format!("{rate:.1}"),
        _ => grouped(format!("{rate:.0}")),
    }
}

/// The class of a value: 0 and a missing one are no news.
pub(super) fn loudness(value: &str) -> &'static str {
    if matches!(value, "0" | "none" | "0 s" | UNKNOWN) { "quiet" } else { "" }
}

/// Controls, and the marks that turn the direction of the text behind them.
pub(super) fn misleads(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_its_largest_unit() {
        let told = |seconds| span(Duration::from_secs(seconds));
        assert_eq!([told(0), told(119), told(120), told(7_200)], ["0 s", "119 s", "2 min", "2 h"]);
        assert_eq!(told(604_800), "7 days");
    }

    #[test]
    fn counts_and_rates_are_told_as_people_read_them() {
        assert_eq!(["0", "999", "1000", "1234567"].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let rates = [(0, 60), (1, 60), (90, 60), (600, 60), (200_000, 60), (5, 0)];
        let rates = rates.map(|(count, seconds)| rate(count, Duration::from_secs(seconds)));
        assert_eq!(rates, ["0", "under 0.1", "1.5", "10", "3,333", "5.0"]);
    }

    /// J82: a key is a producer's text, and the command is pasted into an operator's shell.
    #[test]
    fn j82_a_word_is_one_word_for_a_shell_or_is_not_offered() {
        let words = [("order-1", "order-1"), ("a b", "'a b'"), ("$(reboot)", "'$(reboot)'"), ("", "''")];
        for (text, quoted) in words {
            assert_eq!(word(text).as_deref(), Some(quoted));
        }
        assert_eq!(word("it's; rm -rf ~").as_deref(), Some(r"'it'\''s; rm -rf ~'"));
        assert_eq!(word("a\u{202e}b"), None);
        assert_eq!(word("a\nb"), None);
    }
}

//! An event and an answer with their values as literals: sqlx sends parameters with one statement at a time, but texts of several
//! statements, so that these go out with the seal and the COMMIT.

use std::fmt::Write as _;

use idem_schema::{EventColumns, PostgresStatements, ResultRow};

/// Of this many bytes and more a value is sent as a parameter: a literal is twice as long.
const LONGEST: usize = 8 * 1024;

/// The columns of an event, each a parameter; the statement's last one is the rank of the only event.
const EVENT_TYPES: &str = "int4, int4, uuid, text, bytea, text, text, text, bytea, bytea";
const RESULT_TYPES: &str = "text, text[], int4, uuid, int4, int4, text, text, bytea, int4, int8, text";

/// Prepares both for the session.
pub(super) fn prepare(statements: &PostgresStatements) -> String {
    let columns = EVENT_TYPES.split(", ").count();
    let event = statements.append_one_before_seal.replace(&format!("${}", columns + 1), "ARRAY[1]");
    let numbers = (1..=columns).rev();
    let event =
        numbers.fold(event, |text, number| text.replace(&format!("${number}::"), &format!("ARRAY[${number}]::")));
    let answer = &statements.seal_result;
    format!("PREPARE idem_event ({EVENT_TYPES}) AS {event}; PREPARE idem_answer ({RESULT_TYPES}) AS {answer}")
}

pub(super) const FORGET: &str = "DEALLOCATE idem_event; DEALLOCATE idem_answer; ";

/// The statement that writes the only one of these events; `None` where it takes parameters.
pub(super) fn event(events: &EventColumns<'_>) -> Option<String> {
    let mut values = Values::of("EXECUTE idem_event(");
    let (headers, payload) = (events.headers.first()?.as_deref(), *events.payloads.first()?);
    values.number(*events.destinations.first()?).number(*events.consumers.first()?);
    values.text(Some(&events.key_ids.first()?.to_string())).text(events.keys.first().copied());
    values.bytes(*events.ordering_keys.first()?).text(*events.event_types.first()?);
    values
        .text(*events.content_types.first()?)
        .text(headers)
        .bytes(Some(payload))
        .bytes(events.hashes.first().copied());
    values.end()
}

/// The seal of this transaction that writes an answer; `None` where it takes parameters.
pub(super) fn seal_with(answer: &ResultRow<'_>, xid: &str, durable: &str) -> Option<String> {
    let mut values = Values::of("EXECUTE idem_answer(");
    values.text(Some(xid)).text(Some(durable)).number(answer.consumer).text(Some(&answer.key_id.to_string()));
    values.number(answer.kind).maybe(answer.status).text(answer.content_type).text(answer.headers.as_deref());
    values.bytes(Some(answer.body)).maybe(answer.sealed_with).maybe(answer.kept_for).text(answer.reference);
    values.end()
}

/// A statement whose values are written one by one, as constants that the server reads alike whatever `standard_conforming_strings`
/// says. Writing to a String cannot fail.
struct Values {
    text: String,
    /// Whether one has no literal: the simple protocol ends texts with a NUL.
    is_unfit: bool,
}

impl Values {
    fn of(statement: &str) -> Self {
        Self { text: statement.to_owned(), is_unfit: false }
    }

    fn number(&mut self, value: i32) -> &mut Self {
        self.maybe(Some(value))
    }

    fn maybe(&mut self, value: Option<impl Into<i64>>) -> &mut Self {
        self.text(value.map(|value| value.into().to_string()).as_deref())
    }

    fn text(&mut self, value: Option<&str>) -> &mut Self {
        let Some(value) = value else { return self.null() };
        self.is_unfit |= value.len() >= LONGEST || value.contains('\0');
        let _ = write!(self.text, "E'{}', ", value.replace('\\', r"\\").replace('\'', "''"));
        self
    }

    fn bytes(&mut self, value: Option<&[u8]>) -> &mut Self {
        let Some(value) = value else { return self.null() };
        self.is_unfit |= value.len() >= LONGEST;
        self.text.push_str(r"E'\\x");
        for byte in value.iter().take(LONGEST) {
            let _ = write!(self.text, "{byte:02x}");
        }
        self.text.push_str("', ");
        self
    }

    fn null(&mut self) -> &mut Self {
        self.text.push_str("NULL, ");
        self
    }

    fn end(self) -> Option<String> {
        let values = self.text.trim_end_matches(", ");
        (!self.is_unfit).then(|| format!("{values})"))
    }
}

#[cfg(test)]
mod tests {
    use super::Values;

    #[test]
    fn values_are_read_as_they_were() {
        let mut values = Values::of("f(");
        values.number(-7).text(Some(r"it's a \ and $1; --")).text(None).bytes(Some(&[0, 255])).bytes(Some(b""));
        let expected = r"f(E'-7', E'it''s a \\ and $1; --', NULL, E'\\x00ff', E'\\x')";
        assert_eq!(values.end().as_deref(), Some(expected));
    }

    #[test]
    fn a_nul_and_long_values_have_no_literal() {
        let long = "a".repeat(super::LONGEST);
        for text in ["a\0b", &long] {
            let mut values = Values::of("f(");
            values.text(Some(text));
            assert_eq!(values.end(), None);
        }
        let mut values = Values::of("f(");
        values.bytes(Some(long.as_bytes()));
        assert_eq!(values.end(), None);
    }
}

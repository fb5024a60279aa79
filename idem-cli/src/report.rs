//! The output of a command: tables for people, or JSON.

use std::{
    fmt,
    io::{self, Write as _},
};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::exit::{self, Exit};

/// Rows with named columns. The database makes each row a JSON object, whose order of members is that of the columns.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

#[derive(Debug, Default)]
pub(crate) struct Row(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Row;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Row(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Row {
    pub(crate) fn new<const N: usize>(members: [(&str, Value); N]) -> Self {
        Self(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    pub(crate) fn get(&self, name: &str) -> &Value {
        self.0.iter().find(|(column, _)| column == name).map_or(&Value::Null, |(_, value)| value)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &(String, Value)> {
        self.0.iter()
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).as_str().unwrap_or_default()
    }

    pub(crate) fn number(&self, name: &str) -> i64 {
        self.get(name).as_i64().unwrap_or_default()
    }
}

impl FromIterator<(String, Value)> for Row {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(members: I) -> Self {
        Self(members.into_iter().collect())
    }
}

impl FromIterator<Row> for Table {
    fn from_iter<I: IntoIterator<Item = Row>>(rows: I) -> Self {
        Self(rows.into_iter().collect())
    }
}

impl Table {
    pub(crate) fn rows(&self) -> &[Row] {
        &self.0
    }

    pub(crate) fn into_rows(self) -> Vec<Row> {
        self.0
    }

    /// The first rows, at most this many.
    pub(crate) fn first(mut self, max: usize) -> Self {
        self.0.truncate(max);
        self
    }

    /// With further rows behind.
    pub(crate) fn and(mut self, rows: Vec<Row>) -> Self {
        self.0.extend(rows);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn json(self) -> Value {
        Value::Array(self.0.into_iter().map(|row| Value::Object(row.0.into_iter().collect())).collect())
    }

    /// One line a value, for rows that are read one by one and have more columns than a terminal. Rows stand apart.
    fn values(&self) -> Vec<String> {
        let name_of = |name: &str| name.replace('_', " ");
        let width = self.0.iter().flat_map(|row| &row.0).map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let of_row = |row: &Row| -> Vec<String> {
            row.0.iter().map(|(name, value)| format!("{:<width$}  {}", name_of(name), shown(name, value))).collect()
        };
        self.0.iter().map(of_row).collect::<Vec<_>>().join(&[String::new()][..])
    }

    /// One line a row, under the names of the columns that have a value in some row. Columns that do not fit into `width`, the widest
    /// first, have a line of their own below each row.
    fn lines(&self, width: Option<usize>) -> Vec<String> {
        let Some(first) = self.0.first() else { return Vec::new() };
        let is_empty = |column: usize| self.0.iter().all(|row| row.0[column].1.is_null());
        let mut columns: Vec<usize> = (0..first.0.len()).filter(|column| !is_empty(*column)).collect();
        let names = first.0.iter().map(|(name, _)| name.to_uppercase().replace('_', " ")).collect();
        let cells = self.0.iter().map(|row| row.0.iter().map(|(name, value)| shown(name, value)).collect());
        let lines: Vec<Vec<String>> = std::iter::once(names).chain(cells).collect();
        let width_of = |column: &usize| lines.iter().map(|line| line[*column].chars().count()).max().unwrap_or(0);
        let mut below = Vec::new();
        while let Some(width) = width
            && columns.iter().map(|column| width_of(column) + GAP).sum::<usize>() > width + GAP
            && let Some(widest) = (1..columns.len()).max_by_key(|place| width_of(&columns[*place]))
        {
            below.push(columns.remove(widest));
        }
        below.sort_unstable();
        let padded = |line: &Vec<String>| {
            let cell = |column: &usize| format!("{:<1$}", line[*column], width_of(column) + GAP);
            columns.iter().map(cell).collect::<String>().trim_end().to_owned()
        };
        let mut all: Vec<String> = lines.first().map(padded).into_iter().collect();
        for (row, line) in self.0.iter().zip(&lines[1..]) {
            all.push(padded(line));
            let has_value = |column: &&usize| !row.0[**column].1.is_null();
            all.extend(below.iter().filter(has_value).map(|column| {
                let name = first.0[*column].0.replace('_', " ");
                format!("    {name}: {}", line[*column])
            }));
        }
        all
    }
}

/// The blanks between two columns.
const GAP: usize = 2;

/// A value in one line. Characters that would steer a terminal, break the line or turn the order of its letters are escaped (S5).
/// The microseconds of a time are left to JSON.
fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) if name == "at" || name.ends_with("_at") => printable(&whole_seconds(text)),
        Value::Null => "-".to_owned(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => printable(text),
        Value::Array(_) | Value::Object(_) => printable(&value.to_string()),
    }
}

/// `2026-11-24T21:37:20.123456+00:00` without its fraction, and with Z for UTC.
fn whole_seconds(time: &str) -> String {
    let time = match time.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}{}", fraction.trim_start_matches(|c: char| c.is_ascii_digit())),
        None => time.to_owned(),
    };
    time.strip_suffix("+00:00").map(|utc| format!("{utc}Z")).unwrap_or(time)
}

/// Whether a character changes how others are shown, or ends a line, and is not seen itself.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_unseen(c) { printable.extend(c.escape_default()) } else { printable.push(c) }
    }
    printable
}

/// How people see the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    RowPerLine,
    ValuePerLine,
}

/// The answer of a command.
#[derive(Debug)]
pub(crate) struct Report {
    exit: Exit,
    sections: Vec<(&'static str, Table, Shape)>,
    lines: Vec<String>,
    /// A text that is to be used elsewhere, such as a script: it is printed as it is.
    text: Option<String>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { exit: Exit::Done, sections: Vec::new(), lines: Vec::new(), text: None }
    }

    pub(crate) fn script(text: String) -> Self {
        Self { text: Some(text), ..Self::new() }
    }

    pub(crate) fn said(line: impl Into<String>) -> Self {
        Self::new().line(line)
    }

    pub(crate) fn table(mut self, name: &'static str, table: Table) -> Self {
        self.sections.push((name, table, Shape::RowPerLine));
        self
    }

    /// The same, which people see one value a line.
    pub(crate) fn record(mut self, name: &'static str, table: Table) -> Self {
        self.sections.push((name, table, Shape::ValuePerLine));
        self
    }

    pub(crate) fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    pub(crate) fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Prints it. A reader that has closed the pipe, such as `head`, has read enough.
    pub(crate) fn print(self, is_json: bool) -> Exit {
        let exit = self.exit;
        // A pipe or a file has no width, and its reader expects a row a line.
        let width = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
        let lines = if is_json { vec![self.json()] } else { self.lines(width) };
        let text = lines.into_iter().map(|line| line + "\n").collect::<String>();
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                exit::say(&format!("the answer cannot be written: {error}"));
                Exit::Refused
            }
            Ok(()) | Err(_) => exit,
        }
    }

    fn json(self) -> String {
        if let Some(text) = self.text {
            return text.trim_end().to_owned();
        }
        let sections = self.sections.into_iter().map(|(name, table, _)| (name.replace(' ', "_"), table.json()));
        let mut members: Map<String, Value> = sections.collect();
        members.insert("messages".to_owned(), self.lines.into());
        Value::Object(members).to_string()
    }

    fn lines(self, width: Option<usize>) -> Vec<String> {
        if let Some(text) = self.text {
            return vec![text.trim_end().to_owned()];
        }
        let is_single = self.sections.len() == 1;
        let mut lines = Vec::new();
        for (name, table, shape) in self.sections {
            if table.is_empty() {
                lines.push(format!("no {name}"));
                continue;
            }
            if !is_single {
                lines.push(name.to_owned());
            }
            lines.extend(match shape {
                Shape::RowPerLine => table.lines(width),
                Shape::ValuePerLine => table.values(),
            });
        }
        lines.extend(self.lines.iter().map(|line| printable(line)));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s19_what_turns_the_order_of_letters_is_escaped() {
        assert_eq!(printable("a\u{202e}b\u{2028}c\u{200f}d\u{2066}"), r"a\u{202e}b\u{2028}c\u{200f}d\u{2066}");
        assert_eq!(printable("Grüße, עברית, 日本"), "Grüße, עברית, 日本");
    }

    #[test]
    fn s5_a_row_keeps_its_order_and_no_control_character() {
        let row: Row =
            serde_json::from_str(r#"{"key":"a","attempts":3,"error":"\u001b[2Jx\ny","since":null}"#).unwrap();
        let lines = Table(vec![row]).lines(None);
        assert_eq!(lines, ["KEY  ATTEMPTS  ERROR", r"a    3         \u{1b}[2Jx\ny"]);
    }

    #[test]
    fn what_does_not_fit_stands_below_its_row_and_empty_columns_go() {
        let rows = r#"[
            {"id":1,"tenant":null,"error":"a long one that has no room","last_at":"2026-11-24T21:37:20.123456+00:00","copies":1},
            {"id":2,"tenant":null,"error":null,"last_at":"2026-11-24T21:37:21+00:00","copies":12}]"#;
        let rows: Vec<Row> = serde_json::from_str(rows).unwrap();
        let table = Table(rows);
        let whole = table.lines(None);
        assert_eq!(whole[0], "ID  ERROR                        LAST AT               COPIES");
        assert_eq!(whole[2], "2   -                            2026-11-24T21:37:21Z  12");
        assert_eq!(table.lines(Some(whole.iter().map(String::len).max().unwrap())), whole);
        let narrow = [
            "ID  LAST AT               COPIES",
            "1   2026-11-24T21:37:20Z  1",
            "    error: a long one that has no room",
            "2   2026-11-24T21:37:21Z  12",
        ];
        assert_eq!(table.lines(Some(40)), narrow);
        assert_eq!(table.lines(Some(1)).len(), 8, "the first column stays, and each value is there");
    }
}

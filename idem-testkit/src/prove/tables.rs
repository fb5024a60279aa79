//! Compares the content of two databases: which columns say something, and which rows one has and the other has not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use idem_core::scratch::{Row, Tables};

/// Columns that differ from run to run, such as times and numbers from a sequence, by table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Volatile(BTreeMap<String, BTreeSet<String>>);

/// One row too many or too few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) table: String,
    pub(super) row: Row,
    pub(super) seen: usize,
    pub(super) expected: usize,
}

/// How many values of a column a text shows at most, and how many characters of each.
const COLUMNS_SHOWN: usize = 8;
const CHARACTERS_SHOWN: usize = 40;

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| match value {
            Some(text) if text.chars().count() > CHARACTERS_SHOWN => {
                format!("{}…", text.chars().take(CHARACTERS_SHOWN).collect::<String>())
            }
            Some(text) => text.clone(),
            None => "NULL".to_owned(),
        };
        let columns: Vec<_> = self.row.iter().map(|(name, text)| format!("{name}={}", value(text))).collect();
        let more = if columns.len() > COLUMNS_SHOWN { ", …" } else { "" };
        write!(f, "row ({}{more}) of table {}", columns[..columns.len().min(COLUMNS_SHOWN)].join(", "), self.table)
    }
}

impl Volatile {
    /// The columns without which all of these are the same; `None` where no columns make them so, because tables have
    /// different numbers of rows.
    pub(super) fn between(runs: &[&Tables]) -> Option<Self> {
        let mut volatile = Self::default();
        let Some((first, others)) = runs.split_first() else { return Some(volatile) };
        for other in others {
            for table in first.keys().chain(other.keys()) {
                volatile.learn(table, rows(first, table), rows(other, table))?;
            }
        }
        Some(volatile)
    }

    fn learn(&mut self, table: &str, one: &[Row], other: &[Row]) -> Option<()> {
        if one.len() != other.len() {
            return None;
        }
        let columns: BTreeSet<&String> = one.iter().chain(other).flat_map(Row::keys).collect();
        let differs = |names: &BTreeSet<String>, column: &String| {
            let values = |rows: &[Row]| {
                let mut values: Vec<_> = rows.iter().map(|row| row.get(column).cloned().flatten()).collect();
                values.sort();
                values
            };
            !names.contains(column) && values(one) != values(other)
        };
        let names = self.0.entry(table.to_owned()).or_default();
        let differing: Vec<_> = columns.iter().filter(|column| differs(names, column)).collect();
        names.extend(differing.into_iter().map(|column| (*column).clone()));
        // Columns that hold the same values in other rows: the one first whose absence helps most.
        loop {
            let left = |names: &BTreeSet<String>| mismatches(one, other, names);
            if left(names) == 0 {
                return Some(());
            }
            let candidates = columns.iter().filter(|column| !names.contains(**column));
            let best = candidates.min_by_key(|column| {
                let mut without = names.clone();
                without.insert((**column).clone());
                left(&without)
            });
            names.insert((*best?).clone());
        }
    }

    /// The columns, as `table.column`.
    pub(super) fn names(&self) -> Vec<String> {
        let of = |(table, columns): (&String, &BTreeSet<String>)| {
            columns.iter().map(|column| format!("{table}.{column}")).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    /// The rows of which there are more, or fewer, than expected. Columns that vary are left out.
    pub(super) fn differences(&self, expected: &Tables, seen: &Tables) -> Vec<Difference> {
        let mut differences = Vec::new();
        let tables: BTreeSet<&String> = expected.keys().chain(seen.keys()).collect();
        for table in tables {
            let none = BTreeSet::new();
            let names = self.0.get(table).unwrap_or(&none);
            let mut counts: BTreeMap<Row, (usize, usize)> = BTreeMap::new();
            rows(expected, table).iter().for_each(|row| counts.entry(without(row, names)).or_default().0 += 1);
            rows(seen, table).iter().for_each(|row| counts.entry(without(row, names)).or_default().1 += 1);
            let differing = counts.into_iter().filter(|(_, (expected, seen))| expected != seen);
            differences.extend(differing.map(|(row, (expected, seen))| Difference {
                table: table.clone(),
                row,
                seen,
                expected,
            }));
        }
        // Surplus rows say more than missing ones.
        differences.sort_by_key(|difference| difference.seen < difference.expected);
        differences
    }
}

fn rows<'t>(tables: &'t Tables, table: &str) -> &'t [Row] {
    tables.get(table).map_or(&[], Vec::as_slice)
}

fn without(row: &Row, names: &BTreeSet<String>) -> Row {
    row.iter().filter(|(name, _)| !names.contains(*name)).map(|(name, text)| (name.clone(), text.clone())).collect()
}

/// How many rows of one have no equal in the other.
fn mismatches(one: &[Row], other: &[Row], names: &BTreeSet<String>) -> usize {
    let mut counts: BTreeMap<Row, i64> = BTreeMap::new();
    one.iter().for_each(|row| *counts.entry(without(row, names)).or_default() += 1);
    other.iter().for_each(|row| *counts.entry(without(row, names)).or_default() -= 1);
    counts.values().map(|count| count.unsigned_abs() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[(&str, &str)]]) -> Tables {
        let row = |columns: &&[(&str, &str)]| {
            columns.iter().map(|(name, text)| ((*name).to_owned(), Some((*text).to_owned()))).collect::<Row>()
        };
        Tables::from([("purchases".to_owned(), rows.iter().map(row).collect())])
    }

    #[test]
    fn times_and_numbers_that_vary_are_left_out_and_nothing_else() {
        let one = table(&[&[("id", "1"), ("key", "a"), ("at", "10")], &[("id", "2"), ("key", "b"), ("at", "11")]]);
        let other = table(&[&[("id", "2"), ("key", "a"), ("at", "20")], &[("id", "1"), ("key", "b"), ("at", "21")]]);
        let volatile = Volatile::between(&[&one, &other]).unwrap();
        assert_eq!(volatile.names(), ["purchases.at", "purchases.id"]);
        assert!(volatile.differences(&one, &other).is_empty());
        let twice = table(&[
            &[("id", "1"), ("key", "a"), ("at", "1")],
            &[("id", "2"), ("key", "b"), ("at", "2")],
            &[("id", "3"), ("key", "b"), ("at", "3")],
        ]);
        let differences = volatile.differences(&one, &twice);
        assert_eq!(differences.len(), 1);
        assert_eq!((differences[0].expected, differences[0].seen), (1, 2));
        assert_eq!(differences[0].to_string(), "row (key=b) of table purchases");
    }

    #[test]
    fn another_number_of_rows_is_no_matter_of_columns() {
        let one = table(&[&[("key", "a")]]);
        assert_eq!(Volatile::between(&[&one, &table(&[])]), None);
        assert_eq!(Volatile::between(&[&one, &one]).unwrap().names(), Vec::<String>::new());
    }
}

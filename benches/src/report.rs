//! Rounds of each line of a table, interleaved, and their results.

use std::{error::Error, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The unit of most tables.
pub(crate) const RATE: &str = "messages a second";

/// The values of one line in each round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) rounds: Vec<f64>,
}

impl Line {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), rounds: Vec::new() }
    }

    pub(crate) fn note(&mut self, messages: usize, took: Duration) {
        self.rounds.push(messages as f64 / took.as_secs_f64());
    }

    fn sorted(&self) -> Vec<f64> {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(f64::total_cmp);
        rounds
    }

    pub(crate) fn median(&self) -> f64 {
        let rounds = self.sorted();
        rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }
}

/// Lines that were measured beside each other. Ratios are against the first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Table {
    /// The name that pictures and targets use.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) lines: Vec<Line>,
}

impl Table {
    /// Prints the table, and answers it.
    pub(crate) fn print(id: impl Into<String>, title: impl Into<String>, unit: &str, lines: Vec<Line>) -> Self {
        let table = Self { id: id.into(), title: title.into(), unit: unit.to_owned(), lines };
        let first = table.lines.first().map_or(f64::NAN, Line::median);
        println!("\n{}", table.title);
        println!("  {:<72} {:>9} {:>9} {:>9} {:>8}", table.unit, "min", "median", "max", "ratio");
        for line in &table.lines {
            let (sorted, median) = (line.sorted(), line.median());
            let (min, max) = (sorted.first().copied().unwrap_or(f64::NAN), line.max());
            let [min, mid, max] = [min, median, max].map(number);
            let ratio = if first > 0.0 { format!("{:.2}x", median / first) } else { String::new() };
            println!("  {:<72} {min:>9} {mid:>9} {max:>9} {ratio:>8}", line.name);
        }
        table
    }

    pub(crate) fn line(&self, name: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.name == name)
    }
}

/// A number with as many digits as it deserves.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Writes the results of a run to a file, for people's own tools and for the pictures.
pub(crate) fn write(file: &str, tables: &[Table], targets: &[Value]) -> Result<(), Box<dyn Error>> {
    let tables: Vec<Value> = tables
        .iter()
        .map(|table| {
            let first = table.lines.first().map_or(f64::NAN, Line::median);
            let line = |line: &Line| {
                let median = line.median();
                json!({ "name": line.name, "rounds": line.rounds, "median": median, "ratio": median / first })
            };
            let lines: Vec<Value> = table.lines.iter().map(line).collect();
            json!({ "id": table.id, "title": table.title, "unit": table.unit, "lines": lines })
        })
        .collect();
    std::fs::write(file, serde_json::to_string_pretty(&json!({ "tables": tables, "targets": targets }))?)?;
    Ok(())
}

/// The tables of such a file.
pub(crate) fn read(file: &str) -> Result<Vec<Table>, Box<dyn Error>> {
    let mut run: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    Ok(serde_json::from_value(run["tables"].take())?)
}

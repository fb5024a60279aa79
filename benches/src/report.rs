//! Rounds of each case, interleaved, and what they come to.

use std::time::Duration;

use serde_json::{Value, json};

/// Messages a second of each round of one case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    rates: Vec<f64>,
}

impl Case {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, rates: Vec::new() }
    }

    pub(crate) fn note(&mut self, messages: usize, took: Duration) {
        self.rates.push(messages as f64 / took.as_secs_f64());
    }

    fn sorted(&self) -> Vec<f64> {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates
    }

    pub(crate) fn median(&self) -> f64 {
        let rates = self.sorted();
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn json(&self, first: f64) -> Value {
        json!({ "case": self.name, "rounds": self.rates, "median": self.median(), "ratio": self.median() / first })
    }
}

/// Prints a table; ratios are against the first case.
pub(crate) fn print(title: &str, cases: &[Case]) -> Value {
    let first = cases.first().map_or(f64::NAN, Case::median);
    println!("\n{title}");
    println!("  {:<58} {:>10} {:>10} {:>10} {:>8}", "messages a second", "min", "median", "max", "ratio");
    for case in cases {
        let rates = case.sorted();
        let (min, max) = (rates.first().copied().unwrap_or(f64::NAN), rates.last().copied().unwrap_or(f64::NAN));
        let median = case.median();
        println!("  {:<58} {min:>10.0} {median:>10.0} {max:>10.0} {:>7.2}x", case.name, median / first);
    }
    json!({ "title": title, "cases": cases.iter().map(|case| case.json(first)).collect::<Vec<_>>() })
}

//! The report on the mutants that ran.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use crate::{
    Failed,
    run::{End, KILLERS},
    write::Mutant,
};

/// Why mutants may live: a reason, and below it parts of their names, indented.
const REASONS: &str = include_str!("../reasons.txt");

const UNEXPLAINED: &str = "**no reason yet**";

/// The figures, and the mutants that live by each reason.
pub(crate) fn table(mutants: &[Mutant], compiled: usize, ends: &[End]) -> Result<String, Failed> {
    let mut text = String::new();
    writeln!(text, "{} mutants are listed, {compiled} compile, {} ran.\n", mutants.len(), ends.len())?;
    writeln!(text, "| | mutants |\n|---|---|")?;
    for (place, killer) in KILLERS.iter().enumerate() {
        writeln!(text, "| die of {} | {} |", killer.name, ends.iter().filter(|end| end.killer == Some(place)).count())?;
    }
    let mut living = BTreeMap::<&str, Vec<&str>>::new();
    for end in ends.iter().filter(|end| end.killer.is_none()) {
        let name = mutants[end.number].name.as_str();
        living.entry(reason(name)).or_default().push(name);
    }
    writeln!(text, "| live | {} |\n", living.values().map(Vec::len).sum::<usize>())?;
    writeln!(text, "| why they live | | which |\n|---|---|---|")?;
    for (reason, mut names) in living {
        names.sort_unstable();
        let number = names.len();
        let names: Vec<String> = names.into_iter().map(|name| format!("`{}`", name.replace('|', "\\|"))).collect();
        writeln!(text, "| {reason} | {number} | {} |", names.join("<br>"))?;
    }
    Ok(text)
}

fn reason(name: &str) -> &'static str {
    let mut reason = UNEXPLAINED;
    for line in REASONS.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("    ") {
            Some(part) if name.contains(part) => return reason,
            Some(_) => {}
            None => reason = line,
        }
    }
    UNEXPLAINED
}

/// Writes the table into the page that has its place.
pub(crate) fn write(page: &Path, table: &str) -> Result<(), Failed> {
    const ENDS: (&str, &str) = ("<!-- mutants -->\n", "<!-- end of mutants -->");
    let text = fs::read_to_string(page)?;
    let parts = text.split_once(ENDS.0).and_then(|(before, rest)| Some((before, rest.split_once(ENDS.1)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{} has no place for the mutants", page.display()))?;
    Ok(fs::write(page, format!("{before}{}{table}{}{after}", ENDS.0, ENDS.1))?)
}

//! Lines of Rust, and lines that differ.

use std::{fs, path::Path};

use crate::run::output;

/// Lines of Rust in all, and of those the product's.
pub(crate) fn lines() -> Result<(usize, usize), String> {
    let (mut all, mut product) = (0, 0);
    for file in output("git", &["ls-files", "*.rs"])?.lines() {
        // It may be deleted and not committed yet.
        let Ok(text) = fs::read_to_string(file) else { continue };
        let lines = text.lines().count();
        all += lines;
        if is_product(file) {
            product += lines;
        }
    }
    Ok((all, product))
}

fn is_product(file: &str) -> bool {
    let parts: Vec<&str> = file.split('/').collect();
    let is_source = matches!(parts[..], [name, "src", ..] if name.starts_with("idem-"));
    let is_kit = matches!(parts[0], "idem-testkit" | "idem-conformance");
    is_source && !is_kit && !parts.iter().any(|part| matches!(*part, "tests.rs" | "tests"))
}

/// The lines of the second file that the first has not, or the other way round, whichever are more: a changed line is one.
pub(crate) fn changed(before: &Path, after: &Path) -> Result<Option<usize>, String> {
    if !before.exists() || !after.exists() {
        return Ok(None);
    }
    let (before, after) = (before.display().to_string(), after.display().to_string());
    let counted = output("git", &["diff", "--no-index", "--numstat", &before, &after]);
    // Its exit status is 1 where there is a difference.
    let text = counted.or_else(|text| if text.contains('\t') { Ok(text) } else { Err(text) })?;
    let numbers = text.split('\t').take(2).filter_map(|number| number.trim().parse().ok());
    Ok(Some(numbers.max().unwrap_or(0)))
}

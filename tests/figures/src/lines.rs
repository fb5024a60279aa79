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
    // Its exit status is 1 where there is a difference, and then the numbers are below the command's own line.
    let (Ok(text) | Err(text)) = &counted;
    match text.lines().find_map(numbers) {
        Some((added, removed)) => Ok(Some(added.max(removed))),
        None => counted.map(|_same| Some(0)),
    }
}

/// The two numbers of a line of `git diff --numstat`.
fn numbers(line: &str) -> Option<(usize, usize)> {
    let mut columns = line.split('\t').map(|column| column.parse().ok());
    Some((columns.next()??, columns.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_only_grew_counts_what_was_added() {
        let folder = std::env::temp_dir().join(format!("idem-figures-lines-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (before, after) = (file("before.rs", "a\nb\n"), file("after.rs", "a\nc\nd\ne\n"));
        let counted = [changed(&before, &after), changed(&after, &before), changed(&after, &after)];
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(counted, [Ok(Some(3)), Ok(Some(3)), Ok(Some(0))]);
    }
}

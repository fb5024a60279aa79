//! S11: every function in every statement is called by its full name, so that no function of another role's in the
//! search_path can be it. The server's check that operators cannot be taken over either stands beside each crate's
//! statements.

use std::path::{Path, PathBuf};

/// Words that are written like calls, and are grammar or the server's own by grammar.
const GRAMMAR: [&str; 6] = ["coalesce", "greatest", "least", "nullif", "extract", "substring"];

/// Words by which a literal is known to be part of a statement.
const SQL: [&str; 10] =
    ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "FROM ", "WHERE ", "CASE ", " AS ", "DEFAULT ", "EXECUTE "];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path
            .components()
            .any(|part| ["tests", "tests.rs", "sqlite", "sqlite.rs"].iter().any(|t| part.as_os_str() == *t));
        if path.is_dir() {
            files(&path, found);
        } else if !is_test && path.extension().is_some_and(|extension| extension == "rs" || extension == "sql") {
            found.push(path);
        }
    }
}

/// The literals of a source that look like parts of statements, without comments and without the unit tests at its end.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let (mut found, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (tail, quote) = (&rest[at..], rest[at..].chars().next().unwrap());
        if tail.starts_with("//") {
            rest = tail.find('\n').map_or("", |end| &tail[end..]);
        } else if quote == '"' {
            let mut escaped = false;
            let end = tail[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let end = end.expect("every literal ends") + 1;
            found.push(tail[1..end].to_owned());
            rest = &tail[end + 1..];
        } else {
            // A character, perhaps a quote, or a lifetime.
            let skip = if tail.starts_with("'\"'") || tail.starts_with("'\\\"'") {
                tail[1..].find('\'').unwrap() + 2
            } else {
                1
            };
            rest = &tail[skip..];
        }
    }
    found.retain(|text| SQL.iter().any(|word| text.contains(word)));
    found
}

/// The names that are called without their schema.
fn bare_calls(statement: &str) -> Vec<String> {
    let lines = statement.lines().map(|line| line.split("-- ").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join(" ");
    // Text between quotes is a value.
    let code: String = text.split('\'').step_by(2).collect::<Vec<_>>().join(" \u{1} ");
    let is_name = |c: char| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit();
    let calls = code.match_indices('(').filter_map(|(at, _)| {
        let name = code[..at].rsplit(|c| !is_name(c)).next().unwrap_or_default();
        let before = code[..at - name.len()].chars().next_back();
        // A prepared statement is the session's own.
        let is_prepared = code[..at - name.len()].ends_with("EXECUTE ");
        let is_bare =
            !name.is_empty() && !before.is_some_and(|c| c == '.' || c == ':' || c == '}' || c.is_ascii_uppercase());
        (is_bare && !is_prepared && !GRAMMAR.contains(&name)).then(|| name.to_owned())
    });
    calls.collect()
}

#[test]
fn s11_a_bare_call_is_seen() {
    assert_eq!(bare_calls("SELECT now(), pg_catalog.now(), 'count(*)', x.y(1) -- max(1)"), ["now"]);
    assert_eq!(bare_calls("WITH a (b) AS (SELECT coalesce(array_agg(c), '{}'))"), ["array_agg"]);
    assert_eq!(literals("let a = 'x'; // \"SELECT max(1) FROM b\"\nf(\"SELECT 1 FROM c\")"), ["SELECT 1 FROM c"]);
}

#[test]
fn s11_no_statement_calls_a_function_by_its_bare_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources = vec![root.join("migrations/postgres/roles.sql")];
    for folder in
        ["idem-sql/src", "idem-cli/src", "idem-sqlx/src/postgres", "idem-tokio-postgres/src", "idem-service/src"]
    {
        files(&root.join(folder), &mut sources);
    }
    let (mut seen, mut bare) = (0, Vec::new());
    for path in sources {
        let source = std::fs::read_to_string(&path).unwrap();
        let is_sql = path.extension().is_some_and(|extension| extension == "sql");
        let statements = if is_sql { vec![source] } else { literals(&source) };
        seen += statements.iter().filter(|text| text.contains("pg_catalog.")).count();
        // SQLite has no schemas that could take a call over.
        let statements = statements.iter().filter(|text| !text.contains("julianday("));
        bare.extend(statements.flat_map(|text| bare_calls(text)).map(|name| format!("{name} in {}", path.display())));
    }
    assert!(bare.is_empty(), "{bare:#?}");
    assert!(seen > 60, "only {seen} statements were found");
}

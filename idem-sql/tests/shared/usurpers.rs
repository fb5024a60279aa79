//! Objects that another role may put into a schema of the search_path to take idem's statements over. Every crate with
//! statements of its own includes this file in its tests.

use std::collections::BTreeSet;

/// A script that fills the schema with functions and operators of the names that these statements use, each of which raises.
pub(crate) fn usurpers<'s>(schema: &str, statements: impl IntoIterator<Item = &'s str>) -> String {
    // The functions by which new messages became duplicates, and expiries the past, are always there.
    let known = ["array_agg", "cardinality", "unnest", "now", "date_trunc", "count", "format", "coalesce"];
    let mut functions: BTreeSet<&str> = known.into();
    for statement in statements {
        for call in statement.split("pg_catalog.").skip(1) {
            let end = call.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(call.len());
            if call[end..].starts_with('(') {
                functions.insert(&call[..end]);
            }
        }
    }
    let functions: Vec<String> = functions.iter().map(|name| format!("'{name}'")).collect();
    let operators = ["=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "&", "~", "~~", "!~~"];
    include_str!("usurpers.sql")
        .replace("{usurper}", schema)
        .replace("{functions}", &functions.join(", "))
        .replace("{operators}", &operators.map(|name| format!("'{name}'")).join(", "))
}

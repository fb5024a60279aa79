//! The beginning of a statement's text: as much of SQL as it takes to refuse statements that would harm the neighbours.

/// Statements that belong to the transaction or the session, and so to every handler of a batch.
const SESSION_CONTROL: [&str; 13] = [
    "ABORT",
    "BEGIN",
    "COMMIT",
    "DEALLOCATE",
    "DISCARD",
    "END",
    "PREPARE",
    "RELEASE",
    "RESET",
    "ROLLBACK",
    "SAVEPOINT",
    "SET",
    "START",
];

/// The keyword of a text that controls the transaction or the session.
pub(crate) fn session_control(text: &str) -> Option<&'static str> {
    let keyword = keyword(text);
    SESSION_CONTROL.into_iter().find(|control| control.eq_ignore_ascii_case(keyword))
}

/// Whether it is a COPY, which the driver can run by `copy_in` and `copy_out` only.
pub(crate) fn is_copy(text: &str) -> bool {
    keyword(text).eq_ignore_ascii_case("COPY")
}

/// Whether it is a COPY that takes its rows from this connection.
pub(crate) fn is_copy_from_stdin(text: &str) -> bool {
    let words = text.split_ascii_whitespace().collect::<Vec<_>>();
    let is_pair = |pair: &[&str]| {
        pair[0].eq_ignore_ascii_case("FROM") && pair[1].trim_end_matches(';').eq_ignore_ascii_case("STDIN")
    };
    is_copy(text) && words.windows(2).any(is_pair)
}

/// The first word behind what the server skips: white space, empty statements, comments.
fn keyword(text: &str) -> &str {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}', ';']);
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.find(['\n', '\r']).map_or("", |end| &comment[end..]);
        } else if rest.starts_with("/*") {
            rest = after_block_comment(rest);
        } else {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            return &rest[..end];
        }
    }
}

/// Block comments nest in PostgreSQL.
fn after_block_comment(text: &str) -> &str {
    let (mut depth, mut rest) = (0_usize, text);
    loop {
        if let Some(inner) = rest.strip_prefix("/*") {
            (depth, rest) = (depth + 1, inner);
        } else if let Some(outer) = rest.strip_prefix("*/") {
            (depth, rest) = (depth - 1, outer);
            if depth == 0 {
                return rest;
            }
        } else {
            let mut characters = rest.chars();
            if characters.next().is_none() {
                return "";
            }
            rest = characters.as_str();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_is_found_behind_whatever_the_server_skips() {
        for text in [
            "COMMIT",
            " commit and chain",
            "\t\n;; RollBack TO x",
            "-- harmless\nSAVEPOINT a",
            "/* a /* nested */ ü */ /**/release a",
            "END;",
            "start transaction",
            "set local lock_timeout = 1",
            "PREPARE TRANSACTION 'x'",
            "--\rABORT",
        ] {
            assert!(session_control(text).is_some(), "{text}");
        }
    }

    #[test]
    fn ordinary_statements_are_let_through() {
        for text in [
            "INSERT INTO commits VALUES ('COMMIT')",
            "UPDATE t SET a = 1",
            "SELECT 1 -- COMMIT",
            "/* unfinished COMMIT",
            "commit_log",
            "begins",
            "ü",
            "",
            "WITH x AS (SELECT 1) SELECT * FROM x",
        ] {
            assert_eq!(session_control(text), None, "{text}");
        }
    }

    #[test]
    fn a_copy_is_told_by_where_its_rows_come_from() {
        assert!(is_copy_from_stdin("copy t (a, b)\nfrom stdin;"));
        assert!(is_copy_from_stdin("COPY t FROM STDIN (FORMAT binary)"));
        for text in ["COPY t TO STDOUT", "COPY t FROM '/tmp/x'", "INSERT INTO t SELECT 'COPY FROM STDIN'"] {
            assert!(!is_copy_from_stdin(text), "{text}");
        }
        assert!(is_copy("COPY t TO STDOUT") && !is_copy("INSERT INTO copy VALUES (1)"));
    }
}

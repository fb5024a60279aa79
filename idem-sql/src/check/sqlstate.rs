//! Which class each SQLSTATE of PostgreSQL belongs to.

use idem_core::{ErrorClass, StoreError};

/// The codes of PostgreSQL's table (its manual's appendix A, releases 14 to 18) and idem's own, each with its condition's
/// name and class, separated by tabs, as [`class_of`] must answer them, for tests of stores and for the docs.
pub const SQLSTATES: &str = include_str!("../../golden/sqlstates.tsv");

/// The code with which the server refuses a COMMIT that idem did not seal.
pub const UNSEALED_COMMIT: &str = "ID001";

/// The code with which the seal refuses a COMMIT whose durability a handler has weakened.
pub const WEAKER_COMMIT: &str = "22P02";

/// The class of an error of PostgreSQL, by its SQLSTATE.
///
/// The message and the routine of the server's error report decide one code only: `0A000` is a missing feature, which no
/// second run brings, or a cached plan whose table was altered meanwhile, for which a second run is the
/// cure. Messages are translated by `lc_messages`, routines are not, so give both where the driver has them.
///
/// A code that is not in the table gets the class of its first two characters where that is safe, and otherwise
/// [`ErrorClass::Transient`], whose attempts are bounded: unknown codes cost a few more runs, never a message.
///
/// ```
/// use idem_core::ErrorClass;
/// use idem_sql::class_of;
///
/// assert_eq!(class_of("23505", "duplicate key value", None), ErrorClass::Permanent);
/// assert_eq!(class_of("57P01", "terminating connection", None), ErrorClass::Infrastructure);
/// ```
#[must_use]
pub fn class_of(code: &str, message: &str, routine: Option<&str>) -> ErrorClass {
    if code == "0A000" {
        let replanned = routine == Some("RevalidateCachedQuery") || message.contains("cached plan must not change");
        return if replanned { ErrorClass::RunUnitAgain } else { ErrorClass::Permanent };
    }
    class_of_table(code).unwrap_or_else(|| class_of_unknown(code))
}

/// A server's error report as a text without any value: the code, for an operator's codes in words, and the constraint, table
/// and column that it names. The server quotes rows in its message and detail.
#[must_use]
pub fn describe_report(code: &str, constraint: Option<&str>, table: Option<&str>, column: Option<&str>) -> String {
    let parts = [("constraint", constraint), ("table", table), ("column", column)];
    let parts = parts.into_iter().filter_map(|(name, value)| Some(format!(" {name} {}", value?)));
    let meaning = in_words(code).map(|words| format!(", {words}")).unwrap_or_default();
    format!("SQLSTATE {code}{}{meaning}", parts.collect::<String>())
}

/// The refusal of a connection for a parameter that came with it, by its SQLSTATE and its message; `None` for any other error. Of the
/// message the parameter's name alone is told: the rest may quote a value (S4).
///
/// ```
/// use idem_sql::refused_parameter;
///
/// let refused = refused_parameter("08P01", "unsupported startup parameter: extra_float_digits").map(|error| error.to_string());
/// assert!(refused.is_some_and(|text| text.contains("ignore_startup_parameters")));
/// assert!(refused_parameter("08P01", "invalid message format").is_none());
/// ```
#[must_use]
pub fn refused_parameter(code: &str, message: &str) -> Option<StoreError> {
    let (who, named) = match code {
        // PgBouncer's text, also of a parameter in `options`.
        "08P01" => (
            "a pooler before the server",
            message.split_once("startup parameter")?.1.rsplit_once(": ").map(|(_, name)| name),
        ),
        // The server itself, about one that it does not know or whose value it does not take.
        "22023" | "42704" => ("the server", message.split('"').nth(1)),
        _ => return None,
    };
    let is_name = |name: &&str| {
        (1..=63).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte))
    };
    let name = named.map(str::trim_end).filter(is_name);
    let parameter = name.map_or_else(|| "a parameter".to_owned(), |name| format!("the parameter {name}"));
    let cure = match (code, name) {
        ("08P01", Some("extra_float_digits")) => "Have PgBouncer ignore it: add extra_float_digits to its \
            ignore_startup_parameters; a program of your own on sqlx can set its store's `statements` to `Unnamed` instead"
            .to_owned(),
        ("08P01", name) => format!(
            "Take it out of the connection's URL or options; or have PgBouncer ignore it, where the server's own value will do: \
             add {} to its ignore_startup_parameters",
            name.unwrap_or("its name")
        ),
        (_, _) => "Take it out of the connection's URL or options, or give it a value that this server takes".to_owned(),
    };
    Some(StoreError::refused(format!("{who} refuses {parameter} that comes with the connection"), cure))
}

/// The error in an operator's words, as the end of a sentence; a code that says it by its constraint needs no words.
fn in_words(code: &str) -> Option<&'static str> {
    Some(match code {
        "08P01" => {
            "the server does not speak as PostgreSQL does: is it another kind of server, or a pooler's administration?"
        }
        "25006" => {
            "the transaction is read only: a handler has ended idem's transaction with COMMIT or ROLLBACK, or made it read only; \
             or the server is a standby, or the role may only read"
        }
        "28000" => "the server knows no such login, or does not let it in from here (pg_hba.conf)",
        "28P01" => "the login or its password is wrong",
        "3D000" => "the database that the URL names does not exist",
        "3F000" => "a schema does not exist",
        "40001" => "another transaction changed the same rows",
        "40P01" => "two transactions waited for each other",
        "42501" => "the login lacks a right",
        "42703" => "a column does not exist",
        "42883" => "a function or operator does not exist",
        "42P01" => "a table does not exist",
        "53100" => "the database's disk is full",
        "53200" => "the database has no memory left",
        "53300" => "the database has no connection left",
        "55P03" => "a lock was not free in time",
        "57014" => "the statement took longer than it may, or was cancelled",
        "57P01" => "the server was stopped, or the connection was ended",
        "57P03" => "the server is starting or stopping",
        _ => return None,
    })
}

/// The outcome of a COMMIT that was answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitOutcome {
    /// The server reported why it rolled back: nothing of the transaction is there.
    RolledBack,
    /// The transaction may be committed: close the connection and claim again on a new one.
    Unknown,
}

/// The meaning of an SQLSTATE that came back instead of COMMIT's answer.
///
/// A code is a definite rollback, because the server reports errors only before its commit record. Not so where the
/// connection ended while the server waited for a standby: the record is written by then (class 08, 57P0x, 40003).
/// A text that is no SQLSTATE proves nothing.
#[must_use]
pub fn commit_outcome(code: &str) -> CommitOutcome {
    let is_sqlstate = code.len() == 5 && code.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
    if !is_sqlstate || code.starts_with("08") || code.starts_with("57P") || code == "40003" {
        CommitOutcome::Unknown
    } else {
        CommitOutcome::RolledBack
    }
}

/// Codes that a later release or an extension may add.
fn class_of_unknown(code: &str) -> ErrorClass {
    match code.get(..2) {
        // Every code here is about the server or the connection, not about the message.
        Some("08" | "53" | "58" | "F0") => ErrorClass::Infrastructure,
        Some("57") if code.starts_with("57P") => ErrorClass::Infrastructure,
        Some("40") => ErrorClass::RunUnitAgain,
        Some("22") => ErrorClass::Permanent,
        // Among them 23 and 42, whose known codes fall into several classes.
        _ => ErrorClass::Transient,
    }
}

fn class_of_table(code: &str) -> Option<ErrorClass> {
    class_below_26(code).or_else(|| class_from_26(code))
}

#[rustfmt::skip] // One reason a group, and as many codes a line as fit.
fn class_below_26(code: &str) -> Option<ErrorClass> {
    Some(match code {
        // Success, warnings and "no data" are no errors, and an extension may still raise them: nothing
        // is known.
        "00000" | "01000" | "01003" | "01004" | "01006" | "01007" | "01008" | "0100C" | "01P01" | "02000" | "02001"
        | "03000" => ErrorClass::Transient,
        // The connection is gone or speaks nonsense, which is also how a pooler says that its server
        // went away.
        "08000" | "08001" | "08003" | "08004" | "08006" | "08007" | "08P01" => ErrorClass::Infrastructure,
        // Raised by a trigger or by transaction control inside a function; a later run may take another
        // way.
        "09000" | "0B000" => ErrorClass::Transient,
        // Locators, grantors, roles and diagnostics that are wrong in the statement itself.
        "0F000" | "0F001" | "0L000" | "0LP01" | "0P000" | "0Z000" | "0Z002" => ErrorClass::Permanent,
        // An XQuery argument, a CASE without a branch, or more rows than a statement can take: the data
        // decides.
        "10608" | "20000" | "21000" => ErrorClass::Permanent,
        // The data does not fit: the same message gives the same error for ever (B10, B22).
        "22000" | "22001" | "22002" | "22003" | "22004" | "22005" | "22007" | "22008" | "22009" | "2200B" | "2200C"
        | "2200D" | "2200F" | "2200G" | "2200H" | "2200L" | "2200M" | "2200N" | "2200S" | "2200T" | "22010" |
        "22011" | "22012" | "22013" | "22014" | "22015" | "22016" | "22018" | "22019" | "2201B" | "2201E" | "2201F"
        | "2201G" | "2201W" | "2201X" | "22021" | "22022" | "22023" | "22024" | "22025" | "22026" | "22027" |
        "2202E" | "2202G" | "2202H" | "22030" | "22031" | "22032" | "22033" | "22034" | "22035" | "22036" | "22037"
        | "22038" | "22039" | "2203A" | "2203B" | "2203C" | "2203D" | "2203E" | "2203F" | "2203G" | "22P01" |
        "22P02" | "22P03" | "22P04" | "22P05" | "22P06" => ErrorClass::Permanent,
        // The parent of a foreign key may come with a later message, and the child that restricts may go
        // with one.
        "23001" | "23503" => ErrorClass::Transient,
        // The message breaks a rule of the table (B22). A race for a unique key is one only once: the
        // next run would find the row.
        "23000" | "23502" | "23505" | "23514" | "23P01" => ErrorClass::Permanent,
        // The cursor is in another state than the handler thinks.
        "24000" => ErrorClass::Transient,
        // Read only: a standby, or a primary that was demoted (A23). Every message would fail.
        "25006" => ErrorClass::Infrastructure,
        // The statement can never run inside a transaction block, and a handler always is in one.
        "25001" => ErrorClass::Permanent,
        // The server ended an idle or a too long transaction and its connection: the process was stopped
        // or starved (A20).
        "25P03" | "25P04" => ErrorClass::Infrastructure,
        // The transaction was already lost to an earlier error that the handler swallowed (25P02, A9),
        // or has ended.
        "25000" | "25002" | "25003" | "25004" | "25005" | "25007" | "25008" | "25P01" | "25P02" => ErrorClass::Transient,
        _ => return None,
    })
}

#[rustfmt::skip] // As above.
fn class_from_26(code: &str) -> Option<ErrorClass> {
    Some(match code {
        // The prepared statement or portal is unknown or known twice: a pooler handed out another server
        // connection (A28).
        "26000" | "34000" | "42P05" => ErrorClass::Infrastructure,
        // The statement changes a row again that its own trigger has changed.
        "27000" => ErrorClass::Permanent,
        // The credentials are refused: a rotation in progress. Start-up ends at once instead.
        "28000" | "28P01" => ErrorClass::Infrastructure,
        // Objects that still depend on the dropped one, a COMMIT inside a function, SQL that its function may not run.
        "2B000" | "2BP01" | "2D000" | "2F000" | "2F002" | "2F003" | "2F004" | "2F005" => ErrorClass::Permanent,
        // A function written in another language failed for reasons of its own.
        "38000" | "38001" | "38002" | "38003" | "38004"
        | "39000" | "39001" | "39004" | "39P01" | "39P02" | "39P03" => ErrorClass::Transient,
        // The savepoint does not exist: another path through the handler may not need it.
        "3B000" | "3B001" => ErrorClass::Transient,
        // The database or the schema does not exist: a deploy or a restore in progress (A27).
        "3D000" | "3F000" => ErrorClass::Infrastructure,
        // An integrity constraint at the end of the transaction: the row that it misses may come, as for a foreign key.
        "40002" => ErrorClass::Transient,
        // Whether the statement was completed is unknown, because the connection broke.
        "40003" => ErrorClass::Infrastructure,
        // Serialization failure or deadlock: no unit is at fault, and the same unit run again succeeds (B4, B17).
        "40000" | "40001" | "40P01" => ErrorClass::RunUnitAgain,
        // A table, column, function, type, privilege or unique index is missing: a deploy in progress
        // (A27). Healthy messages would be dead-lettered by the thousand for it.
        "42501" | "42703" | "42704" | "42883" | "42P01" | "42P10" => ErrorClass::Infrastructure,
        // The statement is wrong, whatever the data.
        "42000" | "42601" | "42602" | "42611" | "42622" | "42701" | "42702" | "42710" | "42712" | "42723" | "42725"
        | "42803" | "42804" | "42809" | "42830" | "42846" | "428C9" | "42939" | "42P02" | "42P03" | "42P04" |
        "42P06" | "42P07" | "42P08" | "42P09" | "42P11" | "42P12" | "42P13" | "42P14" | "42P15" | "42P16" | "42P17"
        | "42P18" | "42P19" | "42P20" | "42P21" | "42P22" => ErrorClass::Permanent,
        // The row does not fit the view that it was written through.
        "44000" => ErrorClass::Permanent,
        // Disk, memory or connections are used up (J6, A25): every message would fail.
        "53000" | "53100" | "53200" | "53300" | "53400" => ErrorClass::Infrastructure,
        // Larger than the server allows, as a key of 6 kB in an index (B10).
        "54000" | "54001" | "54011" | "54023" => ErrorClass::Permanent,
        // Another session uses the object, or it is not ready yet; 55P03 is a lock that was not had in time (A21).
        "55000" | "55006" | "55P02" | "55P03" | "55P04" => ErrorClass::Transient,
        // Cancelled by statement_timeout or by an operator (A21): this statement took too long, not the
        // server.
        "57014" => ErrorClass::Transient,
        // An operator restarts, stops or drops the server or its database (A25).
        "57000" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => ErrorClass::Infrastructure,
        // The server's system failed beneath it.
        "58000" | "58030" | "58P01" | "58P02" | "58P03" => ErrorClass::Infrastructure,
        // The snapshot was too old for pages that have been cleaned up; a later run takes a new one.
        "72000" => ErrorClass::Transient,
        // The server cannot read its configuration or is locked by another.
        "F0000" | "F0001" => ErrorClass::Infrastructure,
        // The foreign server cannot be reached, or the wrapper is out of memory.
        "HV001" | "HV00N" => ErrorClass::Infrastructure,
        // The foreign data wrapper failed for a reason that it alone knows.
        "HV000" | "HV002" | "HV004" | "HV005" | "HV006" | "HV007" | "HV008" | "HV009" | "HV00A" | "HV00B" | "HV00C"
        | "HV00D" | "HV00J" | "HV00K" | "HV00L" | "HV00M" | "HV00P" | "HV00Q" | "HV00R" | "HV010" | "HV014" |
        "HV021" | "HV024" | "HV090" | "HV091" => ErrorClass::Transient,
        // Idem's own: the server refused a commit that was not sealed (A12).
        "ID001" => ErrorClass::Transient,
        // RAISE in a function says nothing about why.
        "P0000" | "P0001" | "P0002" | "P0003" | "P0004" => ErrorClass::Transient,
        // Corrupted data or a corrupted index: stop before more is written.
        "XX001" | "XX002" => ErrorClass::Infrastructure,
        // A bug in the server or an extension, often one that a second run does not meet.
        "XX000" => ErrorClass::Transient,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;

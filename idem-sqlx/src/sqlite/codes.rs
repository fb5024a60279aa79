//! SQLite's result codes and what the engine does about each: the table, written out.
//!
//! An unknown extended code takes the class of its primary code; an unknown primary code has none and counts as
//! transient, with bounded attempts.

use idem_core::ErrorClass::{self, Fatal, Infrastructure, Permanent, RunUnitAgain, Transient};

pub(super) const BUSY: i32 = 5;
pub(super) const CONSTRAINT: i32 = 19;
pub(super) const COMMIT_HOOK: i32 = 531;

/// Every code that is an error, with its name and class. Sorted by code.
#[rustfmt::skip]
pub(super) const CODES: &[(i32, &str, ErrorClass)] = &[
    // Says little by itself: a syntax error, an unknown table, a statement out of place. `error.rs` looks closer.
    (1, "SQLITE_ERROR", Transient),
    (2, "SQLITE_INTERNAL", Transient),
    // The file's rights: every message would fail.
    (3, "SQLITE_PERM", Infrastructure),
    (4, "SQLITE_ABORT", Transient),
    // Another connection is writing. Inside a unit it means that the unit began without the write lock.
    (BUSY, "SQLITE_BUSY", RunUnitAgain),
    // An unfinished statement of the same connection is in the way, so running the unit again would meet it again.
    (6, "SQLITE_LOCKED", Transient),
    (7, "SQLITE_NOMEM", Infrastructure),
    // The file, its directory or its file system became read only (A23).
    (8, "SQLITE_READONLY", Infrastructure),
    // Idem itself interrupts what a dropped handler left running; so does a limit of the user's.
    (9, "SQLITE_INTERRUPT", Transient),
    (10, "SQLITE_IOERR", Infrastructure),
    // Corrupted: stop before more is written.
    (11, "SQLITE_CORRUPT", Fatal),
    (12, "SQLITE_NOTFOUND", Transient),
    // The disk is full (J6): every message would fail.
    (13, "SQLITE_FULL", Infrastructure),
    (14, "SQLITE_CANTOPEN", Infrastructure),
    (15, "SQLITE_PROTOCOL", Infrastructure),
    (16, "SQLITE_EMPTY", Transient),
    // The schema changed under a prepared statement (A27).
    (17, "SQLITE_SCHEMA", RunUnitAgain),
    // Larger than SQLite takes, at every attempt.
    (18, "SQLITE_TOOBIG", Permanent),
    // The row breaks a rule of the table, and will break it again (B22).
    (CONSTRAINT, "SQLITE_CONSTRAINT", Permanent),
    (20, "SQLITE_MISMATCH", Permanent),
    (21, "SQLITE_MISUSE", Transient),
    (22, "SQLITE_NOLFS", Infrastructure),
    // An authorizer of the application's forbids it, as a missing privilege does elsewhere.
    (23, "SQLITE_AUTH", Infrastructure),
    (24, "SQLITE_FORMAT", Transient),
    // A parameter that the statement does not have.
    (25, "SQLITE_RANGE", Permanent),
    // Not a database, or encrypted: no wait cures that.
    (26, "SQLITE_NOTADB", Fatal),
    (257, "SQLITE_ERROR_MISSING_COLLSEQ", Transient),
    (261, "SQLITE_BUSY_RECOVERY", RunUnitAgain),
    (262, "SQLITE_LOCKED_SHAREDCACHE", RunUnitAgain),
    (264, "SQLITE_READONLY_RECOVERY", Infrastructure),
    (266, "SQLITE_IOERR_READ", Infrastructure),
    (267, "SQLITE_CORRUPT_VTAB", Fatal),
    (270, "SQLITE_CANTOPEN_NOTEMPDIR", Infrastructure),
    (275, "SQLITE_CONSTRAINT_CHECK", Permanent),
    (279, "SQLITE_AUTH_USER", Infrastructure),
    (513, "SQLITE_ERROR_RETRY", RunUnitAgain),
    // The statement ended because its transaction was rolled back beneath it.
    (516, "SQLITE_ABORT_ROLLBACK", Transient),
    (517, "SQLITE_BUSY_SNAPSHOT", RunUnitAgain),
    (518, "SQLITE_LOCKED_VTAB", RunUnitAgain),
    (520, "SQLITE_READONLY_CANTLOCK", Infrastructure),
    (522, "SQLITE_IOERR_SHORT_READ", Infrastructure),
    (523, "SQLITE_CORRUPT_SEQUENCE", Fatal),
    (526, "SQLITE_CANTOPEN_ISDIR", Infrastructure),
    // Idem's own: a commit that was not sealed (A12).
    (COMMIT_HOOK, "SQLITE_CONSTRAINT_COMMITHOOK", Transient),
    (769, "SQLITE_ERROR_SNAPSHOT", RunUnitAgain),
    (773, "SQLITE_BUSY_TIMEOUT", RunUnitAgain),
    (776, "SQLITE_READONLY_ROLLBACK", Infrastructure),
    (778, "SQLITE_IOERR_WRITE", Infrastructure),
    (779, "SQLITE_CORRUPT_INDEX", Fatal),
    (782, "SQLITE_CANTOPEN_FULLPATH", Infrastructure),
    // The row that is referred to may be written by a message that comes later.
    (787, "SQLITE_CONSTRAINT_FOREIGNKEY", Transient),
    (1025, "SQLITE_ERROR_RESERVESIZE", Transient),
    (1032, "SQLITE_READONLY_DBMOVED", Infrastructure),
    (1034, "SQLITE_IOERR_FSYNC", Infrastructure),
    (1038, "SQLITE_CANTOPEN_CONVPATH", Infrastructure),
    (1043, "SQLITE_CONSTRAINT_FUNCTION", Permanent),
    (1281, "SQLITE_ERROR_KEY", Transient),
    (1288, "SQLITE_READONLY_CANTINIT", Infrastructure),
    (1290, "SQLITE_IOERR_DIR_FSYNC", Infrastructure),
    (1294, "SQLITE_CANTOPEN_DIRTYWAL", Infrastructure),
    (1299, "SQLITE_CONSTRAINT_NOTNULL", Permanent),
    (1537, "SQLITE_ERROR_UNABLE", Transient),
    (1544, "SQLITE_READONLY_DIRECTORY", Infrastructure),
    (1546, "SQLITE_IOERR_TRUNCATE", Infrastructure),
    (1550, "SQLITE_CANTOPEN_SYMLINK", Infrastructure),
    (1555, "SQLITE_CONSTRAINT_PRIMARYKEY", Permanent),
    (1802, "SQLITE_IOERR_FSTAT", Infrastructure),
    // RAISE in a trigger says nothing about why.
    (1811, "SQLITE_CONSTRAINT_TRIGGER", Transient),
    (2058, "SQLITE_IOERR_UNLOCK", Infrastructure),
    (2067, "SQLITE_CONSTRAINT_UNIQUE", Permanent),
    (2314, "SQLITE_IOERR_RDLOCK", Infrastructure),
    (2323, "SQLITE_CONSTRAINT_VTAB", Permanent),
    (2570, "SQLITE_IOERR_DELETE", Infrastructure),
    (2579, "SQLITE_CONSTRAINT_ROWID", Permanent),
    (2826, "SQLITE_IOERR_BLOCKED", Infrastructure),
    (2835, "SQLITE_CONSTRAINT_PINNED", Permanent),
    (3082, "SQLITE_IOERR_NOMEM", Infrastructure),
    (3091, "SQLITE_CONSTRAINT_DATATYPE", Permanent),
    (3338, "SQLITE_IOERR_ACCESS", Infrastructure),
    (3594, "SQLITE_IOERR_CHECKRESERVEDLOCK", Infrastructure),
    (3850, "SQLITE_IOERR_LOCK", Infrastructure),
    (4106, "SQLITE_IOERR_CLOSE", Infrastructure),
    (4362, "SQLITE_IOERR_DIR_CLOSE", Infrastructure),
    (4618, "SQLITE_IOERR_SHMOPEN", Infrastructure),
    (4874, "SQLITE_IOERR_SHMSIZE", Infrastructure),
    (5130, "SQLITE_IOERR_SHMLOCK", Infrastructure),
    (5386, "SQLITE_IOERR_SHMMAP", Infrastructure),
    (5642, "SQLITE_IOERR_SEEK", Infrastructure),
    (5898, "SQLITE_IOERR_DELETE_NOENT", Infrastructure),
    (6154, "SQLITE_IOERR_MMAP", Infrastructure),
    (6410, "SQLITE_IOERR_GETTEMPPATH", Infrastructure),
    (6666, "SQLITE_IOERR_CONVPATH", Infrastructure),
    (6922, "SQLITE_IOERR_VNODE", Infrastructure),
    (7178, "SQLITE_IOERR_AUTH", Infrastructure),
    (7434, "SQLITE_IOERR_BEGIN_ATOMIC", Infrastructure),
    (7690, "SQLITE_IOERR_COMMIT_ATOMIC", Infrastructure),
    (7946, "SQLITE_IOERR_ROLLBACK_ATOMIC", Infrastructure),
    // A checksum of the page or of the file system is wrong: as bad as CORRUPT.
    (8202, "SQLITE_IOERR_DATA", Fatal),
    (8458, "SQLITE_IOERR_CORRUPTFS", Fatal),
    (8714, "SQLITE_IOERR_IN_PAGE", Infrastructure),
    (8970, "SQLITE_IOERR_BADKEY", Infrastructure),
    (9226, "SQLITE_IOERR_CODEC", Infrastructure),
];

/// The primary code of an extended one.
pub(super) const fn primary(code: i32) -> i32 {
    code & 0xff
}

fn entry(code: i32) -> Option<&'static (i32, &'static str, ErrorClass)> {
    CODES.binary_search_by_key(&code, |entry| entry.0).ok().and_then(|at| CODES.get(at))
}

/// The class of a code; `None` where neither it nor its primary code is known.
pub(super) fn class_of(code: i32) -> Option<ErrorClass> {
    entry(code).or_else(|| entry(primary(code))).map(|entry| entry.2)
}

/// The code's name, or its primary code's where a later SQLite has added it.
pub(super) fn name_of(code: i32) -> &'static str {
    entry(code).or_else(|| entry(primary(code))).map_or("an unknown code", |entry| entry.1)
}

//! Commands whose standard output or standard error nothing reads.

use std::{
    io::{PipeReader, PipeWriter, Write as _, pipe},
    process::{Command, Stdio},
    time::Duration,
};

use crate::fixture::{Fixture, PATIENCE};

/// As many bytes as a pipe takes.
const PIPE_BYTES: usize = 64 << 10;

/// A pipe that takes nothing more, and its end to be read.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (read, mut write) = pipe().unwrap();
    write.write_all(&[b'.'; PIPE_BYTES]).unwrap();
    (read, write)
}

/// A pipe whose other end is closed.
fn closed_pipe() -> PipeWriter {
    pipe().unwrap().1
}

fn idem(fixture: &Fixture, arguments: &[&str]) -> Command {
    let mut idem = Command::new(env!("CARGO_BIN_EXE_idem"));
    idem.args(arguments).env_clear().env("DATABASE_URL", &fixture.url).env("IDEM_SCHEMA", &fixture.schema);
    idem.env("IDEM_OPERATOR", "ada").stdin(Stdio::null());
    idem
}

/// J93: a command whose output nothing reads to its end, as behind `| head -1`, ends without a word about it.
#[tokio::test]
async fn j93_a_closed_pipe_is_no_panic() {
    let fixture = Fixture::new().await;
    for arguments in
        [&["stats"][..], &["consumers", "list"], &["cleanup"], &["cleanup", "--print-sql"], &["--help"], &["doctor"]]
    {
        let output = idem(&fixture, arguments).stdout(closed_pipe()).output().unwrap();
        let (status, log) = (output.status.code(), String::from_utf8(output.stderr).unwrap());
        // `doctor` finds something in a schema without roles.
        assert!(matches!(status, Some(0 | 1)) && log.is_empty(), "{arguments:?}: {status:?} {log}");
    }
    for (arguments, expected) in
        [(&["stats"][..], 0), (&["stats", "--nonsense"], 2), (&["show", "--consumer", "none", "key"], 2)]
    {
        let mut idem = idem(&fixture, arguments);
        let status = idem.env("RUST_LOG", "trace").stdout(Stdio::null()).stderr(closed_pipe()).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
    }
    fixture.drop().await;
}

/// J93: a signal ends a cleanup whose report waits for a reader, although it has its own handler of signals.
#[tokio::test]
async fn j93_a_signal_ends_a_cleanup_that_nothing_reads() {
    let fixture = Fixture::new().await;
    let (_read, full) = full_pipe();
    let mut cleanup = idem(&fixture, &["cleanup"]).stdout(full).stderr(Stdio::null()).spawn().unwrap();
    let id = cleanup.id();
    let ending = async {
        while cleanup.try_wait().unwrap().is_none() {
            // Before that a signal ends any process.
            if has_handler(id) {
                let signal = format!("kill -TERM {id}");
                assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let is_ended = tokio::time::timeout(PATIENCE, ending).await.is_ok();
    let _ = cleanup.kill();
    assert!(is_ended, "no signal ends it");
    assert_eq!(cleanup.wait().unwrap().code(), Some(128 + 15));
    fixture.drop().await;
}

/// Whether the process has a handler of SIGTERM.
fn has_handler(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << 14 != 0)
}

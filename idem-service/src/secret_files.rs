//! Files that hold secrets, and who else may read them.

use std::path::{Path, PathBuf};

/// Warns of flags and variables whose password others may read: in the list of processes, or in their file.
pub(crate) fn warn_of(exposed: &[String], secrets: &[(PathBuf, String)]) {
    for flag in exposed {
        tracing::warn!(
            "the password in {flag} stands in the list of processes, where every login of this machine can read it; give it \
             by a variable or by --config"
        );
    }
    for (file, flag) in secrets {
        warn_if_others_may(file, flag);
    }
}

/// Warns if everybody may read a file with secrets, or others than its owner may write it: they would have the database's
/// password, or choose it.
pub(crate) fn warn_if_others_may(path: &Path, flag: &str) {
    if let Some(what) = others_may(path) {
        let file = path.display();
        tracing::warn!(%file, "the file of {flag} holds a secret and can be {what}: chmod 640 it, or 600 where no group needs it");
    }
}

#[cfg(unix)]
fn others_may(path: &Path) -> Option<&'static str> {
    use std::os::unix::fs::PermissionsExt as _;

    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    if mode & 0o022 != 0 {
        Some("written by others than its owner")
    } else if mode & 0o004 != 0 {
        Some("read by everybody on this machine")
    } else {
        None
    }
}

#[cfg(not(unix))]
fn others_may(_: &Path) -> Option<&'static str> {
    None
}

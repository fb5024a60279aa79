//! The secret with which keys are hashed before people see them.

use std::path::Path;

use idem_core::key::{KeySecret, hide_keys_with};

/// Reads it and lets no key be shown as it is from here on. Blanks and ends of lines around it are not part of it.
///
/// # Errors
/// One line that names the flag and the file, and shows nothing of its content.
pub(crate) fn hide_keys(file: &Path) -> Result<(), String> {
    let refused = |why: String| format!("the file {} of --key-secret-file {why}", file.display());
    let secret = std::fs::read(file).map_err(|error| refused(format!("cannot be read: {error}")))?;
    let secret = KeySecret::new(secret.trim_ascii());
    let hidden = secret.map_err(|error| refused(format!("holds a secret that is {}, but {}", error.value, error.rule)));
    hide_keys_with(hidden?).map_err(|error| format!("--key-secret-file: {error}"))
}

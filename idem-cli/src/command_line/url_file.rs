//! The database's URL from a file, as secrets are mounted.

use crate::{command_line::Target, exit::Failure};

/// The variable that names a file with the database's URL, as for a worker.
const DATABASE_URL_FILE: &str = "DATABASE_URL_FILE";

impl Target {
    /// Takes the database's URL from the file that `DATABASE_URL_FILE` names, where no flag has it.
    ///
    /// # Errors
    /// Where `DATABASE_URL` is set too, or the file cannot be read or is empty.
    pub(crate) fn read_file(&mut self) -> Result<(), Failure> {
        let Some(file) = std::env::var_os(DATABASE_URL_FILE) else { return Ok(()) };
        if std::env::var_os("DATABASE_URL").is_some() {
            let both = "DATABASE_URL and DATABASE_URL_FILE are both set, and are one setting: unset one of them";
            return Err(Failure::refused(both));
        }
        if self.database_url.is_some() {
            return Ok(());
        }
        let refused = |why: String| {
            Failure::refused(format!("the variable {DATABASE_URL_FILE} names a file (it is not shown) that {why}"))
        };
        let text = std::fs::read_to_string(file).map_err(|error| refused(format!("cannot be read: {error}")))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(refused("is empty".to_owned())),
            url => {
                self.database_url = Some(url.to_owned());
                Ok(())
            }
        }
    }
}

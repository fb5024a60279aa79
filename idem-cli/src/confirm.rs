//! A command that cannot be undone asks first, or needs `--yes`.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use crate::exit::Failure;

/// Asks on the terminal. Without one, as in a script, only `--yes` will do.
pub(crate) fn confirm(what: &str, is_yes: bool) -> Result<(), Failure> {
    if is_yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::refused(format!("{what}. Nothing was done: give --yes to do it")));
    }
    // A question that cannot be written is not answered with yes.
    let _ = write!(io::stderr(), "{what}. Type yes to do it: ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && answer.trim() == "yes" { Ok(()) } else { Err(Failure::refused("Nothing was done.")) }
}

//! `idem completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{command_line::CommandLine, report::Report};

pub(crate) fn run(shell: Shell) -> Report {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "idem", &mut script);
    Report::script(String::from_utf8_lossy(&script).into_owned())
}

//! Commands.

use std::{fs, path::Path, process::Command};

/// What a command prints; as an error, all that it printed before it failed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    printed(Command::new(program).args(arguments))
}

pub(crate) fn printed(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{command:?}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// Seconds of the processor that children took, and theirs, as far as their parents waited for them.
pub(crate) fn children_seconds() -> Result<f64, String> {
    let stat = read(Path::new("/proc/self/stat"))?;
    // After the program's name, which may have spaces: cutime and cstime are the fields 16 and 17 of all.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let tick = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    let a_second: f64 = output("getconf", &["CLK_TCK"])?.trim().parse().map_err(|error| format!("CLK_TCK: {error}"))?;
    Ok((tick(13) + tick(14)) / a_second)
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

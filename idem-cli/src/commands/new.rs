//! `idem new`: a worker of one's own, in a folder of its own.

mod parts;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{command_line::New, exit::Failure, report::Report};

/// Names that cargo refuses, or that a program cannot have beside its dependencies.
const TAKEN: [&str; 10] = ["build", "core", "deps", "examples", "incremental", "serde", "sqlx", "std", "test", "tokio"];
/// Rust's keywords that are words in lower case.
const KEYWORDS: &str = "abstract as async await become box break const continue crate do dyn else enum extern false final fn for \
    gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super trait true try \
    type typeof union unsafe unsized use virtual where while yield";
/// As a Kubernetes name, and long enough for a queue.
const NAME_MAX: usize = 63;

pub(crate) fn run(new: &New) -> Result<Report, Failure> {
    check(&new.name)?;
    let crates = new.crates.as_deref().map(crates_in).transpose()?;
    let folder = Path::new(&new.name);
    fs::create_dir(folder).map_err(|error| {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return failed(folder, &error);
        }
        let name = &new.name;
        Failure::refused(format!(
            "there is a {name} here already, and nothing was changed: give another name, or go elsewhere"
        ))
    })?;
    for (path, text) in parts::files(new, crates.as_deref()) {
        let path = folder.join(path);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        written.map_err(|error| failed(&path, &error))?;
    }
    let name = &new.name;
    let said =
        Report::said(format!("{name}/ is a worker with its test: {name}/README.md says how to run and change it"));
    Ok(match crates {
        None => said,
        Some(path) => said.line(format!(
            "Docker cannot build its image: {} is outside of {name}/. Start its other services alone, and the worker with cargo, as README.md says \
             under \"Change it\"",
            path.display()
        )),
    })
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::refused(format!("{} cannot be made: {error}", path.display()))
}

/// A name has to do for a package, a program, a consumer and a queue alike.
fn check(name: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let why = if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(is_plain) {
        "it has to begin with a letter, and to be of a to z, 0 to 9, - and _"
    } else if name.len() > NAME_MAX {
        "it may be of 63 characters at most"
    } else if KEYWORDS.split_whitespace().any(|word| word == name) {
        "it is a keyword of Rust's"
    } else if TAKEN.contains(&name) || name.starts_with("idem") {
        "cargo, or one of the crates that the worker stands on, is called so"
    } else {
        return Ok(());
    };
    Err(Failure::refused(format!("{name:?} cannot be the name of a worker: {why}; such as order-ledger")))
}

/// The whole path of the folder, which has to hold idem's crates.
fn crates_in(folder: &Path) -> Result<PathBuf, Failure> {
    if !folder.join("idem-service/Cargo.toml").is_file() {
        return Err(Failure::refused(format!("--crates {}: there is no idem-service in it", folder.display())));
    }
    folder.canonicalize().map_err(|error| failed(folder, &error))
}

#[cfg(test)]
mod tests;

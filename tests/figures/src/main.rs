//! What idem may weigh: each figure beside its limit, and 1 as exit status if one is above it. `./test figures` runs it; `cargo run -p figures --
//! rooms` prints what the circles of idem-core are made of.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a command")]

mod lex;
mod names;
mod rooms;
mod tree;

use std::{path::Path, process::ExitCode};

use crate::{rooms::rooms, tree::Tree};

fn main() -> ExitCode {
    match print(std::env::args().nth(1).as_deref()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("figures: {text}");
            ExitCode::from(2)
        }
    }
}

/// A figure: what it is of, what it is, and what it may be at most.
struct Figure {
    name: String,
    value: usize,
    limit: usize,
}

impl Figure {
    fn new(name: &str, value: usize, limit: usize) -> Self {
        Self { name: name.to_owned(), value, limit }
    }

    fn print(&self) -> bool {
        let is_over = self.value > self.limit;
        let word = if is_over { "over" } else { "ok" };
        println!("{:<70} {:>9} {:>9}  {word}", self.name, self.value, self.limit);
        !is_over
    }
}

fn print(asked: Option<&str>) -> Result<bool, String> {
    let core = rooms(Path::new("idem-core"))?;
    if asked == Some("rooms") {
        let lines =
            core.files.iter().chain(&core.rooms).map(|circle| format!("{}: {}", circle.len(), circle.join(" ")));
        for line in
            lines.chain(core.ties.iter().cloned()).chain(core.detours.iter().map(|line| format!("detour {line}")))
        {
            println!("{line}");
        }
    }
    let mut figures = vec![
        Figure::new("idem-core: files in the largest circle", core.files.first().map_or(0, Vec::len), 6),
        Figure::new("idem-core: modules in any circle", core.rooms.iter().map(Vec::len).sum(), 0),
        Figure::new("idem-core: paths that do not name the defining module", core.detours.len(), 0),
    ];
    for name in ["idem-core", "idem-service"] {
        figures.push(Figure::new(&format!("{name}: names at the root"), root(name)?.len(), 30));
    }
    let mut are_kept = true;
    for figure in figures {
        are_kept &= figure.print();
    }
    Ok(are_kept)
}

fn root(name: &str) -> Result<std::collections::BTreeSet<String>, String> {
    let other = |crate_name: &str| Tree::read(Path::new(&crate_name.replace('_', "-"))).ok();
    Ok(Tree::read(Path::new(name))?.root(&other))
}

//! What idem may weigh: each figure beside its limit, and 1 as exit status if one is above it. `./test figures` runs it; `cargo run -p figures --
//! rooms` follows the paths of idem-core alone, and says what its circles are made of.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a command")]

mod lex;
mod lines;
mod names;
mod program;
mod rooms;
mod run;
mod tree;

use std::{path::Path, process::ExitCode};

use crate::{program::Program, rooms::rooms, tree::Tree};

fn main() -> ExitCode {
    let asked = std::env::args().nth(1);
    let printed = match asked.as_deref() {
        None => all(),
        Some("rooms") => print_rooms(),
        Some(other) => Err(format!("{other}: there is only `rooms`")),
    };
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("figures: {text}");
            ExitCode::from(2)
        }
    }
}

/// Prints a line, and answers whether the limit is kept.
fn kept(name: &str, value: impl Into<f64>, limit: u32) -> bool {
    let value = value.into();
    let is_over = value > f64::from(limit);
    let shown = if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") };
    println!("{name:<66} {shown:>8} {limit:>8}  {}", if is_over { "over" } else { "ok" });
    !is_over
}

fn not_measured(name: &str, limit: u32) {
    println!("{name:<66} {:>8} {limit:>8}  not measured", "-");
}

fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn all() -> Result<bool, String> {
    let mut is_kept = of_rooms(&rooms(Path::new("idem-core"))?);
    for name in ["idem-core", "idem-service"] {
        is_kept &= kept(&format!("{name}: names at the root"), count(root(name)?), 30);
    }
    let (all, product) = lines::lines()?;
    is_kept &= kept("lines of Rust", count(all), 158_000);
    is_kept &= kept("lines of Rust of the product", count(product), 66_000);
    is_kept &= of_endpoint()?;
    match program::whole_run() {
        Some(minutes) => is_kept &= kept("minutes of ./test from a fresh clone", minutes, 20),
        None => not_measured("minutes of ./test from a fresh clone", 20),
    }
    Ok(is_kept & of_program()?)
}

fn of_rooms(core: &rooms::Rooms) -> bool {
    let largest = core.files.first().map_or(0, Vec::len);
    let in_circles = core.rooms.iter().map(Vec::len).sum();
    kept("idem-core: files in the largest circle", count(largest), 6)
        & kept("idem-core: modules in any circle", count(in_circles), 0)
        & kept("idem-core: paths that do not name the defining module", count(core.detours.len()), 0)
}

/// The same axum app without a key and with one; until both are there it counts as over.
fn of_endpoint() -> Result<bool, String> {
    let name = "lines of an axum app that a key changes";
    match lines::changed(Path::new("examples/axum/before.rs"), Path::new("examples/axum/src/main.rs"))? {
        Some(lines) => Ok(kept(name, count(lines), 25)),
        None => {
            not_measured(name, 25);
            Ok(false)
        }
    }
}

fn of_program() -> Result<bool, String> {
    let program = Program::write()?;
    let (first, bare) = program.flags()?;
    Ok(kept("the README's program: flags on its first screen", count(first), 22)
        & kept("the README's program: flags without a variable", count(bare), 0)
        & kept("the README's program: packages", count(program.packages()?), 190)
        & kept("the README's program: seconds of debug after an edited line", program.seconds(&[])?, 4)
        & kept("the README's program: megabytes of its release", program.megabytes()?, 20)
        & kept("the README's program: functions of the engine in its own crate", count(program.engine()?), 0)
        & kept("the README's program: seconds of release after an edited line", program.seconds(&["--release"])?, 15))
}

/// What the circles are made of, path by path.
fn print_rooms() -> Result<bool, String> {
    let core = rooms(Path::new("idem-core"))?;
    for circle in core.files.iter().chain(&core.rooms) {
        println!("{}: {}", circle.len(), circle.join(" "));
    }
    for tie in &core.ties {
        println!("tie {tie}");
    }
    for detour in &core.detours {
        println!("detour {detour}");
    }
    Ok(of_rooms(&core))
}

fn root(name: &str) -> Result<usize, String> {
    let other = |name: &str| Tree::read(Path::new(&name.replace('_', "-"))).ok();
    Ok(Tree::read(Path::new(name))?.root(&other).len())
}

//! The README's program, which is the one that `idem new` writes, in a folder outside of the workspace.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::run::{children_seconds, printed, read, write};

const NAME: &str = "purchases";

/// The program's folder, which is removed with this.
pub(crate) struct Program {
    place: PathBuf,
    target: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

impl Program {
    /// Has `idem new` write it, with this workspace's crates and versions.
    pub(crate) fn write() -> Result<Self, String> {
        let root = env::current_dir().map_err(|error| error.to_string())?;
        let place = env::temp_dir().join(format!("idem-figures-{}", std::process::id()));
        fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        let program = Self { place, target: root.join("target/figures") };
        printed(Command::new("cargo").args(["build", "--quiet", "--package", "idem-cli"]))?;
        let mut idem = Command::new(root.join("target/debug/idem"));
        idem.args(["new", NAME, "--broker", "kafka", "--store", "postgres", "--crates"]).arg(&root);
        printed(idem.current_dir(&program.place))?;
        fs::copy(root.join("Cargo.lock"), program.path("Cargo.lock")).map_err(|error| error.to_string())?;
        Ok(program)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.place.join(NAME).join(path)
    }

    fn cargo(&self, arguments: &[&str]) -> Result<String, String> {
        let mut cargo = Command::new("cargo");
        cargo.arg("--offline").args(arguments).current_dir(self.path("."));
        // As a user has it: no flags, profiles or variables of the workspace's.
        let ours = |name: &String| {
            ["RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER"].contains(&name.as_str())
                || name.starts_with("CARGO_PROFILE_")
                || name.starts_with("CARGO_PKG_")
        };
        for name in env::vars().map(|(name, _)| name).filter(ours) {
            cargo.env_remove(name);
        }
        printed(cargo.env("CARGO_TARGET_DIR", &self.target).env_remove("CARGO_INCREMENTAL"))
    }

    /// The packages that it is compiled from, itself and build scripts' among them, without what exports traces.
    pub(crate) fn packages(&self) -> Result<usize, String> {
        let manifest = self.path("Cargo.toml");
        let written = read(&manifest)?;
        write(&manifest, &written.replace(", \"otel\"", ""))?;
        let tree = self.cargo(&["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
        write(&manifest, &written)?;
        let packages: BTreeSet<String> = tree?.lines().filter_map(named).collect();
        Ok(packages.len())
    }

    /// Megabytes of the release build.
    pub(crate) fn megabytes(&self) -> Result<f64, String> {
        self.cargo(&["build", "--quiet", "--release"])?;
        let binary = self.target.join("release").join(NAME);
        let size = fs::metadata(&binary).map_err(|error| format!("{}: {error}", binary.display()))?.len();
        Ok(f64::from(u32::try_from(size / 1000).unwrap_or(u32::MAX)) / 1000.0)
    }

    /// Seconds of the processor for cargo, rustc and the linker, after one line of the handler was edited and when all else is built.
    pub(crate) fn seconds(&self, profile: &[&str]) -> Result<f64, String> {
        let arguments: Vec<&str> = ["build", "--quiet"].iter().chain(profile).copied().collect();
        self.cargo(&arguments)?;
        self.edit()?;
        let before = children_seconds()?;
        self.cargo(&arguments)?;
        Ok(children_seconds()? - before)
    }

    /// The functions of the engine that its own crate compiles once more.
    pub(crate) fn engine(&self) -> Result<usize, String> {
        // Of a release, which shares no generic code with the crates that have compiled it already.
        let folder = self.target.join("release/deps");
        self.cargo(&["rustc", "--quiet", "--release", "--", "-C", "codegen-units=1", "--emit=obj"])?;
        let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let of_program = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(&format!("{NAME}-")) && name.ends_with(".o")
        };
        let files: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).filter(of_program).collect();
        if files.is_empty() {
            return Err(format!("{}: no object file of {NAME}", folder.display()));
        }
        let symbols = printed(Command::new("nm").args(["--demangle", "--defined-only"]).args(&files))?;
        Ok(symbols.lines().filter_map(|line| line.splitn(3, ' ').nth(2)).filter(|name| is_of_engine(name)).count())
    }

    /// Changes the handler's last line, or changes it back.
    fn edit(&self) -> Result<(), String> {
        let main = self.path("src/main.rs");
        let text = read(&main)?;
        let (line, other) = ("    Ok(())\n", "    Ok(std::hint::black_box(()))\n");
        let edited = if text.contains(other) { text.replacen(other, line, 1) } else { text.replacen(line, other, 1) };
        if edited == text {
            return Err(format!("{}: no line to edit", main.display()));
        }
        write(&main, &edited)
    }

    /// Flags on the first screen, and those of all that no variable sets.
    pub(crate) fn flags(&self) -> Result<(usize, usize), String> {
        self.cargo(&["build", "--quiet"])?;
        let screen = |flag: &str| printed(Command::new(self.target.join("debug").join(NAME)).arg(flag));
        let first = flags(&screen("-h")?);
        let all = flags(&screen("--help-all").or_else(|_| screen("--help"))?);
        Ok((first.len(), all.iter().filter(|flag| !flag.has_variable).count()))
    }
}

/// Whether a function is of the engine: a method, a closure or an implementation there, and not glue around one of its types.
fn is_of_engine(name: &str) -> bool {
    ["worker", "unit", "consumer", "relay", "outbox::relay"].iter().any(|room| {
        let path = format!("idem_core::{room}::");
        name.strip_prefix('<').unwrap_or(name).starts_with(&path)
    })
}

/// `serde v1.0.229` of a line of `cargo tree`, without the path and `(*)`.
fn named(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    Some(format!("{} {}", words.next()?, words.next()?))
}

struct Flag {
    name: String,
    has_variable: bool,
}

/// The flags of a screen of help: each begins a line, and what follows belongs to it. Those that only print something are no settings.
fn flags(screen: &str) -> Vec<Flag> {
    let mut found: Vec<Flag> = Vec::new();
    for line in screen.lines() {
        let text = line.trim_start();
        let begins = line.starts_with(' ') && text.starts_with('-') && line.len() - text.len() <= 6;
        let name = text.split([' ', ',', '=', '[']).find(|word| word.starts_with("--"));
        if let Some(name) = name.filter(|_| begins) {
            found.push(Flag { name: name.to_owned(), has_variable: false });
        }
        if let Some(flag) = found.last_mut() {
            flag.has_variable |= line.contains("[env: ");
        }
    }
    found.retain(|flag| !["--help", "--help-all", "--version"].contains(&flag.name.as_str()));
    found
}

/// Minutes of the last whole run of `./test` in a fresh clone, if there was one here.
pub(crate) fn whole_run() -> Option<f64> {
    let seconds = read(Path::new("target/test-logs/fresh-clone-seconds")).ok()?;
    Some(seconds.trim().parse::<f64>().ok()? / 60.0)
}

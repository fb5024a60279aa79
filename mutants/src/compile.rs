//! Compiles a copy of the project with all mutants in it, but those that the compiler refuses.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    Failed, output,
    run::{KILLERS, Killer},
    write::{self, Mutant, Written},
};

/// Which mutant runs.
const MODULE: &str = r#"//! Which mutant runs.

pub(crate) fn is(number: usize) -> bool {
    static RUNNING: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("IDEM_MUTANT").ok()?.parse().ok());
    *RUNNING == Some(number)
}
"#;

/// The compiled mutants, and the program of each of [`KILLERS`].
pub(crate) struct Made {
    pub(crate) numbers: Vec<usize>,
    pub(crate) programs: Vec<PathBuf>,
    pub(crate) tree: PathBuf,
}

pub(crate) fn all(mutants: &[Mutant], tree: &Path) -> Result<Made, Failed> {
    let mut left_out = HashSet::new();
    let written = loop {
        copy(tree)?;
        add_module(tree)?;
        let written = write::all(mutants, tree, &left_out)?;
        let refused = refused(tree, &written)?;
        if refused.is_empty() {
            break written;
        }
        left_out.extend(refused);
    };
    let numbers = written.iter().map(|one| one.number).collect();
    let programs = KILLERS.iter().map(|killer| built(tree, killer)).collect::<Result<_, _>>()?;
    Ok(Made { numbers, programs, tree: tree.to_owned() })
}

/// Writes the last commit into a tree of its own. Unchanged files keep their times, so that they are not compiled again.
pub(crate) fn copy(tree: &Path) -> Result<(), Failed> {
    fs::create_dir_all(tree)?;
    let tree = tree.canonicalize()?;
    let mut git = Command::new("git");
    git.env("GIT_INDEX_FILE", tree.with_extension("index")).arg("--work-tree").arg(&tree);
    output(git.args(["read-tree", "--reset", "-u", "HEAD"])).map(drop)
}

/// Adds the module that says which mutant runs.
fn add_module(tree: &Path) -> Result<(), Failed> {
    let root = tree.join("idem-core/src/lib.rs");
    let text = fs::read_to_string(&root)?.replacen("\nmod ", "\nmod mutants;\nmod ", 1);
    fs::write(&root, text)?;
    Ok(fs::write(tree.join("idem-core/src/mutants.rs"), MODULE)?)
}

/// The mutants that the compiler refuses, as far as it has come.
fn refused(tree: &Path, written: &[Written]) -> Result<HashSet<usize>, Failed> {
    let mut check = Command::new("cargo");
    check.args(["check", "--package", "idem-core", "--all-features", "--message-format", "json"]).current_dir(tree);
    check.env("RUSTFLAGS", "--cfg idem_bugs");
    let output = check.stderr(Stdio::inherit()).output()?;
    let (mut refused, mut near) = (HashSet::new(), HashSet::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let told: Value = serde_json::from_str(line)?;
        let message = &told["message"];
        if told["reason"] != "compiler-message" || message["level"] != "error" {
            continue;
        }
        let children = message["children"].as_array().into_iter().flatten();
        let lists = std::iter::once(message).chain(children).filter_map(|one| one["spans"].as_array());
        let places: Vec<(&str, usize)> = lists.flatten().filter_map(place).collect();
        let found = places.iter().filter_map(|(file, at)| {
            written.iter().find(|one| one.file == *file && one.text.contains(at)).map(|one| one.number)
        });
        let before = refused.len();
        refused.extend(found);
        // A type that a body returns early may be refused at its end.
        if let (true, Some((file, at))) = (refused.len() == before, places.first()) {
            let above = written.iter().filter(|one| one.file == *file && one.text.end <= *at);
            near.extend(above.max_by_key(|one| one.text.end).map(|one| one.number));
        }
    }
    if refused.is_empty() {
        refused = near;
    }
    if refused.is_empty() && !output.status.success() {
        return Err("the compiler refuses something that is no mutant".into());
    }
    Ok(refused)
}

fn place(span: &Value) -> Option<(&str, usize)> {
    Some((span["file_name"].as_str()?, usize::try_from(span["byte_start"].as_u64()?).ok()?))
}

fn built(tree: &Path, killer: &Killer) -> Result<PathBuf, Failed> {
    let mut build = Command::new("cargo");
    build.args(killer.build).args(["--package", killer.package, "--message-format", "json"]);
    build.env("RUSTFLAGS", "--cfg idem_bugs");
    if killer.package == "simulation" {
        // tokio's own choices are seeded only with this, see `./sim`.
        build.env("RUSTFLAGS", "--cfg tokio_unstable").env("CARGO_TARGET_DIR", "target/sim");
    }
    let told = output(build.current_dir(tree).stderr(Stdio::inherit()))?;
    let told = String::from_utf8_lossy(&told);
    // Programs that a test starts are built with it.
    let is_test = killer.build.contains(&"test");
    let program = told.lines().find_map(|line| {
        let told: Value = serde_json::from_str(line).ok()?;
        let program = told["executable"].as_str()?;
        (told["profile"]["test"] == is_test).then(|| program.into())
    });
    program.ok_or_else(|| "nothing was built".into())
}

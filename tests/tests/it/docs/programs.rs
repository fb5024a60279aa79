//! The repository's files, and the programs of other packages.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// The root of the repository.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

pub(super) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The blocks of a page that are marked as of this language.
pub(super) fn blocks(page: &str, language: &str) -> Vec<String> {
    let (mut blocks, mut inside) = (Vec::new(), None);
    for line in page.lines() {
        match (inside, line.trim_start().strip_prefix("```")) {
            (None, Some(marked)) => {
                inside = Some(marked == language);
                blocks.extend((marked == language).then(String::new));
            }
            (Some(_), Some(_)) => inside = None,
            (Some(true), None) => blocks.last_mut().expect("it has begun").extend([line, "\n"]),
            (Some(false) | None, None) => {}
        }
    }
    blocks
}

/// Where the programs are: beside this test, once the workspace is built.
pub(super) fn folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_owned()
}

/// The output of a program with these arguments.
pub(super) async fn output(program: &str, arguments: &[&str]) -> String {
    let path = folder().join(program);
    let output = Command::new(&path).args(arguments).env_clear().output().await;
    let output = output.unwrap_or_else(|error| panic!("{}: {error}; cargo build -p {program}", path.display()));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

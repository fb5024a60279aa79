//! idem's crates as a registry would hand them out.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Where everything of these tests is kept from one run to the next.
pub(crate) fn kept() -> PathBuf {
    root().join("target/outside")
}

/// The folder of idem's crates, each as its package has it.
pub(crate) fn unpacked() -> PathBuf {
    let folders = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = folders.filter(|name| name.starts_with("idem-")).collect();
    let packing = kept().join("packing");
    let arguments = ["package", "--no-verify", "--allow-dirty", "--quiet", "--offline", "--target-dir"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).arg(&packing).args(names.iter().map(|name| format!("--package={name}")));
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let crates = kept().join("crates");
    for name in &names {
        unpack(&packing.join("package"), name, &crates.join(name));
    }
    crates
}

/// Files that are as before keep their times, by which cargo knows what to build again: a package has the same time for
/// all its files.
fn unpack(packages: &Path, name: &str, folder: &Path) {
    let package = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
    let fresh = packages.join("fresh");
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh).unwrap();
    let archive = packages.join(format!("{package}.crate"));
    let tar = Command::new("tar").arg("-xzmf").arg(archive).arg("-C").arg(&fresh).status().unwrap();
    assert!(tar.success(), "{package} cannot be unpacked");
    let (now, before) = (files(&fresh.join(&package)), files(folder));
    for gone in before.difference(&now) {
        fs::remove_file(folder.join(gone)).unwrap();
    }
    for file in now {
        let (from, to) = (fresh.join(&package).join(&file), folder.join(&file));
        if fs::read(&from).ok() != fs::read(&to).ok() {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
    }
}

/// The files below, by their paths in the folder.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    let mut found = BTreeSet::new();
    for entry in entries.map(Result::unwrap) {
        let name = PathBuf::from(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|below| name.join(below)));
        } else {
            found.insert(name);
        }
    }
    found
}

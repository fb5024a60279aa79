//! Circles among the files and the rooms of a crate, and the paths that do not name the module that defines what they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::{
    names::Target,
    tree::{Named, Tree},
};

/// Who needs whom.
type Needs = BTreeMap<String, BTreeSet<String>>;

/// What was found in a crate.
#[derive(Debug)]
pub(crate) struct Rooms {
    /// Each circle of files, the largest first.
    pub(crate) files: Vec<Vec<String>>,
    pub(crate) rooms: Vec<Vec<String>>,
    /// Why two rooms of a circle need each other.
    pub(crate) ties: Vec<String>,
    pub(crate) detours: Vec<String>,
}

/// A path of a file, and whether a `use` has it.
struct Written<'a> {
    module: usize,
    named: &'a Named,
    is_glob: bool,
}

/// Follows each path of the crate in this folder.
pub(crate) fn rooms(folder: &Path) -> Result<Rooms, String> {
    let tree = Tree::read(folder)?;
    let source = folder.join("src");
    let (mut files, mut rooms, mut detours) = (Needs::new(), Needs::new(), BTreeSet::new());
    let mut why: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for written in written(&tree) {
        let here = name(&tree, written.module, &source);
        let text = format!("{here}:{}: {}", written.named.line, written.named.path.join("::"));
        let path = &written.named.path;
        if path.windows(2).any(|two| two[0] == "super" && two[1] == "super") {
            detours.insert(text.clone());
        }
        let Some(found) = tree.follow(written.module, path) else { continue };
        let file = |module: usize| &tree.modules[module].file;
        let is_detour = found.through.iter().any(|by| file(*by) != file(written.module));
        if is_detour && written.module != 0 && !written.named.is_macros {
            detours.insert(text.clone());
        }
        let target = match found.target {
            Target::Item(module) => module,
            Target::Module(module) if written.is_glob => module,
            Target::Module(_) => continue,
        };
        let there = name(&tree, target, &source);
        let (from, to) = (room(&here), room(&there));
        if from != to && from != "lib" {
            why.entry((from.to_owned(), to.to_owned())).or_default().insert(text);
            rooms.entry(from.to_owned()).or_default().insert(to.to_owned());
        }
        if here != there {
            files.entry(here).or_default().insert(there);
        }
    }
    let rooms = circles(&rooms);
    let ties = why
        .into_iter()
        .filter(|((from, to), _)| rooms.iter().any(|circle| circle.contains(from) && circle.contains(to)))
        .flat_map(|((from, to), texts)| texts.into_iter().map(move |text| format!("{from} -> {to}: {text}")))
        .collect();
    Ok(Rooms { files: circles(&files), rooms, ties, detours: detours.into_iter().collect() })
}

fn written(tree: &Tree) -> Vec<Written<'_>> {
    let mut found = Vec::new();
    for (module, here) in tree.modules.iter().enumerate() {
        let imports = here.uses.iter().map(|import| (&import.path, import.name.is_none()));
        let paths = here.paths.iter().filter(|named| tree.is_of_modules(module, named)).map(|named| (named, false));
        found.extend(imports.chain(paths).map(|(named, is_glob)| Written { module, named, is_glob }));
    }
    found
}

fn name(tree: &Tree, module: usize, source: &Path) -> String {
    let file: &PathBuf = &tree.modules[module].file;
    file.strip_prefix(source).unwrap_or(file).display().to_string()
}

/// `worker` of `worker/lane/run.rs`.
fn room(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// What hangs together: each can be reached from each.
fn circles(needs: &Needs) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = needs.keys().map(|from| (from, reach(needs, from))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (from, there) in &reached {
        if found.iter().any(|circle| circle.contains(from)) {
            continue;
        }
        let circle: Vec<String> = there
            .iter()
            .filter(|to| reached.get(*to).is_some_and(|back| back.contains(from)))
            .map(|to| (*to).clone())
            .collect();
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

fn reach<'a>(needs: &'a Needs, from: &'a String) -> BTreeSet<&'a String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for to in needs.get(next).into_iter().flatten() {
            if found.insert(to) {
                open.push(to);
            }
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test anything unexpected is a failure")]
mod tests {
    use super::*;

    /// Names are followed through re-exports, tests and comments are not read.
    #[test]
    fn circles_and_detours_are_found() {
        let folder = std::env::temp_dir().join(format!("idem-rooms-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("src/hall")).unwrap();
        let write = |path: &str, text: &str| std::fs::write(folder.join("src").join(path), text).unwrap();
        write("lib.rs", "mod hall; mod cellar; mod roof; pub use hall::Door;");
        write(
            "hall.rs",
            "mod stairs; pub use stairs::Step; pub struct Door;\nfn down() { crate::cellar::dig(r#\"crate::roof::x\"#, '\"') }",
        );
        write("hall/stairs.rs", "pub struct Step; // crate::roof::Tile");
        write(
            "cellar.rs",
            "pub fn dig() {}\nuse crate::{hall::{Door, self}, roof};\nfn up() -> hall::Step { roof::tile() }",
        );
        write("roof.rs", "pub fn tile() {}\n#[cfg(test)] mod tests { use crate::hall::Door; }");
        let found = rooms(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.files, [["cellar.rs", "hall.rs"]]);
        assert_eq!(found.rooms, [["cellar", "hall"]]);
        assert_eq!(found.detours, ["cellar.rs:3: hall::Step"]);
    }
}

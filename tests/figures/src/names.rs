//! Names followed to the module that defines them, through whatever imports and re-exports they go.

use std::collections::BTreeSet;

use crate::tree::{Named, Seen, Tree, Use};

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Module(usize),
    /// Something that this module defines.
    Item(usize),
}

/// A path that was followed.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) target: Target,
    /// The modules whose re-exports it goes through.
    pub(crate) through: Vec<usize>,
}

impl Tree {
    /// Where this path of a module leads; `None` is another crate, or a name of the path's own file.
    pub(crate) fn follow(&self, module: usize, path: &[String]) -> Option<Followed> {
        self.follow_once(module, path, &mut BTreeSet::new())
    }

    fn follow_once(&self, module: usize, path: &[String], seen: &mut BTreeSet<(usize, String)>) -> Option<Followed> {
        let (first, mut rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Followed { target: Target::Module(0), through: Vec::new() },
            "self" => Followed { target: Target::Module(module), through: Vec::new() },
            "super" => Followed { target: Target::Module(self.modules[module].parent?), through: Vec::new() },
            name => {
                let mut found = self.look(module, name, rest.is_empty(), seen)?;
                // Its own imports are no detour.
                found.through.retain(|by| *by != module);
                found
            }
        };
        while let Some((name, after)) = rest.split_first() {
            let Target::Module(at) = found.target else { break };
            if name == "super" {
                found.target = Target::Module(self.modules[at].parent?);
            } else if let Some(next) = self.look(at, name, after.is_empty(), seen) {
                found.through.extend(next.through.into_iter().filter(|by| *by != module));
                found.target = next.target;
            } else {
                // Macros define it.
                found.target = Target::Item(at);
            }
            rest = after;
        }
        Some(found)
    }

    /// A name in a module: its own, then its children, then what it imports.
    fn look(&self, module: usize, name: &str, is_last: bool, seen: &mut BTreeSet<(usize, String)>) -> Option<Followed> {
        if !seen.insert((module, name.to_owned())) {
            return None;
        }
        let here = &self.modules[module];
        let plain = |target| Some(Followed { target, through: Vec::new() });
        let child = here.children.get(name).copied();
        let found = match child {
            Some(child) if !is_last || !here.items.contains_key(name) => plain(Target::Module(child)),
            _ if here.items.contains_key(name) => plain(Target::Item(module)),
            _ if module == 0 && self.macros.contains_key(name) => plain(Target::Item(self.macros[name])),
            _ => self.imported(module, name, seen),
        };
        seen.remove(&(module, name.to_owned()));
        found
    }

    fn imported(&self, module: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Option<Followed> {
        let uses = &self.modules[module].uses;
        for import in uses.iter().filter(|import| import.name.as_deref() == Some(name)) {
            if let Some(mut found) = self.follow_once(module, &import.path.path, seen) {
                found.through.push(module);
                return Some(found);
            }
        }
        for import in uses.iter().filter(|import| import.name.is_none()) {
            let Some(from) = self.follow_once(module, &import.path.path, seen) else { continue };
            let Target::Module(from) = from.target else { continue };
            if let Some(mut found) = self.look(from, name, true, seen) {
                found.through.push(module);
                return Some(found);
            }
        }
        None
    }

    /// Whether a path is one that this crate's modules are named by, rather than a type's function or another crate.
    pub(crate) fn is_of_modules(&self, module: usize, named: &Named) -> bool {
        let first = named.path[0].as_str();
        matches!(first, "crate" | "self" | "super")
            || matches!(
                self.look(module, first, false, &mut BTreeSet::new()),
                Some(Followed { target: Target::Module(_), .. })
            )
    }

    /// What can be named at the root: leaves of `pub use` and public items, without modules and what is hidden.
    pub(crate) fn root(&self, other: &dyn Fn(&str) -> Option<Tree>) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = self.macros.keys().cloned().collect();
        self.shown(0, other, &mut names, &mut BTreeSet::new());
        names
    }

    fn shown(
        &self,
        module: usize,
        other: &dyn Fn(&str) -> Option<Tree>,
        names: &mut BTreeSet<String>,
        visited: &mut BTreeSet<usize>,
    ) {
        if !visited.insert(module) {
            return;
        }
        let here = &self.modules[module];
        names.extend(here.items.iter().filter(|(_, seen)| **seen == Seen::Everywhere).map(|(name, _)| name.clone()));
        for import in here.uses.iter().filter(|import| import.seen == Seen::Everywhere) {
            match (&import.name, self.follow(module, &import.path.path)) {
                (None, Some(Followed { target: Target::Module(from), .. })) => self.shown(from, other, names, visited),
                (Some(_), Some(Followed { target: Target::Module(_), .. })) => {}
                (Some(name), None) if is_foreign_module(import, other) || name == "_" => {}
                (Some(name), _) => {
                    names.insert(name.clone());
                }
                (None, _) => {
                    names.insert(format!("{}::*", import.path.path.join("::")));
                }
            }
        }
    }
}

/// A crate as a whole, or a module of another of ours.
fn is_foreign_module(import: &Use, other: &dyn Fn(&str) -> Option<Tree>) -> bool {
    let path = &import.path.path;
    let [name, rest @ ..] = &path[..] else { return true };
    if rest.is_empty() {
        return true;
    }
    let inside: Vec<String> = std::iter::once("crate".to_owned()).chain(rest.iter().cloned()).collect();
    other(name).and_then(|tree| tree.follow(0, &inside)).is_some_and(|found| matches!(found.target, Target::Module(_)))
}

//! The ends that runs have found, kept in a file so that runs add up.
//!
//! A death counts as long as the mutant's own file is the same; a life only as long as nothing has changed that might end it.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use crate::{Failed, output, run::KILLERS, write::Mutant};

/// Where something that might end a mutant stands.
const JUDGES: [&str; 5] = ["idem-core", "idem-testkit", "idem-conformance", "simulation", "tests"];

const LIVES: &str = "lives";

pub(crate) struct Known {
    /// By what it counts for, and the mutant's name: the name of the killer, or [`LIVES`].
    ends: HashMap<(String, String), String>,
    file: File,
    /// The last commit's objects: of each source by its path, and of all [`JUDGES`] together.
    sources: HashMap<String, String>,
    judges: String,
}

impl Known {
    pub(crate) fn read(path: &Path) -> Result<Self, Failed> {
        let file = File::options().append(true).create(true).open(path)?;
        let mut ends = HashMap::new();
        for line in fs::read_to_string(path)?.lines() {
            let mut parts = line.splitn(3, '\t').map(str::to_owned);
            if let (Some(of), Some(end), Some(name)) = (parts.next(), parts.next(), parts.next()) {
                ends.insert((of, name), end);
            }
        }
        let mut list = Command::new("git");
        let list = String::from_utf8(output(list.args(["ls-tree", "-r", "HEAD", "idem-core/src"]))?)?;
        let sources = list.lines().filter_map(|line| {
            let (object, path) = line.split_once('\t')?;
            Some((path.to_owned(), object.rsplit(' ').next()?.to_owned()))
        });
        let mut judges = Command::new("git");
        judges.arg("rev-parse").args(JUDGES.map(|folder| format!("HEAD:{folder}")));
        let judges = String::from_utf8(output(&mut judges)?)?.trim().replace('\n', "+");
        Ok(Self { ends, file, sources: sources.collect(), judges })
    }

    /// The place of the killer in [`KILLERS`], or `None` within for one that lives.
    #[allow(clippy::option_option, reason = "whether it is known, and who it was")]
    pub(crate) fn of(&self, mutant: &Mutant) -> Option<Option<usize>> {
        let end = |of: &str| self.ends.get(&(of.to_owned(), mutant.name.clone()));
        if let Some(killer) = self.sources.get(&mutant.file).and_then(|source| end(source)) {
            return KILLERS.iter().position(|one| one.name == killer).map(Some);
        }
        end(&self.judges).map(|_| None)
    }

    pub(crate) fn add(&mut self, mutant: &Mutant, killer: Option<usize>) -> Result<(), Failed> {
        let (of, end) = match killer {
            Some(place) => (self.sources.get(&mutant.file).ok_or("a mutant of no source")?, KILLERS[place].name),
            None => (&self.judges, LIVES),
        };
        println!("{}: {end}", mutant.name);
        Ok(writeln!(self.file, "{of}\t{end}\t{}", mutant.name)?)
    }
}

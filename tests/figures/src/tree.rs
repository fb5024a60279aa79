//! A crate as its modules: what each defines, what it imports, which paths it names. Code that is for tests alone is left out.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::lex::{Token, tokens};

/// A crate.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// The first is the root.
    pub(crate) modules: Vec<Module>,
    /// `#[macro_export]`: at the root, wherever they stand.
    pub(crate) macros: BTreeMap<String, usize>,
}

/// A module, of which a file may have several.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    /// By name, and whether they are public.
    pub(crate) items: BTreeMap<String, Seen>,
    pub(crate) uses: Vec<Use>,
    pub(crate) paths: Vec<Named>,
}

/// From where a name can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Everywhere,
    /// By the macros and crates of this workspace: `#[doc(hidden)]`.
    Hidden,
    Inside,
}

/// One leaf of a `use`.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    /// `None` is a glob.
    pub(crate) name: Option<String>,
    pub(crate) path: Named,
    pub(crate) seen: Seen,
}

/// A path as it is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    /// `$crate`: of a macro, which stands elsewhere.
    pub(crate) is_macros: bool,
}

impl Tree {
    /// The crate in this folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let mut tree = Self::default();
        let root = folder.join("src/lib.rs");
        tree.modules.push(Module { file: root.clone(), ..Module::default() });
        tree.file(&root, 0)?;
        Ok(tree)
    }

    fn file(&mut self, file: &Path, module: usize) -> Result<(), String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let tokens = tokens(&text);
        Reader { tree: self, tokens: &tokens, at: 0 }.block(module, true)
    }

    /// The module of this name, which is made once, although two `cfg` may each have it.
    fn child(&mut self, parent: usize, name: &str, file: PathBuf) -> usize {
        let next = self.modules.len();
        let id = *self.modules[parent].children.entry(name.to_owned()).or_insert(next);
        if id == next {
            self.modules.push(Module { file, parent: Some(parent), ..Module::default() });
        }
        id
    }

    /// Where the file of a child stands: `foo.rs` or `foo/mod.rs` in the folder of its parent.
    fn file_of(&self, parent: usize, name: &str) -> PathBuf {
        let mut folders = vec![name.to_owned()];
        let mut at = parent;
        while let Some(above) = self.modules[at].parent {
            folders
                .extend(self.modules[above].children.iter().find(|(_, id)| **id == at).map(|(name, _)| name.clone()));
            at = above;
        }
        let mut file = self.modules[0].file.with_file_name("");
        file.extend(folders.iter().rev());
        let flat = file.with_extension("rs");
        if flat.exists() { flat } else { file.join("mod.rs") }
    }
}

struct Reader<'a> {
    tree: &'a mut Tree,
    tokens: &'a [(Token, usize)],
    at: usize,
}

/// The attributes before an item.
#[derive(Debug, Default, Clone, Copy)]
struct Marks {
    is_test: bool,
    is_hidden: bool,
    is_exported: bool,
}

impl Reader<'_> {
    fn word(&self, by: usize) -> Option<&str> {
        match self.tokens.get(self.at + by) {
            Some((Token::Word(word), _)) => Some(word),
            _ => None,
        }
    }

    fn is(&self, by: usize, token: &Token) -> bool {
        self.tokens.get(self.at + by).is_some_and(|(found, _)| found == token)
    }

    /// To the end of the file, or of the group that was opened before. Items are those of a module's own level.
    fn block(&mut self, module: usize, has_items: bool) -> Result<(), String> {
        let mut marks = Marks::default();
        let mut seen = Seen::Inside;
        while let Some((token, _)) = self.tokens.get(self.at) {
            match token {
                Token::Sign('#') => {
                    self.mark(&mut marks);
                    continue;
                }
                _ if marks.is_test => {
                    self.skip_item();
                    marks = Marks::default();
                    continue;
                }
                Token::Close(_) => {
                    self.at += 1;
                    return Ok(());
                }
                Token::Open(_) => {
                    self.at += 1;
                    self.block(module, false)?;
                }
                Token::Word(word) if word == "pub" => {
                    seen = self.visibility(marks);
                    continue;
                }
                Token::Word(word) => {
                    let word = word.clone();
                    let is_item = self.item(&word, module, has_items, seen, marks)?;
                    if !is_item {
                        self.path(module);
                        // `pub async unsafe fn`
                        if matches!(word.as_str(), "async" | "unsafe" | "const" | "extern" | "static") {
                            continue;
                        }
                    }
                }
                Token::Sep | Token::Sign(_) | Token::Other => self.at += 1,
            }
            marks = Marks::default();
            seen = Seen::Inside;
        }
        Ok(())
    }

    fn mark(&mut self, marks: &mut Marks) {
        self.at += 1;
        if self.is(0, &Token::Sign('!')) {
            self.at += 1;
        }
        let from = self.at;
        self.skip_group();
        let words: Vec<&str> = self.tokens[from..self.at]
            .iter()
            .filter_map(|(token, _)| if let Token::Word(word) = token { Some(word.as_str()) } else { None })
            .collect();
        marks.is_test |= matches!(words[..], ["cfg", "test"] | ["cfg", "all", "test", ..]);
        marks.is_hidden |= words == ["doc", "hidden"];
        marks.is_exported |= words == ["macro_export"];
    }

    fn visibility(&mut self, marks: Marks) -> Seen {
        self.at += 1;
        if self.is(0, &Token::Open('(')) {
            self.skip_group();
            return Seen::Inside;
        }
        if marks.is_hidden { Seen::Hidden } else { Seen::Everywhere }
    }

    /// Over the group that opens here.
    fn skip_group(&mut self) {
        let mut depth = 0;
        while let Some((token, _)) = self.tokens.get(self.at) {
            self.at += 1;
            match token {
                Token::Open(_) => depth += 1,
                Token::Close(_) => depth -= 1,
                Token::Word(_) | Token::Sep | Token::Sign(_) | Token::Other => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Over what an attribute belongs to: an item, a statement, a field, an arm.
    fn skip_item(&mut self) {
        let is_item = matches!(
            self.word(0),
            Some(
                "pub"
                    | "fn"
                    | "use"
                    | "mod"
                    | "struct"
                    | "enum"
                    | "impl"
                    | "trait"
                    | "const"
                    | "static"
                    | "type"
                    | "async"
                    | "unsafe"
                    | "extern"
                    | "macro_rules"
            )
        );
        while let Some((token, _)) = self.tokens.get(self.at) {
            match token {
                Token::Close(_) => return,
                Token::Open(kind) => {
                    self.skip_group();
                    if *kind == '{' && !self.is(0, &Token::Sign(';')) && !self.is(0, &Token::Sign(',')) {
                        return;
                    }
                }
                Token::Sign(';') => {
                    self.at += 1;
                    return;
                }
                Token::Sign(',') if !is_item => {
                    self.at += 1;
                    return;
                }
                Token::Word(_) | Token::Sep | Token::Sign(_) | Token::Other => self.at += 1,
            }
        }
    }

    /// Reads an item's beginning, if this word is one.
    fn item(&mut self, word: &str, module: usize, has_items: bool, seen: Seen, marks: Marks) -> Result<bool, String> {
        match word {
            "use" if !self.is(1, &Token::Sign('<')) => {
                self.at += 1;
                let shown = if marks.is_hidden && seen == Seen::Everywhere { Seen::Hidden } else { seen };
                let mut leaves = Vec::new();
                self.use_tree(&Vec::new(), shown, &mut leaves);
                let module = &mut self.tree.modules[module];
                module.uses.extend(leaves);
            }
            "mod" if has_items => {
                let Some(name) = self.word(1).map(str::to_owned) else { return Ok(false) };
                self.at += 2;
                if self.is(0, &Token::Sign(';')) {
                    let file = self.tree.file_of(module, &name);
                    let known = self.tree.modules.len();
                    let child = self.tree.child(module, &name, file.clone());
                    if child == known {
                        self.tree.file(&file, child)?;
                    }
                } else {
                    self.at += 1;
                    let file = self.tree.modules[module].file.clone();
                    let child = self.tree.child(module, &name, file);
                    self.block(child, true)?;
                }
            }
            "macro_rules" => {
                if let Some(name) = self.word(2).map(str::to_owned) {
                    if marks.is_exported {
                        self.tree.macros.insert(name.clone(), module);
                    }
                    self.define(module, has_items, name, Seen::Inside);
                }
                self.at += 3;
            }
            "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => {
                let by = if self.word(1) == Some("mut") { 2 } else { 1 };
                let Some(name) = self.word(by).map(str::to_owned) else { return Ok(false) };
                if matches!(name.as_str(), "fn" | "unsafe" | "async" | "extern") {
                    return Ok(false);
                }
                self.define(module, has_items, name, seen);
                self.at += by + 1;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn define(&mut self, module: usize, has_items: bool, name: String, seen: Seen) {
        if has_items {
            self.tree.modules[module].items.insert(name, seen);
        }
    }

    fn use_tree(&mut self, before: &[String], seen: Seen, leaves: &mut Vec<Use>) {
        let mut path = before.to_vec();
        loop {
            let line = self.tokens.get(self.at).map_or(0, |(_, line)| *line);
            let named = |path: &[String]| Named { path: path.to_vec(), line, is_macros: false };
            match self.tokens.get(self.at).map(|(token, _)| token.clone()) {
                Some(Token::Word(word)) => {
                    self.at += 1;
                    // `{self}` is what stands before it.
                    if word != "self" || path.is_empty() {
                        path.push(word);
                    }
                    if self.is(0, &Token::Sep) {
                        continue;
                    }
                    let mut name = path.last().cloned();
                    if self.word(0) == Some("as") {
                        name = self.word(1).map(str::to_owned);
                        self.at += 2;
                    }
                    leaves.push(Use { name, path: named(&path), seen });
                    break;
                }
                Some(Token::Sep) => self.at += 1,
                Some(Token::Sign('*')) => {
                    self.at += 1;
                    leaves.push(Use { name: None, path: named(&path), seen });
                    break;
                }
                Some(Token::Open(_)) => {
                    self.at += 1;
                    while !matches!(self.tokens.get(self.at), Some((Token::Close(_), _)) | None) {
                        if self.is(0, &Token::Sign(',')) {
                            self.at += 1;
                        } else {
                            self.use_tree(&path, seen, leaves);
                        }
                    }
                    self.at += 1;
                    break;
                }
                // `use<'a>`, and what is no tree.
                Some(Token::Close(_) | Token::Sign(_) | Token::Other) | None => {
                    self.at += 1;
                    break;
                }
            }
        }
    }

    /// A path that begins here, if it has more than one segment.
    fn path(&mut self, module: usize) {
        let before = |by: usize| self.at.checked_sub(by).map(|at| &self.tokens[at].0);
        let is_macros = before(1) == Some(&Token::Sign('$'));
        let continues = matches!(before(1), Some(Token::Sep));
        let line = self.tokens[self.at].1;
        let mut path = Vec::new();
        while let Some(word) = self.word(0) {
            path.push(word.to_owned());
            self.at += 1;
            if !self.is(0, &Token::Sep) || self.word(1).is_none() {
                break;
            }
            self.at += 1;
        }
        if path.len() > 1 && !continues {
            self.tree.modules[module].paths.push(Named { path, line, is_macros });
        }
    }
}

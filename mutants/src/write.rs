//! Writes mutants into the sources, each behind its number.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    ops::Range,
    path::Path,
};

use proc_macro2::LineColumn;
use serde::Deserialize;
use syn::{
    spanned::Spanned,
    visit::{self, Visit},
};

use crate::Failed;

/// cargo-mutants' entry for a mutant; its number is its place in the list.
#[derive(Deserialize)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    pub(crate) file: String,
    genre: String,
    replacement: String,
    span: Place,
}

#[derive(Deserialize)]
struct Place {
    start: At,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    line: usize,
    column: usize,
}

/// Where the text of a mutant stands in the file that was written.
pub(crate) struct Written {
    pub(crate) number: usize,
    pub(crate) file: String,
    pub(crate) text: Range<usize>,
}

/// Writes the mutants into the sources of this tree, but those that are left out.
pub(crate) fn all(mutants: &[Mutant], tree: &Path, left_out: &HashSet<usize>) -> Result<Vec<Written>, Failed> {
    let mut of_files = BTreeMap::<&str, Vec<usize>>::new();
    for (number, mutant) in mutants.iter().enumerate().filter(|(number, _)| !left_out.contains(number)) {
        of_files.entry(&mutant.file).or_default().push(number);
    }
    let mut written = Vec::new();
    for (file, numbers) in of_files {
        let path = tree.join(file);
        let source = fs::read_to_string(&path)?;
        let spots = Spots::of(&source, mutants, &numbers)?;
        let mut writer = Writer { source: &source, spots: &spots, text: String::new(), ranges: Vec::new() };
        writer.write(0..source.len(), 0);
        let Writer { text, ranges, .. } = writer;
        fs::write(&path, text)?;
        written.extend(ranges.into_iter().map(|(number, text)| Written { number, file: file.to_owned(), text }));
    }
    Ok(written)
}

/// One expression, or the beginning of a body, which is empty, and the text of each of its mutants there.
struct Spot {
    whole: Range<usize>,
    mutants: Vec<(usize, String)>,
}

/// Finds the places that mutants replace.
struct Spots<'s> {
    source: &'s str,
    /// Where its lines begin.
    lines: Vec<usize>,
    mutants: &'s [Mutant],
    /// By where they begin, as cargo-mutants says it.
    wanted: BTreeMap<(&'s str, At), Vec<usize>>,
    spots: Vec<Spot>,
}

impl<'s> Spots<'s> {
    fn of(source: &'s str, mutants: &'s [Mutant], numbers: &[usize]) -> Result<Vec<Spot>, Failed> {
        let lines = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut wanted = BTreeMap::<_, Vec<usize>>::new();
        for number in numbers {
            let mutant = &mutants[*number];
            wanted.entry((mutant.genre.as_str(), mutant.span.start)).or_default().push(*number);
        }
        let mut found = Self { source, lines, mutants, wanted, spots: Vec::new() };
        found.visit_file(&syn::parse_file(source)?);
        // The place that begins first and ends last is outside; the beginning of a body comes before all of it.
        found.spots.sort_by_key(|Spot { whole, .. }| (whole.start, !whole.is_empty(), usize::MAX - whole.end));
        Ok(found.spots)
    }

    fn offset(&self, at: LineColumn) -> usize {
        let line = self.lines[at.line - 1];
        line + self.source[line..].char_indices().nth(at.column).map_or(0, |(offset, _)| offset)
    }

    fn range(&self, of: &impl Spanned) -> Range<usize> {
        let span = of.span();
        self.offset(span.start())..self.offset(span.end())
    }

    /// Notes the mutants of a kind that begin `at`, where there are any; `text` gives the text of each there.
    fn spot(&mut self, genre: &'static str, at: &impl Spanned, whole: Range<usize>, text: impl Fn(&Mutant) -> String) {
        let LineColumn { line, column } = at.span().start();
        let numbers = self.wanted.remove(&(genre, At { line, column: column + 1 })).unwrap_or_default();
        let mutants: Vec<_> = numbers.into_iter().map(|number| (number, text(&self.mutants[number]))).collect();
        if !mutants.is_empty() {
            self.spots.push(Spot { whole, mutants });
        }
    }

    fn body(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else { return };
        let at = self.range(first).start;
        self.spot("FnValue", first, at..at, |mutant| mutant.replacement.clone());
    }
}

/// `let` in a condition stands only where it is.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Spots<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.body(&function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.body(&function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = arm.guard.as_ref().filter(|(_, guard)| !has_let(guard)) {
            self.spot("MatchArmGuard", guard, self.range(guard), |mutant| mutant.replacement.clone());
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let operand = &self.source[self.range(&unary.expr)];
        self.spot("UnaryOperator", &unary.op, self.range(unary), |_| operand.to_owned());
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let (left, right) = (&self.source[self.range(&binary.left)], &self.source[self.range(&binary.right)]);
            let text = |mutant: &Mutant| format!("{left} {} {right}", mutant.replacement);
            self.spot("BinaryOperator", &binary.op, self.range(binary), text);
        }
        visit::visit_expr_binary(self, binary);
    }
}

/// Writes a source with its mutants. A mutant's text holds no others, since one at a time is asked for.
struct Writer<'w> {
    source: &'w str,
    spots: &'w [Spot],
    text: String,
    ranges: Vec<(usize, Range<usize>)>,
}

impl Writer<'_> {
    /// Writes this part of the source, with the spots from this one on that lie in it. Answers the first one behind it.
    fn write(&mut self, part: Range<usize>, mut next: usize) -> usize {
        let (spots, mut at) = (self.spots, part.start);
        while let Some(Spot { whole, mutants }) =
            spots.get(next).filter(|spot| spot.whole.end <= part.end && spot.whole.start < part.end)
        {
            self.text.push_str(&self.source[at..whole.start]);
            at = whole.end;
            next = if whole.is_empty() {
                mutants.iter().for_each(|one| self.mutant(one, "{ return ", "; } "));
                next + 1
            } else {
                self.text.push('(');
                mutants.iter().for_each(|one| self.mutant(one, "{ (", ") } else "));
                self.text.push_str("{ (");
                let behind = self.write(whole.clone(), next + 1);
                self.text.push_str(") })");
                behind
            };
        }
        self.text.push_str(&self.source[at..part.end]);
        next
    }

    fn mutant(&mut self, (number, text): &(usize, String), before: &str, after: &str) {
        let start = self.text.len();
        self.text.push_str(&format!("if crate::mutants::is({number}) {before}{text}{after}"));
        self.ranges.push((*number, start..self.text.len()));
    }
}

//! The statements that are prepared on a connection.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OnceCell;
use tokio_postgres::{Client, Error, Statement};

/// Prepared statements by their texts. The first call with a text prepares it, and calls that need it meanwhile wait for
/// that one.
pub(crate) struct StatementCache {
    max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    uses: u64,
    entries: HashMap<Box<str>, Entry>,
}

struct Entry {
    used: u64,
    statement: Arc<OnceCell<Statement>>,
}

impl fmt::Debug for StatementCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatementCache").field("max", &self.max).finish_non_exhaustive()
    }
}

impl StatementCache {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default() }
    }

    pub(crate) async fn get(&self, client: &Client, text: &str) -> Result<Statement, Error> {
        let cell = self.cell(text);
        cell.get_or_try_init(|| client.prepare(text)).await.cloned()
    }

    /// Forgets everything, for example because a table was altered under a prepared statement (A27).
    pub(crate) fn clear(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).entries.clear();
    }

    fn cell(&self, text: &str) -> Arc<OnceCell<Statement>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.uses += 1;
        let used = state.uses;
        if let Some(entry) = state.entries.get_mut(text) {
            entry.used = used;
            return Arc::clone(&entry.statement);
        }
        if state.entries.len() >= self.max {
            let oldest = state.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(text, _)| text.clone());
            // Dropping the last handle of a statement deallocates it on the server.
            oldest.and_then(|oldest| state.entries.remove(&oldest));
        }
        let statement = Arc::<OnceCell<Statement>>::default();
        state.entries.insert(text.into(), Entry { used, statement: Arc::clone(&statement) });
        statement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_that_was_not_used_for_longest_goes() {
        let cache = StatementCache::new(2);
        let first = cache.cell("a");
        cache.cell("b");
        assert!(Arc::ptr_eq(&first, &cache.cell("a")), "one cell a text");
        cache.cell("c");
        let state = cache.state.lock().unwrap();
        let mut texts: Vec<&str> = state.entries.keys().map(|text| &**text).collect();
        texts.sort_unstable();
        assert_eq!(texts, ["a", "c"]);
    }
}

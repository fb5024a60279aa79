//! Builds a [`RunOnce`], refusing settings that break a rule.

use std::{fmt, sync::Arc};

use crate::{
    config_error::ConfigError,
    handler::Work,
    once::{Calls, RunOnce},
    results::result::RESULT_BYTES_MAX,
    store::Store,
    unit::{setters::setup_setters, setup::Setup},
};

/// Settings of a [`RunOnce`]; see [`ConsumerSettings`](crate::config::ConsumerSettings) for defaults and limits.
pub struct RunOnceBuilder<S: Store> {
    setup: Setup<S>,
    allow_final_errors: bool,
}

impl<S: Store> fmt::Debug for RunOnceBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOnceBuilder")
            .field("name", &self.setup.name)
            .field("effects", &self.setup.effects)
            .field("settings", &self.setup.settings)
            .finish_non_exhaustive()
    }
}

impl<S: Store> RunOnceBuilder<S> {
    pub(super) fn new(store: Arc<S>, name: &str) -> Self {
        Self { setup: Setup::new(store, name), allow_final_errors: false }
    }

    setup_setters!();

    /// Lets work be [refused for good](crate::once::WorkError::final_result).
    ///
    /// A refusal is rolled back. One more short transaction claims the key again and keeps the outcome. If another process has recorded
    /// an outcome in between, the caller gets that one. So a refused operation may run once in each process that holds a caller of it at
    /// that moment, and it has one outcome for all.
    ///
    /// A result with a status from 400 to 499 is kept in the same way if a statement of the work has failed and the transaction cannot be
    /// committed, unless the work has [noted](crate::Tx::note_error) an error that may pass.
    #[must_use]
    pub fn allow_final_errors(mut self) -> Self {
        self.allow_final_errors = true;
        self
    }

    /// Builds the [`RunOnce`], which keeps its results. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(mut self) -> Result<RunOnce<S>, ConfigError> {
        self.setup.publishing.result_bytes_max.get_or_insert(RESULT_BYTES_MAX);
        let engine = Arc::new(self.setup.build(Work::OfCall)?);
        let calls = Arc::new(Calls::new(&engine.name, self.allow_final_errors));
        Ok(RunOnce { engine, calls })
    }
}

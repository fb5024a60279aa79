//! The operators' controls, as a [`RunOnce`] obeys them and a [`DedupConsumer`] tells them.

use std::time::Duration;

use crate::{
    consumer::{DedupConsumer, run_once::RunOnce},
    error::StoreError,
    pause::Pause,
    store::{Bookkeeping as _, Control, Store},
};

impl<S: Store> DedupConsumer<S> {
    /// Reads the operators' control of this name: whether it runs, or is paused or halted, by whom and why.
    ///
    /// [`process`](Self::process) does not obey it, because only its caller can leave messages where they are. A receive loop that is to obey
    /// as a [`Worker`](crate::Worker) does asks every two seconds.
    ///
    /// # Errors
    /// [`StoreError`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn control(&self) -> Result<Control, StoreError> {
        let scope = self.inner.register(None).await?.scope;
        self.inner.store.bookkeeping().control(scope).await
    }
}

impl<S: Store> RunOnce<S> {
    /// Reads the operators' control of this name, and obeys it until the next call: while it is paused or halted, no work begins.
    /// The answer of an operation that was done is given as ever, any other call is [`RunOnceError::Paused`](crate::RunOnceError::Paused),
    /// and work that is under way goes on.
    ///
    /// A [`Worker`](crate::Worker) reads it every two seconds; whatever calls the work has to do the same, since nothing else reads
    /// it here. `HttpService` of `idem-service` does.
    ///
    /// # Errors
    /// [`StoreError`]. The control that was read last is obeyed on.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn obey_control(&self) -> Result<(), StoreError> {
        let scope = self.inner.register(None).await?.scope;
        let control = self.inner.store.bookkeeping().control(scope).await?;
        self.inner.clock.set(control.now);
        self.gate.obey(&self.inner.name, &control);
        Ok(())
    }

    /// Why no work begins, by the control that was read last, and for how long already; `None` while it does.
    #[must_use]
    pub fn pause(&self) -> Option<(Pause, Duration)> {
        Some((self.gate.pause()?, self.gate.paused_for().unwrap_or_default()))
    }
}

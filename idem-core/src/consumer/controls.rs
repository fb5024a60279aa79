//! What an operator may ask of a [`DedupConsumer`]: its control, and whether its handler uses the transaction.

use crate::{
    consumer::DedupConsumer,
    error::StoreError,
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
        let scope = self.engine.register(None).await?.scope;
        self.engine.store.bookkeeping().control(scope).await
    }

    /// Whether any call of the handler so far has taken the connection of its transaction, published an event or set a result;
    /// `None` where none has gone well yet. With [`Effects::InTransaction`](crate::Effects::InTransaction), `Some(false)` means that
    /// whatever the handler does, idem does not cover it.
    #[must_use]
    pub fn uses_transaction(&self) -> Option<bool> {
        self.engine.transaction_use.seen()
    }
}

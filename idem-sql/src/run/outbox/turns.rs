//! Whose turn it is with a destination's row.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use idem_core::outbox::DestinationId;
use tokio::sync::OwnedMutexGuard;

/// Statements that lock a destination's row go one by one. Otherwise, while another session has it locked, each holds a
/// connection, and the other destinations wait for one.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<DestinationId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    pub(super) async fn of(&self, destination: DestinationId) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(destination).or_default());
        turn.lock_owned().await
    }
}

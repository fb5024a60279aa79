//! Calls with one key wait for the first of them in memory: on a connection each, the calls of one key would keep out those of all others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{error::Elapsed, timeout},
};

use crate::{
    names::{IdempotencyKey, ScopeId},
    store::claim::Claim,
};

type Of = (ScopeId, IdempotencyKey);

/// The keys that calls of this process are about, each with whether its operation is decided.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashMap<Of, watch::Receiver<bool>>>,
}

/// That no other call of this process is about the key. The next one's turn comes when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    of: Of,
    decided: watch::Sender<bool>,
}

impl Turns {
    /// Waits for the turn with this key. `None` once another call has decided the operation: all who waited can read its record at once.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn take(self: &Arc<Self>, claim: &Claim, within: Duration) -> Result<Option<Turn>, Elapsed> {
        let of = (claim.scope, claim.key.clone());
        let mut before = match self.begin(&of) {
            Ok(turn) => return Ok(Some(turn)),
            Err(before) => before,
        };
        let waits = async {
            loop {
                // Without a decision the call before has failed, or was given up.
                if before.wait_for(|decided| *decided).await.is_ok() {
                    return None;
                }
                match self.begin(&of) {
                    Ok(turn) => return Some(turn),
                    Err(next) => before = next,
                }
            }
        };
        timeout(within, waits).await
    }

    fn begin(self: &Arc<Self>, of: &Of) -> Result<Turn, watch::Receiver<bool>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = taken.get(of) {
            return Err(before.clone());
        }
        let (decided, is_decided) = watch::channel(false);
        taken.insert(of.clone(), is_decided);
        Ok(Turn { turns: Arc::clone(self), of: of.clone(), decided })
    }
}

impl Turn {
    /// The operation is decided, and has its record.
    pub(super) fn decided(&self) {
        self.decided.send_replace(true);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before the sender goes, so that whoever hears of that finds the turn free.
        self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.of);
    }
}

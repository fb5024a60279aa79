//! Rows that several transactions want to change.

use idem_core::Bytes;

use super::{
    MemoryConnection, MemoryError,
    connection::Status,
    fault::Defect,
    state::{UnitId, Write},
};

impl MemoryConnection<'_> {
    /// Locks a row until the transaction ends, as `SELECT … FOR UPDATE` does, and waits for its holder. The row need not
    /// be there. A nested transaction that is rolled back keeps its locks.
    ///
    /// # Errors
    /// [`MemoryError::Deadlock`] where two would wait for each other; [`MemoryError`] where the transaction or the connection
    /// is spoilt.
    pub async fn lock(&mut self, table: &str, key: &str) -> Result<(), MemoryError> {
        self.statement().await?;
        if self.shared.has(Defect::LocksNoRows) {
            return Ok(());
        }
        let (shared, unit, row) = (self.shared, self.pending.id, (table.to_owned(), key.to_owned()));
        loop {
            let ended = shared.ended.notified();
            tokio::pin!(ended);
            // From here on no end of a transaction is missed, also between the look and the wait.
            ended.as_mut().enable();
            let is_deadlock = {
                let mut state = shared.state();
                match state.locked.get(&row).copied().filter(|holder| *holder != unit) {
                    None => {
                        state.locked.insert(row, unit);
                        return Ok(());
                    }
                    Some(holder) => state.wait(unit, holder),
                }
            };
            if is_deadlock {
                self.pending.status = Status::Aborted;
                return Err(MemoryError::Deadlock);
            }
            ended.await;
            shared.state().waits.remove(&unit);
            if shared.state().era != self.pending.era {
                self.lose_connection();
                return Err(MemoryError::ConnectionLost);
            }
        }
    }

    /// Adds to the number in a row, which counts as 0 where it is not there: `UPDATE … SET value = value + $1`. The row is
    /// locked first. Answers the sum.
    ///
    /// # Errors
    /// As [`MemoryConnection::lock`].
    pub async fn add(&mut self, table: &str, key: &str, number: i64) -> Result<i64, MemoryError> {
        self.lock(table, key).await?;
        let before =
            self.get(table, key).await?.and_then(|value| std::str::from_utf8(&value).ok()?.parse::<i64>().ok());
        let sum = before.unwrap_or_default().saturating_add(number);
        self.write(Write::Put { table: table.to_owned(), key: key.to_owned(), value: Bytes::from(sum.to_string()) });
        Ok(sum)
    }
}

impl super::state::State {
    /// `unit` waits for `holder` from now on. Answers whether that closes a circle.
    pub(super) fn wait(&mut self, unit: UnitId, holder: UnitId) -> bool {
        let is_deadlock = self.is_deadlock(unit, holder);
        self.deadlocks += u64::from(is_deadlock);
        // A unit that gets the deadlock waits no longer.
        if is_deadlock {
            self.waits.remove(&unit)
        } else {
            self.waits.insert(unit, holder)
        };
        is_deadlock
    }
}

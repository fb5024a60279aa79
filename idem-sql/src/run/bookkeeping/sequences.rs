//! Sequences that are behind the rows of their columns: after a logical replication, or a restore of the rows alone.

use idem_core::StoreError;

use crate::{
    check::verify::SequenceBehind,
    run::{driver::PostgresDriver, row::Row},
};

/// The sequences that are behind, as the database's own function finds them.
///
/// # Errors
/// Those of the statement; the function must be there.
pub(crate) async fn behind(driver: &impl PostgresDriver) -> Result<Vec<SequenceBehind>, StoreError> {
    let text = &driver.statements().sequences_behind;
    let rows = driver.run_once("comparing sequences with their rows", text, &[]).await?;
    rows.iter().map(read).collect()
}

/// One row of [`sequences_behind`](crate::PostgresStatements::sequences_behind).
pub(crate) fn read(row: &Row) -> Result<SequenceBehind, StoreError> {
    Ok(SequenceBehind {
        table: row.get("table_name")?,
        sequence: row.get("sequence_name")?,
        next: row.get("next_value")?,
        highest: row.get("highest")?,
    })
}

/// The cause of an insert that met a row of the same key each time that it ran. A conflict that a statement expects is none, and the
/// winner of a race is found by the next run, so it is most likely an id that a sequence has given before. A server that was replicated
/// logically becomes the primary under a worker that runs on, which has no start to be refused at.
pub(crate) async fn explain(driver: &impl PostgresDriver, error: StoreError) -> StoreError {
    match behind(driver).await {
        Ok(behind) if !behind.is_empty() => SequenceBehind::refusal(driver.schema(), &behind),
        Ok(_) | Err(_) => error,
    }
}

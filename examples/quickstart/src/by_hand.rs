//! The two consumers that people write instead: both lose or invent money. Do not copy them.

use std::{path::PathBuf, sync::Arc};

use idem_core::{
    BoxError, Message, Source,
    key::KEY_FIELD,
    source::{Received, Settle},
};
use idem_testkit::memory::Queue;
use sqlx::{Connection, SqliteConnection};

use crate::{crash::Crashes, handler::Purchase, ledger};

/// As many messages a transaction as idem takes, so that the loops are not slower for that alone.
const BATCH: usize = 100;

/// How a loop recognises messages that it has seen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Recognise {
    /// Not at all: insert, then acknowledge.
    Nothing,
    /// A purchase that equals another in every column is taken for the same one.
    Content,
}

/// Consumes the queue until it is empty.
pub(crate) async fn consume(
    queue: Queue,
    file: PathBuf,
    crashes: Arc<Crashes>,
    recognise: Recognise,
) -> Result<(), BoxError> {
    let mut db = ledger::open(&file).await?;
    let insert = match recognise {
        Recognise::Nothing => "INSERT INTO purchases (customer, day, cds, cents) VALUES (?, ?, ?, ?)",
        Recognise::Content => {
            let unique = "CREATE UNIQUE INDEX IF NOT EXISTS content ON purchases (customer, day, cds, cents)";
            sqlx::query(unique).execute(&mut db).await?;
            "INSERT INTO purchases (customer, day, cds, cents) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        }
    };
    let source = queue.source();
    source.attach().await?;
    while !queue.is_drained() {
        let Received::Deliveries(batch) = source.receive(BATCH).await? else { break };
        write(&mut db, insert, batch.iter().map(|delivery| &delivery.message), &crashes).await?;
        crashes.acknowledging().await;
        // idem requires a proof of the commit to acknowledge, so this loop has to forge its proofs.
        let proofs = idem_testkit::durables(batch.len()).await;
        let acknowledged =
            batch.into_iter().zip(proofs).map(|(delivery, proof)| (delivery.handle, Settle::Acknowledge(proof)));
        source.settle(acknowledged.collect()).await;
    }
    Ok(())
}

async fn write(
    db: &mut SqliteConnection,
    insert: &'static str,
    messages: impl Iterator<Item = &Message>,
    crashes: &Crashes,
) -> Result<(), BoxError> {
    let mut transaction = db.begin().await?;
    for message in messages {
        // An unreadable message is dropped, at best with a line in a log.
        let Ok(Purchase { customer, day, cds, cents }) = message.json() else { continue };
        sqlx::query(insert).bind(customer).bind(day).bind(cds).bind(cents).execute(&mut *transaction).await?;
        crashes.written(message.headers().text(KEY_FIELD).unwrap_or_default()).await;
    }
    transaction.commit().await?;
    Ok(())
}

//! A caller of [`RunOnce`] that asks for the same operations as other processes do, and notes what it was answered.

use std::{fs::OpenOptions, future::Future, io::Write as _, path::Path, time::Duration};

use idem_core::{
    BoxError, Effects, ResultBody, RunOnce, Store, Tx,
    once::{Request, RunOnceError, WorkError},
};
use idem_sqlx::{PostgresStore, SqliteStore};

use crate::plan::Asking;

/// Every fifth operation is refused for good.
#[must_use]
pub fn is_refused(key: u64) -> bool {
    key.is_multiple_of(5)
}

/// A store whose transactions write the effect of an operation, in the table of the tests' handlers.
pub trait Noting: Store {
    /// Writes the value that the operation has drawn.
    fn note(tx: &mut Tx<'_, Self>, key: u64, value: i64) -> impl Future<Output = Result<(), BoxError>> + Send;
}

const NOTE: &str = "INSERT INTO effects (message_key, sequence, account, cents) VALUES ($1, 0, 0, $2)";

macro_rules! noting {
    ($store:ty) => {
        impl Noting for $store {
            async fn note(tx: &mut Tx<'_, Self>, key: u64, value: i64) -> Result<(), BoxError> {
                sqlx::query(NOTE).bind(key.to_string()).bind(value).execute(tx.connection()).await?;
                Ok(())
            }
        }
    };
}
noting!(PostgresStore);
noting!(SqliteStore);

impl Noting for idem_tokio_postgres::PostgresStore {
    async fn note(tx: &mut Tx<'_, Self>, key: u64, value: i64) -> Result<(), BoxError> {
        tx.connection().execute(NOTE, &[&key.to_string(), &value]).await?;
        Ok(())
    }
}

/// Asks for each operation as often as the plan says, in an order of its own, and appends key and answer to the file.
///
/// # Errors
/// Where an answer is not a possible one.
pub async fn ask<S: Noting>(store: S, asking: &Asking) -> Result<(), BoxError> {
    let payments = RunOnce::builder(store, "answers").effects(Effects::InTransaction).allow_final_errors();
    let payments = payments.busy_timeout(Duration::from_secs(2)).lanes(1).build()?;
    let mut keys: Vec<u64> = (0..asking.times).flat_map(|_| 0..asking.keys).collect();
    fastrand::shuffle(&mut keys);
    for key in keys {
        let text = key.to_string();
        let answer = loop {
            match payments.run(Request::new(&text, &text), move |tx| Box::pin(draw(tx, key))).await {
                Ok(ran) => break ran,
                // Another process has the key, died with it, or writes to the file.
                Err(RunOnceError::Busy | RunOnceError::Unavailable(_) | RunOnceError::Failed(_)) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        if answer.is_refused() != is_refused(key) {
            return Err(format!("the answer to {key} is of the other kind").into());
        }
        note(&asking.to, key, answer.result())?;
    }
    Ok(())
}

/// An operation whose answer no other run has.
async fn draw<S: Noting>(tx: &mut Tx<'_, S>, key: u64) -> Result<ResultBody, WorkError> {
    let value = fastrand::i64(0..1 << 60);
    S::note(tx, key, value).await?;
    let answer = ResultBody::new(value.to_string());
    if is_refused(key) { Err(WorkError::final_result(answer)) } else { Ok(answer) }
}

fn note(to: &Path, key: u64, answer: &ResultBody) -> Result<(), BoxError> {
    let line = format!("{key} {}\n", String::from_utf8_lossy(&answer.body));
    OpenOptions::new().append(true).create(true).open(to)?.write_all(line.as_bytes())?;
    Ok(())
}

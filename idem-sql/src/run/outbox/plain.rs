//! A plain outbox: for code that has a transaction and no message.

use std::sync::Arc;

use idem_core::{
    ConsumerName, Event, IdempotencyKey, StoreError,
    outbox::{AppendError, Appended, Destination, DestinationId, NewEvent, Outbox as _, PublishError},
    store::{Interned, ScopeId},
};

use crate::run::{
    candidates::{INTERN_ROUNDS, candidates, not_interned},
    driver::BookkeepingDriver,
    outbox::SqlOutbox,
};

/// The writer of events without a message, and their destinations: the parts of every plain outbox of a store.
#[derive(Debug, Clone)]
pub struct PlainWriter {
    scope: ScopeId,
    destinations: Arc<[(Destination, DestinationId)]>,
}

/// Why an event was not written into a plain outbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishPlainError {
    /// It was refused before anything was sent to the database: the transaction can go on.
    #[error(transparent)]
    Refused(#[from] PublishError),
    /// It could not be written: roll the transaction back.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// A record of a day at least, which such a writer never has: a longer one would keep the starts of workers.
const RETENTION: i64 = 86_400_000_000;

/// A writer's name is bound to this, so that no consumer is started under it.
const BOUND_TO: &str = "a plain outbox";

impl PlainWriter {
    /// Interns the writer and its destinations.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where the name is invalid, or a consumer has it, or a destination has another form of ids.
    pub async fn intern<D: BookkeepingDriver + 'static>(
        driver: &Arc<D>,
        name: &str,
        destinations: impl IntoIterator<Item = impl Into<Destination>>,
    ) -> Result<Self, StoreError> {
        let destinations: Vec<Destination> = destinations.into_iter().map(Into::into).collect();
        let refused = |problem: String| StoreError::refused(problem, "Give the writer a name of its own");
        let name = ConsumerName::new(name).map_err(|error| refused(error.to_string()))?;
        let (doing, sql) = ("registering a plain outbox", driver.bookkeeping_statements());
        let mut scope = None;
        for round in 0..INTERN_ROUNDS {
            let known = driver.rows(doing, &sql.select_consumer, &["".into(), name.as_str().into()]).await?;
            if let Some(row) = known.first() {
                if row.get::<&str>("handler")? != BOUND_TO {
                    return Err(refused(format!("{name} is the name of a consumer")));
                }
                scope = row.get::<Option<i32>>("id")?.map(ScopeId);
                break;
            }
            let (empty, numbers) = ("".into(), candidates(Interned::Scope, &[name.as_str(), ""], round));
            let (writer, numbers) = (name.as_str().into(), numbers.as_slice().into());
            let parameters = [empty, writer, empty, BOUND_TO.into(), empty, empty, RETENTION.into(), numbers];
            driver.rows(doing, &sql.insert_consumer, &parameters).await?;
        }
        let scope = scope.ok_or_else(|| StoreError::unavailable(doing, not_interned(&format!("the writer {name}"))))?;
        let declared = SqlOutbox::new(Arc::clone(driver)).declare(&destinations).await?;
        Ok(Self { scope, destinations: destinations.into_iter().zip(declared.into_iter().map(|row| row.id)).collect() })
    }

    /// The row of an event under a key of the writer's own.
    ///
    /// # Errors
    /// [`PublishError`] where the destination was not declared, or would not carry the event.
    pub fn event(&self, key: &str, event: Event) -> Result<(IdempotencyKey, Appended), PublishError> {
        let key = IdempotencyKey::new(key).map_err(|_| PublishError::Invalid {
            what: "key",
            value: key.chars().take(100).collect(),
            rule: "1 to 255 bytes without control characters",
        })?;
        let known = self.destinations.iter().find(|(declared, _)| declared.name == event.destination());
        let unknown = || PublishError::UnknownDestination { destination: event.destination().to_owned() };
        let (declared, id) = known.ok_or_else(unknown)?;
        let event = NewEvent::plain(self.scope, *id, key.clone(), event)?;
        let (bytes, max) = (event.payload.len(), declared.payload_bytes_max);
        if bytes > max {
            return Err(PublishError::TooLarge { destination: declared.name.clone(), bytes, max });
        }
        let mut appended = Appended::default();
        appended.events.push(event);
        Ok((key, appended))
    }
}

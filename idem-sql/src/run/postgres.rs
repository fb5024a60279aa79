//! Every [`PostgresDriver`] is a [`BookkeepingDriver`].

use std::{error::Error, sync::Arc};

use idem_core::{StoreError, internal::chain};

use crate::{
    check::errors::TAKEN,
    run::{
        bookkeeping::{sequences, start},
        driver::{BookkeepingDriver, Parameter, PostgresDriver, look},
        row::Row,
    },
    text::bookkeeping::BookkeepingStatements,
};

/// How often a statement runs again that conflicted with another transaction.
const CONTENDED_MAX: usize = 3;

impl<D: PostgresDriver> BookkeepingDriver for D {
    fn bookkeeping_statements(&self) -> &BookkeepingStatements {
        &self.statements().bookkeeping
    }

    /// Runs it again too where it has to say that it writes.
    async fn rows(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let (mut tried, mut has_looked) = (1, false);
        loop {
            match self.run_once(doing, text, parameters).await {
                Err(StoreError::Contended { .. }) if tried < CONTENDED_MAX => tried += 1,
                Err(error) if is_taken::<D>(&error) => return Err(sequences::explain(self, error).await),
                Err(error) if !has_looked && is_read_only::<D>(&error) => {
                    has_looked = true;
                    look(self).await?;
                    if !self.role_default().is_read_only() {
                        return Err(error);
                    }
                }
                // The server's clock may be a little before this client's, which says the same.
                Err(StoreError::Failed { doing, source, .. }) if is_late::<D>(&*source) => {
                    return Err(StoreError::Unavailable { doing, source });
                }
                answer => return answer,
            }
        }
    }

    async fn verify(&self) -> Result<(), StoreError> {
        start::verify(self).await
    }

    async fn warnings(&self) -> Result<Vec<String>, StoreError> {
        start::warnings(self).await
    }
}

/// Whether the statement met a row of the same key, each time that it ran.
fn is_taken<D: PostgresDriver>(error: &StoreError) -> bool {
    matches!(error, StoreError::Contended { .. }) && chain(error).find_map(D::sqlstate).as_deref() == Some(TAKEN)
}

/// Whether the server has ended the statement, because of its limit or by an operator's hand.
fn is_late<D: PostgresDriver>(error: &(dyn Error + 'static)) -> bool {
    chain(error).find_map(D::sqlstate).as_deref() == Some("57014")
}

fn is_read_only<D: PostgresDriver>(error: &StoreError) -> bool {
    chain(error).find_map(D::sqlstate).as_deref() == Some("25006")
}

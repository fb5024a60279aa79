//! [`Decide`]: decisions without their messages.

use std::future::Future;

use idem_core::{Decision, DedupConsumer, Message, Store, StoreError, consumer::Decided};

/// The call of a test that has its messages already, and wants the decisions alone.
pub trait Decide<S: Store> {
    /// [`DedupConsumer::process`], without the messages that it gives back.
    ///
    /// # Errors
    /// As for `process`.
    fn decisions(&self, messages: Vec<Message>) -> impl Future<Output = Result<Vec<Decision>, StoreError>> + Send;

    /// [`DedupConsumer::process_on`], without the messages that it gives back.
    ///
    /// # Errors
    /// As for `process_on`.
    fn decisions_on(
        &self,
        session: S::Session,
        messages: Vec<Message>,
    ) -> impl Future<Output = Result<(Option<S::Session>, Vec<Decision>), StoreError>> + Send;
}

impl<S: Store> Decide<S> for DedupConsumer<S> {
    async fn decisions(&self, messages: Vec<Message>) -> Result<Vec<Decision>, StoreError> {
        Ok(decisions(self.process(messages).await?))
    }

    async fn decisions_on(
        &self,
        session: S::Session,
        messages: Vec<Message>,
    ) -> Result<(Option<S::Session>, Vec<Decision>), StoreError> {
        let (session, decided) = self.process_on(session, messages).await?;
        Ok((session, decisions(decided)))
    }
}

fn decisions(decided: Vec<Decided>) -> Vec<Decision> {
    decided.into_iter().map(|decided| decided.decision).collect()
}

//! The second transaction of a planted bug.

use std::borrow::Borrow;

use crate::{
    consumer::{
        Inner,
        answers::Answers,
        append::append_all,
        dedupe::Fold,
        handlers::AllHandedIn,
        identify::Item,
        unit::{End, answered, options},
    },
    error::StoreError,
    outcome::{Decision, Durable},
    store::{Store, unit::UnitOfWork},
};

/// Writes results in a transaction of its own, next to a record that is committed.
pub(super) async fn in_second_unit<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    session: &mut S::Session,
    items: &[J],
    handed_in: AllHandedIn,
    (answers, fold): (Option<&mut Answers<'_, S>>, &Fold),
) -> (bool, End) {
    let written = async {
        // The server's answer, and others that come meanwhile.
        tokio::task::yield_now().await;
        let registered = inner.register(None).await?;
        let begin = inner.store.begin(session, options(&inner.settings, registered.run, -1));
        let mut unit = answered(inner.settings.answer_timeout, "beginning", begin).await?;
        let again = || StoreError::contended("storing an outcome", "another unit has the key");
        unit.claim(&[]).await.map_err(|_| again())?;
        append_all(inner, &mut unit, items, handed_in).await.map_err(|_| again())?;
        unit.commit().await.map_err(|_| again())
    };
    if let Err(error) = written.await {
        return (false, End::Again(error));
    }
    let decisions: Vec<_> = items.iter().map(|_| Decision::Processed(Durable::committed())).collect();
    if let Some(answers) = answers {
        answers.end(&decisions, fold);
    }
    (true, End::Decided(decisions))
}

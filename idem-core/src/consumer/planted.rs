//! The second transactions of two planted bugs.

use std::borrow::Borrow;

use super::{
    End, Inner, Item,
    answers::Answers,
    append::append_all,
    dedupe::Fold,
    handlers::AllHandedIn,
    unit::{answered, options},
};
use crate::{
    error::StoreError,
    outcome::{Decision, Durable},
    store::{Claim, Claimed, Store, UnitOfWork},
};

/// Writes events and results in a transaction of its own: beside a record that is committed, or with one that is claimed anew.
pub(super) async fn in_second_unit<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    session: &mut S::Session,
    items: &[J],
    (handed_in, claims): (AllHandedIn, &[Claim]),
    (answers, fold): (Option<&mut Answers<'_, S>>, &Fold),
) -> (bool, End) {
    let written = async {
        // The server's answer, and others that come meanwhile.
        tokio::task::yield_now().await;
        let registered = inner.register(None).await?;
        let begin = inner.store.begin(session, options(&inner.settings, registered.run, -1));
        let mut unit = answered(inner.settings.answer_timeout, "beginning", begin).await?;
        let again = || StoreError::contended("storing an outcome", "another unit has the key");
        let claimed = unit.claim(claims).await.map_err(|_| again())?;
        if claimed.iter().any(|claimed| *claimed != Claimed::Inserted) {
            unit.rollback().await?;
            return Err(again());
        }
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

//! The second transaction of a planted bug.

use std::borrow::Borrow;

use crate::{
    error::StoreError,
    outcome::{Decision, Durable},
    store::{Store, unit::UnitOfWork},
    unit::{
        answers::Answers,
        append::append_all,
        engine::Engine,
        fold::Fold,
        handlers::AllHandedIn,
        identify::Item,
        session::{answered, options},
    },
};

/// Writes results in a transaction of its own, next to a record that is committed.
pub(super) async fn in_second_unit<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    session: S::Session,
    items: &[J],
    handed_in: AllHandedIn,
    (answers, fold): (Option<&mut Answers<'_, S>>, &Fold),
) -> Result<(Option<S::Session>, Vec<Decision>), StoreError> {
    let written: Result<Option<S::Session>, StoreError> = async {
        // The server's answer, and others that come meanwhile.
        tokio::task::yield_now().await;
        let registered = engine.register(None).await?;
        let begin = engine.store.begin(session, options(&engine.settings, registered.run, -1));
        let mut unit = answered(engine.settings.answer_timeout, "beginning", begin).await?;
        let again = || StoreError::contended("storing an outcome", "another unit has the key");
        unit.claim(&[]).await.map_err(|_| again())?;
        append_all(engine, &mut unit, items, handed_in).await.map_err(|_| again())?;
        let (session, committed) = unit.commit().await;
        committed.map_err(|_| again())?;
        Ok(session)
    }
    .await;
    let session = written?;
    let decisions: Vec<_> = items.iter().map(|_| Decision::Processed(Durable::committed())).collect();
    if let Some(answers) = answers {
        answers.end(&decisions, fold);
    }
    Ok((session, decisions))
}

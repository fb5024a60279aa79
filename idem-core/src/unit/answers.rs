//! The requests of a unit's caller beside decisions: results, and work of the call's own.

use std::borrow::Borrow;

use crate::{
    error::StoreError,
    handler::DynHandler,
    message::Message,
    outcome::Decision,
    results::result::{NotKept, ResultBody, StoredResult},
    store::{
        Store,
        claim::{Claim, Recorded},
        unit::UnitOfWork,
    },
    unit::{
        claim::{Results, one_answer_each},
        decide::Outcomes,
        engine::Engine,
        fold::Fold,
        handlers::AllHandedIn,
        identify::Item,
        kept::known,
        session::answered,
    },
};

/// The result of one message, where its operation is done.
pub(crate) type Known = Result<StoredResult, NotKept>;

/// The state of a key's operation: see [`RunOnce::key_state`](crate::RunOnce::key_state).
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyState {
    /// It has not been done, and is not under way. A call that is on its way may still come.
    Unknown,
    /// The key is held: its operation is under way, or the answer to its commit was lost and its transaction is not over yet.
    InProgress,
    /// It is done.
    Done {
        /// Its record.
        recorded: Box<Recorded>,
        /// Its answer, or why that cannot be given.
        result: Result<StoredResult, NotKept>,
    },
}

/// A message with its decision and, where it was handled now or before, its handler's result.
#[derive(Debug)]
#[non_exhaustive]
pub struct Decided {
    /// The message.
    pub message: Message,
    /// The decision.
    pub decision: Decision,
    /// The result of a message that is processed or a duplicate, or why there is none to give. `None` for any other, so that a
    /// conflict discloses no stored data, and where the call did not ask for results.
    pub result: Option<Result<StoredResult, NotKept>>,
}

/// The requests of a unit's caller. Without them a unit reads no results.
pub(crate) struct Answers<'w, S: Store> {
    /// The work to run in a consumer without a handler of its own.
    pub(super) work: Option<&'w dyn DynHandler<S>>,
    /// Whether the work may be refused for good.
    pub(super) allow_final_errors: bool,
    /// The outcome of a work that was refused for good. It is kept in a unit of its own, in which nothing runs.
    pub(crate) refused: Option<ResultBody>,
    /// By the place of the message in the unit.
    pub(crate) of: Vec<Option<Known>>,
    /// The writes of a planted bug in a second transaction.
    #[cfg(idem_bugs)]
    pub(super) late: Option<AllHandedIn>,
    /// A planted bug's way to the caller, around the commit.
    #[cfg(idem_bugs)]
    pub(crate) early: Option<tokio::sync::mpsc::UnboundedSender<StoredResult>>,
}

impl<'w, S: Store> Answers<'w, S> {
    pub(crate) fn new(work: Option<&'w dyn DynHandler<S>>, allow_final_errors: bool) -> Self {
        Self {
            work,
            allow_final_errors,
            refused: None,
            of: Vec::new(),
            #[cfg(idem_bugs)]
            late: None,
            #[cfg(idem_bugs)]
            early: None,
        }
    }

    /// The same for a unit of its own.
    pub(crate) fn apart(&self) -> Self {
        Self {
            #[cfg(idem_bugs)]
            early: self.early.clone(),
            ..Self::new(self.work, self.allow_final_errors)
        }
    }

    /// Takes the results of duplicates from those that were read with the records, by the places of the messages, and reads the
    /// others in the unit that has found them.
    pub(super) async fn read<J: Borrow<Item>>(
        &mut self,
        engine: &Engine<S>,
        unit: &mut S::Unit,
        items: &[J],
        ledger: &Outcomes,
        mut found: Results,
    ) -> Result<(), StoreError> {
        self.of = items.iter().map(|_| None).collect();
        let seal = engine.seal.as_deref();
        let (mut indexes, mut claims): (Vec<(usize, &Recorded)>, Vec<Claim>) = (Vec::new(), Vec::new());
        for (index, recorded) in ledger.duplicates() {
            let Some(claim) = &Borrow::<Item>::borrow(&items[index]).claim else { continue };
            if let Some(kept) = found.remove(&index) {
                self.of[index] = Some(known(seal, claim, recorded, kept));
            } else {
                indexes.push((index, recorded));
                claims.push(claim.clone());
            }
        }
        if claims.is_empty() {
            return Ok(());
        }
        let found = answered(engine.settings.answer_timeout, "reading results", unit.read_results(&claims)).await?;
        one_answer_each(found.len(), claims.len())?;
        for (((index, recorded), claim), kept) in indexes.into_iter().zip(&claims).zip(found) {
            self.of[index] = Some(known(seal, claim, recorded, kept));
        }
        Ok(())
    }

    /// Notes the results that are about to be committed.
    pub(super) fn note(&mut self, handed_in: &AllHandedIn) {
        for (index, handed) in handed_in {
            let result = handed.result.clone().ok_or(NotKept::Absent);
            self.of[*index] = Some(result.map(|result| StoredResult::new(handed.is_error, result)));
            #[cfg(idem_bugs)]
            if let (Some(early), Some(Ok(result))) = (&self.early, &self.of[*index]) {
                // Its caller may have given up.
                let _ = early.send(result.clone());
            }
        }
    }

    /// Leaves an answer where the operation is done, and none elsewhere. A copy has that of its leader.
    pub(super) fn end(&mut self, decisions: &[Decision], fold: &Fold) {
        let all = decisions.iter().enumerate().map(|(index, decision)| {
            let own = || self.of.get(index).cloned().flatten();
            let leaders = || self.of.get(fold.leader.get(index).copied()??).cloned().flatten();
            match decision {
                Decision::Processed(_) | Decision::Duplicate(..) => {
                    Some(own().or_else(leaders).unwrap_or(Err(NotKept::Absent)))
                }
                Decision::Conflict(..) | Decision::Busy | Decision::Failed(_) => None,
            }
        });
        self.of = all.collect();
    }
}

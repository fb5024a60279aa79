//! Claims the keys of a unit, and reads the records of those that it did not get.

use std::{borrow::Cow, collections::HashMap};

use crate::{
    error::{ClaimError, StoreError},
    hash::PayloadHash,
    names::HashRuleId,
    outcome::{self, Verdict},
    results::rows::KeptResult,
    store::{
        Store,
        claim::{Claim, Found},
        unit::UnitOfWork,
    },
};

/// Rounds of claim and read before a key counts as having no winner (C3).
const CLAIM_ROUNDS: usize = 3;

/// Results that were read with the records of their keys, by the place of the claim or of its message.
pub(super) type Results = HashMap<usize, Option<KeptResult>>;

/// Claims every key and reads the records of those that were not inserted, for a bounded number of rounds. One verdict
/// a claim, in order; none is `Unanswered`. Where results are wanted, they are read with the records.
pub(super) async fn claim_all<S: Store>(
    unit: &mut S::Unit,
    claims: &[Claim],
    rehash: impl Fn(usize, HashRuleId) -> Option<Vec<PayloadHash>>,
    mut results: Option<&mut Results>,
) -> Result<Vec<Verdict>, ClaimError> {
    let mut verdicts: Vec<Option<Verdict>> = claims.iter().map(|_| None).collect();
    let mut open: Vec<usize> = (0..claims.len()).collect();
    for _ in 0..CLAIM_ROUNDS {
        // Also where there is nothing to claim: the claim puts the unit's limits back, and a store may send its BEGIN
        // with it.
        let asked = claims_at(claims, &open);
        let answers = unit.claim(&asked).await?;
        one_answer_each(answers.len(), asked.len())?;
        let mut unanswered = Vec::new();
        for (index, answer) in open.into_iter().zip(answers) {
            match outcome::verdict(&claims[index], answer, |rule| rehash(index, rule)) {
                Verdict::Unanswered => unanswered.push(index),
                verdict @ (Verdict::Fresh(_)
                | Verdict::Duplicate(..)
                | Verdict::Conflict(..)
                | Verdict::Collision(_)) => verdicts[index] = Some(verdict),
            }
        }
        open = unanswered;
        if open.is_empty() {
            break;
        }
        let asked = claims_at(claims, &open);
        let found = match results {
            Some(_) => unit.look_up(&asked).await?,
            None => unit.read(&asked).await?.into_iter().map(|read| Some(Found::new(read?, None))).collect(),
        };
        one_answer_each(found.len(), asked.len())?;
        let mut vanished = Vec::new();
        for (index, found) in open.into_iter().zip(found) {
            match found {
                Some(Found { recorded, result }) => {
                    if let Some(results) = results.as_deref_mut() {
                        results.insert(index, result);
                    }
                    verdicts[index] = Some(outcome::compare(&claims[index], recorded, |rule| rehash(index, rule)));
                }
                None => vanished.push(index),
            }
        }
        open = vanished;
        if open.is_empty() {
            break;
        }
    }
    match open.first() {
        Some(index) => Err(ClaimError::NoWinner { key: claims[*index].key.clone() }),
        None => Ok(verdicts.into_iter().flatten().collect()),
    }
}

/// The claims at these indexes, copied only where it is not all of them.
fn claims_at<'a>(claims: &'a [Claim], indexes: &[usize]) -> Cow<'a, [Claim]> {
    if indexes.len() == claims.len() {
        return Cow::Borrowed(claims);
    }
    indexes.iter().map(|index| claims[*index].clone()).collect()
}

pub(super) fn one_answer_each(answers: usize, asked: usize) -> Result<(), StoreError> {
    if answers == asked {
        return Ok(());
    }
    Err(StoreError::Refused {
        problem: format!("the store gave {answers} answers for {asked} claims"),
        cure: "This breaks the contract of UnitOfWork: run idem_conformance::store_conformance! on the store"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers are told apart by their places alone, so one too few would give a key the answer of another.
    #[test]
    fn a_store_that_gives_too_few_or_too_many_answers_is_refused() {
        assert!(one_answer_each(2, 2).is_ok());
        for answers in [0, 1, 3] {
            assert!(matches!(one_answer_each(answers, 2), Err(StoreError::Refused { .. })), "{answers}");
        }
    }
}

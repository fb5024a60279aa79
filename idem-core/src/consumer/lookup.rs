//! Looks keys up without claiming them, and finds out whether keys can be claimed at all.

use std::{borrow::Borrow, future::Future};

use super::{
    Inner, Item, KeyState,
    claim::{claim_all, one_answer_each},
    outcomes::decision,
    unit::{answered, options, session_or_open},
};
use crate::{
    error::{ClaimError, ErrorClass, StoreError},
    key::IdempotencyKey,
    message::Message,
    outbox::{NotKept, known},
    outcome::{self, Decision, Verdict},
    store::{Claim, Claimed, Store, UnitOfWork},
};

/// Looks up which of these messages have a record already, in one read-only unit. `None` for those that have none.
pub(crate) async fn look_up<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    session: Option<S::Session>,
    lane_number: i32,
    items: &[J],
) -> (Option<S::Session>, Result<Vec<Option<Decision>>, StoreError>) {
    let mut session = match session_or_open(inner, session).await {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    let found = look_up_on(inner, &mut session, lane_number, items).await;
    (found.is_ok().then_some(session), found)
}

/// Whether the database can do what a unit needs: claims a key that no message has, and rolls back. Reading alone would
/// call a database back that takes no writes, or has lost the table.
pub(crate) async fn probe<S: Store>(
    inner: &Inner<S>,
    session: Option<S::Session>,
    lane_number: i32,
) -> (Option<S::Session>, Result<(), StoreError>) {
    let mut session = match session_or_open(inner, session).await {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    let probed = probe_on(inner, &mut session, lane_number).await;
    (probed.is_ok().then_some(session), probed)
}

async fn probe_on<S: Store>(inner: &Inner<S>, session: &mut S::Session, lane_number: i32) -> Result<(), StoreError> {
    let registered = inner.register(None).await?;
    // The probe's own, so that no two probes wait for each other.
    let key = IdempotencyKey::new(&format!("idem:probe:{}:{lane_number}", registered.run));
    let hash = inner.hashes.current.hash(&Message::new(""));
    let (Ok(key), Ok(hash), Some(hash_rule)) = (key, hash, registered.hash_rules.first().copied()) else {
        return Ok(());
    };
    let claim = Claim { scope: registered.scope, key, hash, hash_rule, retention: inner.settings.retention };
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(session, options(&inner.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let claimed = async {
        unit.claim(&[claim]).await.or_else(|error| match error {
            ClaimError::Store(error) => Err(error),
            // It was asked, and it answered.
            ClaimError::Held | ClaimError::NoWinner { .. } => Ok(Vec::new()),
        })
    };
    answered(limit + inner.settings.busy_timeout, "claiming", claimed).await?;
    answered(limit, "rolling back", unit.rollback()).await
}

/// The answer to the claim of one key.
pub(crate) enum Alone<T> {
    /// There is no record of it, no unit runs it, and this was done meanwhile.
    Done(T),
    /// A record of it decides.
    Decided(Decision),
    /// Another unit holds it.
    Held,
}

/// Does something about a message while nobody else can handle it: its key is claimed, and the claim rolled back once it is
/// done. Nothing is done where the key is recorded, or held by somebody.
///
/// A store that lets one unit write at a time could not write anything meanwhile, and needs no claim: whoever ran the
/// message held the same lock. There it is done directly after.
pub(crate) async fn alone_with<S: Store, T>(
    inner: &Inner<S>,
    session: Option<S::Session>,
    lane_number: i32,
    item: &Item,
    then: impl Future<Output = T> + Send,
) -> (Option<S::Session>, Result<Alone<T>, StoreError>) {
    let mut session = match session_or_open(inner, session).await {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    let done = alone_on(inner, &mut session, lane_number, item, then).await;
    (done.is_ok().then_some(session), done)
}

async fn alone_on<S: Store, T>(
    inner: &Inner<S>,
    session: &mut S::Session,
    lane_number: i32,
    item: &Item,
    then: impl Future<Output = T> + Send,
) -> Result<Alone<T>, StoreError> {
    let registered = inner.register(None).await?;
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(session, options(&inner.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let claims: Vec<Claim> = item.claim.iter().cloned().collect();
    let claim = async {
        match claim_all::<S>(&mut unit, &claims, |_, rule| inner.rehash(&item.message, rule)).await {
            Ok(verdicts) => Ok(Some(verdicts)),
            Err(ClaimError::Held) => Ok(None),
            Err(ClaimError::Store(error)) => Err(error),
            Err(error @ ClaimError::NoWinner { .. }) => Err(StoreError::Failed {
                doing: "claiming a key",
                class: ErrorClass::Transient,
                source: Box::new(error),
            }),
        }
    };
    let claimed = answered(limit + inner.settings.busy_timeout, "claiming", claim).await?;
    let decided =
        claimed.as_ref().is_none_or(|verdicts| !verdicts.iter().all(|verdict| matches!(verdict, Verdict::Fresh(_))));
    if decided || !inner.store.capabilities().waits_per_key {
        answered(limit, "rolling back", unit.rollback()).await?;
        return Ok(match claimed {
            None => Alone::Held,
            Some(verdicts) => match verdicts.into_iter().find_map(decision) {
                Some(decision) => Alone::Decided(decision),
                None => Alone::Done(then.await),
            },
        });
    }
    let done = then.await;
    answered(limit, "rolling back", unit.rollback()).await?;
    Ok(Alone::Done(done))
}

/// What is known of one key. Nothing is left behind.
pub(super) async fn ask<S: Store>(
    inner: &Inner<S>,
    session: &mut Option<S::Session>,
    item: &Item,
) -> Result<KeyState, StoreError> {
    let mut own = session_or_open(inner, session.take()).await?;
    let asked = ask_on(inner, &mut own, item).await;
    *session = asked.is_ok().then_some(own);
    asked
}

async fn ask_on<S: Store>(inner: &Inner<S>, session: &mut S::Session, item: &Item) -> Result<KeyState, StoreError> {
    let Some(claim) = item.claim.clone() else { return Ok(KeyState::Unknown) };
    let claims = [claim];
    let registered = inner.register(None).await?;
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(session, options(&inner.settings, registered.run, ASKS));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let found = answered(limit, "looking keys up", unit.read(&claims)).await?;
    one_answer_each(found.len(), claims.len())?;
    let state = match found.into_iter().flatten().next() {
        Some(recorded) => {
            let kept = answered(limit, "reading results", unit.read_results(&claims)).await?;
            one_answer_each(kept.len(), claims.len())?;
            let [claim] = &claims;
            let result = kept
                .into_iter()
                .next()
                .map_or(Err(NotKept::Absent), |kept| known(inner.seal.as_deref(), claim.scope, &claim.key, kept));
            KeyState::Done { recorded: Box::new(recorded), result }
        }
        // Who holds a key shows nothing of it before it commits, but lets nobody else have it.
        None => match answered(limit + inner.settings.busy_timeout, "claiming", async {
            match unit.claim(&claims).await {
                Ok(claimed) => Ok(Some(claimed)),
                Err(ClaimError::Held | ClaimError::NoWinner { .. }) => Ok(None),
                Err(ClaimError::Store(error)) => Err(error),
            }
        })
        .await?
        .as_deref()
        {
            Some([Claimed::Inserted]) => KeyState::Unknown,
            // It was held, or was recorded since: whoever asks again is told.
            Some(_) | None => KeyState::InProgress,
        },
    };
    answered(limit, "rolling back", unit.rollback()).await?;
    Ok(state)
}

/// The lane's number in the transactions of those who ask.
const ASKS: i32 = -1;

async fn look_up_on<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    session: &mut S::Session,
    lane_number: i32,
    items: &[J],
) -> Result<Vec<Option<Decision>>, StoreError> {
    let registered = inner.register(None).await?;
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(session, options(&inner.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let positions: Vec<usize> = (0..items.len()).filter(|index| items[*index].borrow().claim.is_some()).collect();
    let claims: Vec<Claim> = positions.iter().filter_map(|index| items[*index].borrow().claim.clone()).collect();
    let found = answered(limit, "looking keys up", unit.read(&claims)).await?;
    one_answer_each(found.len(), claims.len())?;
    answered(limit, "rolling back", unit.rollback()).await?;
    let mut decisions: Vec<Option<Decision>> = items.iter().map(|_| None).collect();
    for ((index, claim), recorded) in positions.into_iter().zip(&claims).zip(found) {
        let Some(recorded) = recorded else { continue };
        let verdict = outcome::compare(claim, recorded, |rule| inner.rehash(&items[index].borrow().message, rule));
        decisions[index] = decision(verdict);
    }
    Ok(decisions)
}

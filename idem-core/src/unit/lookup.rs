//! Looks keys up without claiming them, and finds out whether keys can be claimed at all.

use std::{borrow::Borrow, future::Future};

use crate::{
    error::{ClaimError, ErrorClass, StoreError},
    message::Message,
    names::IdempotencyKey,
    outcome::{self, Decision, Verdict},
    results::result::NotKept,
    store::{
        Store,
        claim::{Claim, Found},
        unit::UnitOfWork,
    },
    unit::{
        answers::{self, KeyState},
        claim::{claim_all, one_answer_each},
        decide::decision,
        engine::Engine,
        identify::Item,
        kept::known,
        session::{answered, is_lost, options, session_or_open},
    },
};

/// Looks up which of these messages have a record already, in one read-only unit. `None` for those that have none.
pub(crate) async fn look_up<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    session: Option<S::Session>,
    lane_number: i32,
    items: &[J],
) -> (Option<S::Session>, Result<Vec<Option<Decision>>, StoreError>) {
    let session = match session_or_open(engine, session).await {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    beside(look_up_on(engine, session, lane_number, items).await)
}

/// Whether the database can serve a unit: claims a key that no message has, and rolls back. Reading alone would accept
/// a database that takes no writes, or has lost the table.
pub(crate) async fn probe<S: Store>(
    engine: &Engine<S>,
    session: Option<S::Session>,
    lane_number: i32,
) -> (Option<S::Session>, Result<(), StoreError>) {
    let session = match session_or_open(engine, session).await {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    beside(probe_on(engine, session, lane_number).await.map(|session| (session, ())))
}

/// The session beside the answer; none after an error, which has closed it.
fn beside<S, T>(answered: Result<(Option<S>, T), StoreError>) -> (Option<S>, Result<T, StoreError>) {
    match answered {
        Ok((session, answer)) => (session, Ok(answer)),
        Err(error) => (None, Err(error)),
    }
}

async fn probe_on<S: Store>(
    engine: &Engine<S>,
    session: S::Session,
    lane_number: i32,
) -> Result<Option<S::Session>, StoreError> {
    let registered = engine.register(None).await?;
    // The probe's own, so that no two probes wait for each other.
    let key = IdempotencyKey::new(&format!("idem:probe:{}:{lane_number}", registered.run));
    let hash = engine.hashes.current.hash(&Message::new(""));
    let (Ok(key), Ok(hash), Some(hash_rule)) = (key, hash, registered.hash_rules.first().copied()) else {
        return Ok(Some(session));
    };
    let claim = Claim { scope: registered.scope, key, hash, hash_rule, retention: engine.settings.retention };
    let limit = engine.settings.answer_timeout;
    let begin = engine.store.begin(session, options(&engine.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let claimed = async {
        unit.claim(&[claim]).await.or_else(|error| match error {
            ClaimError::Store(error) => Err(error),
            // It was asked, and it answered.
            ClaimError::Held | ClaimError::NoWinner { .. } => Ok(Vec::new()),
        })
    };
    answered(limit + engine.settings.busy_timeout, "claiming", claimed).await?;
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

/// Runs `then` while no other unit can handle the message: its key is claimed, and the claim is rolled back afterwards.
/// Nothing runs where the key is recorded, or held by another unit.
///
/// A store that lets one unit write at a time could not write anything meanwhile, and needs no claim: a unit that ran
/// the message held the same lock. There `then` runs directly after the look-up.
pub(crate) async fn alone_with<S: Store, T>(
    engine: &Engine<S>,
    session: Option<S::Session>,
    lane_number: i32,
    item: &Item,
    then: impl Future<Output = T> + Send,
) -> (Option<S::Session>, Result<Alone<T>, StoreError>) {
    let session = match session_or_open(engine, session).await {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    beside(alone_on(engine, session, lane_number, item, then).await)
}

async fn alone_on<S: Store, T>(
    engine: &Engine<S>,
    session: S::Session,
    lane_number: i32,
    item: &Item,
    then: impl Future<Output = T> + Send,
) -> Result<(Option<S::Session>, Alone<T>), StoreError> {
    let registered = engine.register(None).await?;
    let limit = engine.settings.answer_timeout;
    let begin = engine.store.begin(session, options(&engine.settings, registered.run, lane_number).alone(true));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let claims: Vec<Claim> = item.claim.iter().cloned().collect();
    let claim = async {
        match claim_all::<S>(&mut unit, &claims, |_, rule| engine.rehash(&item.message, rule), None).await {
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
    let claimed = answered(limit + engine.settings.busy_timeout, "claiming", claim).await?;
    let decided =
        claimed.as_ref().is_none_or(|verdicts| !verdicts.iter().all(|verdict| matches!(verdict, Verdict::Fresh(_))));
    if decided || !engine.store.capabilities().waits_per_key {
        let session = answered(limit, "rolling back", unit.rollback()).await?;
        let alone = match claimed {
            None => Alone::Held,
            Some(verdicts) => match verdicts.into_iter().find_map(decision) {
                Some(decision) => Alone::Decided(decision),
                None => Alone::Done(then.await),
            },
        };
        return Ok((session, alone));
    }
    let done = then.await;
    let session = answered(limit, "rolling back", unit.rollback()).await?;
    Ok((session, Alone::Done(done)))
}

/// The decision about a message whose key is recorded, with its result; `None` where it is not. The record is compared as after a
/// claim.
pub(crate) async fn recorded<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    item: &Item,
) -> Result<Option<(Decision, answers::Known)>, StoreError> {
    let Some(claim) = &item.claim else { return Ok(None) };
    let Some(Found { recorded, result }) = find(engine, session, claim).await? else { return Ok(None) };
    let verdict = outcome::compare(claim, recorded, |rule| engine.rehash(&item.message, rule));
    Ok(decision(verdict).map(|decision| {
        // A caller whose payload differs gets no result.
        let result = match &decision {
            Decision::Duplicate(recorded, _) => known(engine.seal.as_deref(), claim, recorded, result),
            Decision::Processed(_) | Decision::Conflict(..) | Decision::Busy | Decision::Failed(_) => {
                Err(NotKept::Absent)
            }
        };
        (decision, result)
    }))
}

/// Reads the record of a key, with its result, in one statement where the store can.
async fn find<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    claim: &Claim,
) -> Result<Option<Found>, StoreError> {
    let was_idle = session.is_some();
    match find_on(engine, session, claim).await {
        // A session that was idle may have lost its server since, or hold a plan that is stale: its first statement shows it.
        Err(error) if was_idle && (is_lost(&error) || error.class() == ErrorClass::RunUnitAgain) => {
            find_on(engine, session, claim).await
        }
        found => found,
    }
}

async fn find_on<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    claim: &Claim,
) -> Result<Option<Found>, StoreError> {
    let registered = engine.register(None).await?;
    let own = session_or_open(engine, session.take()).await?;
    let options = options(&engine.settings, registered.run, ASKS);
    let looking = engine.store.look_up(own, options, std::slice::from_ref(claim));
    let (own, found) = answered(engine.settings.answer_timeout, "looking a key up", looking).await?;
    one_answer_each(found.len(), 1)?;
    *session = own;
    Ok(found.into_iter().next().flatten())
}

/// The state of one key. Nothing is left behind.
pub(crate) async fn ask<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    item: &Item,
) -> Result<KeyState, StoreError> {
    let Some(claim) = &item.claim else { return Ok(KeyState::Unknown) };
    if let Some(Found { recorded, result }) = find(engine, session, claim).await? {
        let result = known(engine.seal.as_deref(), claim, &recorded, result);
        return Ok(KeyState::Done { recorded: Box::new(recorded), result });
    }
    let own = session_or_open(engine, session.take()).await?;
    let (own, is_free) = is_free(engine, own, claim).await?;
    *session = own;
    // Where it was recorded since, the next call reads that.
    Ok(if is_free { KeyState::Unknown } else { KeyState::InProgress })
}

/// Whether a key could be claimed. A transaction that holds one shows nothing of it before its commit, but no other can claim
/// it.
async fn is_free<S: Store>(
    engine: &Engine<S>,
    session: S::Session,
    claim: &Claim,
) -> Result<(Option<S::Session>, bool), StoreError> {
    let registered = engine.register(None).await?;
    let limit = engine.settings.answer_timeout + engine.settings.busy_timeout;
    let asking = engine.store.is_free(session, options(&engine.settings, registered.run, ASKS).alone(true), claim);
    answered(limit, "asking for a key", asking).await
}

/// The lane's number in transactions that only ask.
const ASKS: i32 = -1;

async fn look_up_on<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    session: S::Session,
    lane_number: i32,
    items: &[J],
) -> Result<(Option<S::Session>, Vec<Option<Decision>>), StoreError> {
    let registered = engine.register(None).await?;
    let limit = engine.settings.answer_timeout;
    let begin = engine.store.begin(session, options(&engine.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let positions: Vec<usize> = (0..items.len()).filter(|index| items[*index].borrow().claim.is_some()).collect();
    let claims: Vec<Claim> = positions.iter().filter_map(|index| items[*index].borrow().claim.clone()).collect();
    let found = answered(limit, "looking keys up", unit.read(&claims)).await?;
    one_answer_each(found.len(), claims.len())?;
    let session = answered(limit, "rolling back", unit.rollback()).await?;
    let mut decisions: Vec<Option<Decision>> = items.iter().map(|_| None).collect();
    for ((index, claim), recorded) in positions.into_iter().zip(&claims).zip(found) {
        let Some(recorded) = recorded else { continue };
        let verdict = outcome::compare(claim, recorded, |rule| engine.rehash(&items[index].borrow().message, rule));
        decisions[index] = decision(verdict);
    }
    Ok((session, decisions))
}

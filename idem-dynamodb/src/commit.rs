//! The commit: one transaction, repeated until its outcome is known, and one write that decides it where no answer comes.

use aws_sdk_dynamodb::types::TransactWriteItem;
use idem_core::{
    ErrorClass, StoreError,
    results::NewResult,
    store::{CommitError, boxed},
};
use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    claim::{GivenUp, Held, give_up},
    client::{Change, Requests, pause, token},
    error::DynamoError,
    item::{TTL, number, text},
    reasons::Cancelled,
    record::{State, expires_at, result, ttl},
    tx::Write,
};

/// The most actions of a transaction.
pub(crate) const ACTIONS_MAX: usize = 100;

const COMMITTING: &str = "committing";

/// All that a unit commits.
pub(crate) struct Commit {
    pub(crate) held: Vec<Held>,
    pub(crate) writes: Vec<Write>,
    pub(crate) results: Vec<NewResult>,
}

impl Commit {
    /// Commits. Whatever the answer, no key is held any more, unless the outcome is unknown or DynamoDB does not answer.
    pub(crate) async fn run(self, requests: &Requests) -> Result<(), CommitError> {
        let actions = match self.actions(requests) {
            Ok(actions) if actions.is_empty() => return Ok(()),
            Ok(actions) => actions,
            Err(error) => return self.given_up(requests, error, false).await,
        };
        let committed = match bugs::planted(Bug::MarkBeforeEffect) {
            true => self.in_two_parts(requests, &actions).await,
            false => self.decided(requests, &actions).await,
        };
        if let (Ok(()), Some(near)) = (&committed, &requests.near) {
            for held in &self.held {
                near.put_committed(held, &done(held, self.result_of(held)));
            }
        }
        committed
    }

    async fn decided(&self, requests: &Requests, actions: &[TransactWriteItem]) -> Result<(), CommitError> {
        let (begun, limit) = (Instant::now(), requests.limits.commit);
        let (mut token, mut tries) = (token(), 0);
        let mut may_be_applied = false;
        loop {
            let answer = requests.transact_once(actions, &token).await;
            // A test kills the process here, before the answer counts.
            let _ = idem_core::failpoint!(COMMIT_SENT);
            let cancelled = match answer {
                Ok(()) => return Ok(()),
                Err(cancelled) => cancelled,
            };
            if let Some((action, reason)) = cancelled.condition() {
                let is_mine = |held: &Held| {
                    reason.item.as_ref().is_some_and(|item| held.has(item) && State::of(item).ok() == Some(State::Done))
                };
                let error = match self.held.get(action) {
                    // The answer to an earlier try was lost.
                    Some(held) if is_mine(held) => return Ok(()),
                    Some(_) => StoreError::contended(COMMITTING, boxed(cancelled.into_error())),
                    None => self.refused_by(action, cancelled),
                };
                return self.given_up(requests, error, may_be_applied).await;
            }
            let is_over = begun.elapsed() >= limit;
            if cancelled.is_unknown() {
                may_be_applied = true;
                if begun.elapsed() >= limit / 2 {
                    return self.fence(requests, cancelled).await;
                }
            } else if cancelled.is_conflict() && !is_over {
                // Other transactions write the same items now. The same writes may go well in a moment, under another token: only one of
                // them finds the claim. Without a claim only the token tells an earlier try from this one.
                if !(may_be_applied && self.held.is_empty()) {
                    token = self::token();
                }
            } else if may_be_applied {
                return self.fence(requests, cancelled).await;
            } else {
                let error = match (cancelled.is_conflict(), cancelled.is_throttled()) {
                    (true, _) => StoreError::contended(COMMITTING, boxed(cancelled.into_error())),
                    (_, true) => StoreError::unavailable(COMMITTING, boxed(cancelled.into_error())),
                    _ => cancelled.into_error().into_store(COMMITTING),
                };
                return self.given_up(requests, error, false).await;
            }
            tokio::time::sleep(pause(tries).min(limit / 8)).await;
            tries += 1;
        }
    }

    /// A planted bug: the record is committed before the writes.
    async fn in_two_parts(&self, requests: &Requests, actions: &[TransactWriteItem]) -> Result<(), CommitError> {
        let (marks, effects) = actions.split_at(self.held.len());
        if let Err(cancelled) = requests.transact_once(marks, &token()).await {
            let error = StoreError::contended(COMMITTING, boxed(cancelled.into_error()));
            return self.given_up(requests, error, true).await;
        }
        let _ = idem_core::failpoint!(COMMIT_SENT);
        let _ = requests.transact_once(effects, &token()).await;
        Ok(())
    }

    /// The error where the condition of a handler's write failed.
    fn refused_by(&self, action: usize, cancelled: Cancelled) -> StoreError {
        let error = boxed(cancelled.into_error());
        match self.writes.get(action - self.held.len()) {
            Some(write) if write.guards_a_read() => StoreError::contended(COMMITTING, error),
            Some(_) | None => StoreError::failed(COMMITTING, ErrorClass::Permanent, error),
        }
    }

    /// Decides a commit without an answer: once its claim is given up, the transaction has not committed and never will, because it needs
    /// the claim's token.
    async fn fence(&self, requests: &Requests, cancelled: Cancelled) -> Result<(), CommitError> {
        let error = boxed(cancelled.into_error());
        if self.held.is_empty() {
            return Err(CommitError::Unknown(error));
        }
        self.given_up(requests, StoreError::contended(COMMITTING, error), true).await
    }

    /// Gives the keys up after a transaction that was cancelled or never sent, so that a redelivery need not wait for their leases. Where an
    /// earlier try of it may still be applied, that is what decides it.
    async fn given_up(&self, requests: &Requests, error: StoreError, may_be_applied: bool) -> Result<(), CommitError> {
        for held in &self.held {
            match give_up(requests, held).await {
                Ok(GivenUp::Yes) => {}
                Ok(GivenUp::Committed) => return Ok(()),
                Err(failed) if may_be_applied => return Err(CommitError::Unknown(boxed(failed))),
                Err(failed) => {
                    let error = failed.without_values();
                    tracing::warn!(error, "a key could not be given up; it is held until its lease ends");
                }
            }
        }
        Err(CommitError::RolledBack(error))
    }

    fn result_of(&self, held: &Held) -> Option<&NewResult> {
        self.results.iter().find(|result| result.scope == held.claim.scope && result.key == held.claim.key)
    }

    fn actions(&self, requests: &Requests) -> Result<Vec<TransactWriteItem>, StoreError> {
        let count = self.held.len() + self.writes.len();
        if count > ACTIONS_MAX {
            let most = ACTIONS_MAX - self.held.len();
            let problem =
                format!("a message may write at most {most} items, and its handler has written {}", self.writes.len());
            let error = DynamoError::own("TransactWriteItems", "TooManyWrites", problem);
            return Err(StoreError::failed(COMMITTING, ErrorClass::Permanent, error));
        }
        let mut actions = Vec::with_capacity(count);
        for held in &self.held {
            let change = done(held, self.result_of(held));
            actions.push(requests.update_action(&held.place(), &change).map_err(|error| error.into_store(COMMITTING))?);
        }
        actions.extend(self.writes.iter().map(|write| write.action().clone()));
        Ok(actions)
    }
}

/// The end of a claim.
fn done(held: &Held, kept: Option<&NewResult>) -> Change {
    let expires = expires_at(held.claim.retention);
    let mut set = "SET st = :c, #at = :at".to_owned();
    let mut change = Change::default()
        .name("#at", "at")
        .name("#until", "until")
        .value(":c", text(State::Done.as_str()))
        .value(":p", text(State::Claimed.as_str()))
        .value(":at", number(held.at))
        .value(":tok", text(&held.token));
    if let Some(expires) = expires {
        set.push_str(", x = :x, #ttl = :ttl");
        change = change.name("#ttl", TTL).value(":x", number(expires)).value(":ttl", ttl(expires));
    }
    if let Some(kept) = kept {
        set.push_str(", res = :res");
        change = change.value(":res", result(kept));
    }
    change.update = format!("{set} REMOVE #until");
    change.on(match () {
        () if bugs::planted(Bug::NoCondition) => "attribute_exists(pk) OR tok = :tok OR st = :p",
        () if bugs::planted(Bug::NoToken) => "tok = :tok OR st = :p OR st = :c",
        () => "tok = :tok AND st = :p",
    })
}

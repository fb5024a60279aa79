//! Units of work: they claim, write, hand in, and end.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use idem_core::{
    ErrorClass, Event, IdempotencyKey, ResultBody, Retention, Store, StoreError, Tx,
    message::Headers,
    outbox::{AppendError, Appended, NewEvent},
    results::{KeptResult, NewResult},
    store::{Claim, ClaimError, Claimed, CommitError, HashRuleId, RunId, UnitOfWork, UnitOptions},
};

use super::{
    super::subject::{Effect, StoreUnderTest},
    side::{MINUTE, Side, nth},
    steps::{Answer, Payload, Sent, Unit, UnitEnd},
};

/// How often a unit runs where the store asks for that.
const RUNS_MAX: usize = 3;

/// A unit whose keys are claimed.
struct Begun {
    won: String,
    hands_in: Appended,
}

impl<T: StoreUnderTest> Side<'_, T> {
    pub(super) async fn unit(&mut self, unit: &Unit) -> Result<String, StoreError> {
        let (won, ended) = self.alone(unit).await?;
        Ok(won + &ended)
    }

    /// Answers what it won, and its end.
    async fn alone(&mut self, unit: &Unit) -> Result<(String, String), StoreError> {
        for _ in 0..RUNS_MAX {
            let (store, session) = (Arc::clone(&self.store), self.store.open().await?);
            let mut open = store.begin(session, options(self.run(), MINUTE)).await?;
            let Some(begun) = self.claim(&mut open, unit).await? else { return Ok(held_by_nobody()) };
            if let Some(ended) = self.end(open, &begun.hands_in, unit.ends).await? {
                return Ok((begun.won, ended));
            }
        }
        panic!("the last run of {unit:?} is to run again too");
    }

    pub(super) async fn meet(&mut self, first: &Unit, second: &Unit) -> Result<String, StoreError> {
        let store = Arc::clone(&self.store);
        let (one, other) = (self.store.open().await?, self.store.open().await?);
        let mut open = store.begin(one, options(self.run(), MINUTE)).await?;
        let Some(begun) = self.claim(&mut open, first).await? else { return Ok(held_by_nobody().0) };
        let mut meets = store.begin(other, options(self.run(), self.patience)).await?;
        let met = self.claim(&mut meets, second).await?;
        let ended = self.end(open, &begun.hands_in, first.ends).await?;
        let ended = match ended {
            Some(ended) => ended,
            None => self.alone(first).await?.1,
        };
        let Some(met) = met else {
            self.end(meets, &Appended::default(), UnitEnd::Dropped).await?;
            return Ok(format!("{}{ended}, and meanwhile one is held", begun.won));
        };
        let met_end = match self.end(meets, &met.hands_in, second.ends).await? {
            Some(ended) => ended,
            None => self.alone(second).await?.1,
        };
        Ok(format!("{}{ended}, and meanwhile {}{met_end}", begun.won, met.won))
    }

    /// Claims and writes. `None` where another unit was in the way for too long.
    async fn claim(&mut self, open: &mut impl UnitOfWork<T::Store>, unit: &Unit) -> Result<Option<Begun>, StoreError> {
        let claim = |(of, retention): &(Payload, Retention)| {
            let (scope, key, hash) = self.payload(of);
            Claim::new(scope, key, hash, nth(&self.rules, of.rule).unwrap_or(HashRuleId(1)), *retention)
        };
        let claims = sorted(unit.claims.iter().map(claim).collect());
        let answers = match open.claim(&claims).await {
            Ok(answers) => answers,
            Err(ClaimError::Held) => return Ok(None),
            Err(ClaimError::Store(error)) => return Err(error),
            Err(other) => panic!("no claim: {other:?}"),
        };
        let of = |inserted: bool| {
            let answered = claims.iter().zip(&answers);
            let of = answered.filter(|(_, answer)| (**answer == Claimed::Inserted) == inserted);
            of.map(|(claim, _)| claim.clone()).collect::<Vec<_>>()
        };
        let (won, lost) = (of(true), of(false));
        let keys = won.iter().map(|claim| claim.key.as_str()).chain(unit.writes.then_some("no key"));
        self.write(open, &keys.collect::<Vec<_>>(), unit.is_refused).await?;
        let mut said = format!("won {} of {}; ", won.len(), claims.len());
        if !lost.is_empty() {
            let records = open.read(&lost).await?;
            let results = if self.outbox.is_some() { open.read_results(&lost).await? } else { vec![None; lost.len()] };
            for (record, result) in records.into_iter().zip(results) {
                let record = record.map_or("nobody".to_owned(), |record| self.record(&record, result.as_ref()));
                let _ = write!(said, "{record}; ");
            }
        }
        Ok(Some(Begun { won: said, hands_in: self.hands_in(unit, &won) }))
    }

    async fn write(
        &self,
        open: &mut impl UnitOfWork<T::Store>,
        keys: &[&str],
        is_refused: bool,
    ) -> Result<(), StoreError> {
        if is_refused {
            return Ok(());
        }
        let (payload, note) = (b"effect".to_vec(), self.consumer.as_str());
        for key in keys {
            let effect = Effect { key: (*key).to_owned(), payload: payload.clone(), note: note.to_owned() };
            let mut tx: Tx<'_, T::Store> = open.tx();
            T::write(&mut tx, &effect).await.unwrap();
        }
        Ok(())
    }

    fn hands_in(&self, unit: &Unit, won: &[Claim]) -> Appended {
        let mut appended = Appended::default();
        let place = |event: &NewEvent| (event.destination, event.scope, event.key.clone());
        for event in unit.events.iter().map(|of| self.event(of)) {
            // The engine refuses a second event under one key.
            if !appended.events.iter().any(|other| place(other) == place(&event)) {
                appended.events.push(event);
            }
        }
        let result = |(claim, answer): (&Claim, &Answer)| {
            let mut result = NewResult::new(claim.scope, claim.key.clone(), unit.is_refused, body(answer));
            (result.sealed_with, result.kept_for) = (answer.sealed_with, answer.kept_for);
            result
        };
        appended.results = won.iter().filter_map(|claim| Some((claim, unit.answer.as_ref()?))).map(result).collect();
        appended
    }

    fn event(&self, of: &Sent) -> NewEvent {
        let (scope, destination) = (self.scope(of.scope), self.destination(of.destination));
        let mut event = Event::to(&destination.name).body(of.text);
        if let Some(key) = of.ordering_key {
            event = event.ordering_key(key);
        }
        if of.is_typed {
            event = event.event_type("Paid").content_type("text/plain").header("trace", "one").header("none", "");
        }
        let key = IdempotencyKey::new(&format!("event-{}", of.key)).unwrap();
        NewEvent::plain(scope, destination.id, key, event).unwrap()
    }

    /// `None` where the store asks for another run.
    async fn end(
        &self,
        mut open: <T::Store as Store>::Unit,
        hands_in: &Appended,
        ends: UnitEnd,
    ) -> Result<Option<String>, StoreError> {
        if !hands_in.is_empty() {
            match open.append(hands_in).await {
                Ok(()) => {}
                Err(AppendError::Conflict { .. }) => {
                    open.rollback().await?;
                    // It may look for conflicts with the commit alone, and name any of several.
                    let told = if ends == UnitEnd::Commit { "an event is another one" } else { "" };
                    return Ok(Some(told.to_owned()));
                }
                Err(AppendError::Store(error)) => return Err(error),
                Err(other) => panic!("nothing appended: {other:?}"),
            }
        }
        match ends {
            UnitEnd::Commit => match open.commit().await.1 {
                Ok(()) => {}
                Err(CommitError::RolledBack(error)) if error.class() == ErrorClass::RunUnitAgain => return Ok(None),
                Err(CommitError::RolledBack(error)) => return Err(error),
                Err(other) => panic!("no commit: {other:?}"),
            },
            UnitEnd::Rollback => drop(open.rollback().await?),
            UnitEnd::Dropped => drop(open),
        }
        Ok(Some(String::new()))
    }
}

fn held_by_nobody() -> (String, String) {
    ("held, by nobody".to_owned(), String::new())
}

fn body(answer: &Answer) -> ResultBody {
    let mut headers = Headers::default();
    if let Some(value) = answer.header {
        headers.push("trace", Some(value.into()));
    }
    let mut body = ResultBody::new(answer.text).with_headers(headers);
    body.status = answer.status;
    body.content_type = answer.content_type.map(Into::into);
    body.reference = answer.reference.map(Into::into);
    body
}

/// A result that was read back, but for its time.
pub(super) fn kept(result: &KeptResult) -> String {
    let KeptResult { is_error, result: body, sealed_with, gone, .. } = result;
    let headers: Vec<_> = body.headers.iter().collect();
    format!(
        "error {is_error} {:?} {:?} {headers:?} {:?} {:?} sealed {sealed_with} gone {gone:?}",
        body.status, body.content_type, body.reference, body.body
    )
}

pub(super) fn options(run: RunId, patience: Duration) -> UnitOptions {
    UnitOptions::new(run, 0, patience, MINUTE)
}

/// As the engine hands them over: sorted by scope and key, one of each.
pub(super) fn sorted(mut claims: Vec<Claim>) -> Vec<Claim> {
    let of = |claim: &Claim| (claim.scope, claim.key.clone());
    claims.sort_by_key(of);
    claims.dedup_by_key(|claim| of(claim));
    claims
}

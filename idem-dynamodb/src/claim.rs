//! The claim of a key: an update that takes its item with a token, an epoch and a lease, and the one that gives it up.
//!
//! | an item is | and a claim | and its holder |
//! |---|---|---|
//! | not there, or `A`: given up | takes it, with a higher epoch | |
//! | `P`: claimed, before its lease ends | waits | commits, or gives it up |
//! | `P`, after that | takes it, with a higher epoch | commits if no other unit has taken it |
//! | `C`: done | finds the record | has committed |
//!
//! An item that was given up stays, because its epoch refuses a claim of before that arrives late.

use std::time::Duration;

use idem_core::{
    StoreError,
    copies::{Copy, Generation},
    store::{Claim, ClaimError, Found, RunId},
};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    bugs::{self, Bug},
    client::{Change, Conditional, Requests, pause, token},
    clock::{Micros, now, span},
    copies::Near,
    error::DynamoError,
    item::{At, FORMAT, Item, Read, TTL, bytes, number, text},
    record::{State, found, ttl_after},
};

/// The pauses of a waiting claim.
const WAIT_FIRST: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_millis(200);

/// How long an item that was given up is kept for its epoch: longer than any request is on its way.
const GIVEN_UP_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Tries of a claim that is refused or not answered.
const TRIES_MAX: u32 = 4;

const CLAIMING: &str = "claiming keys";

/// A key that a unit has, or may have where the answer to its claim was lost.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) claim: Claim,
    pub(crate) token: String,
    /// When the record was processed, once it is committed.
    pub(crate) at: Micros,
    pub(crate) run: RunId,
    /// What a copy of it is bound to; `None` where none is made.
    pub(crate) generation: Option<Generation>,
}

impl Held {
    fn new(claim: &Claim, run: RunId) -> Self {
        Self { claim: claim.clone(), token: token(), at: now(), run, generation: None }
    }

    pub(crate) fn place(&self) -> At {
        At::record(self.claim.scope, &self.claim.key)
    }

    /// Whether this item is this unit's.
    pub(crate) fn has(&self, item: &Item) -> bool {
        item.string("tok") == Some(&self.token)
    }
}

/// The answer to a claim.
pub(crate) enum Claimed {
    Held(Held),
    Found {
        found: Box<Found>,
        /// Whether the table has no result beyond this.
        is_whole: bool,
    },
}

impl Claimed {
    fn read(found: Box<Found>) -> Self {
        Self::Found { found, is_whole: true }
    }
}

/// Claims a key, and waits for another unit until `until`. A caller that is gone, which drops `caller`'s other end, waits no longer.
///
/// The second answer says what may be held after an error.
pub(crate) async fn acquire<T>(
    requests: &Requests,
    claim: &Claim,
    run: RunId,
    until: Instant,
    caller: &mut oneshot::Sender<T>,
) -> Result<Claimed, (ClaimError, Option<Held>)> {
    let mut held = Held::new(claim, run);
    if let Some(near) = &requests.near {
        held.generation = near.generation(requests).await;
        if let Some(copied) = by_copy(near, &held, until, caller).await {
            return Ok(copied);
        }
    }
    let claimed = acquire_at_store(requests, &mut held, until, caller).await;
    if let Some(near) = &requests.near {
        match &claimed {
            Ok(Claimed::Held(held)) => near.put_running(held, requests.limits.lease),
            Ok(Claimed::Found { found, .. }) => near.put(held.generation, claim, found),
            Err(_) => {}
        }
    }
    claimed
}

/// What a copy decides: that the operation is done. While a copy says that a unit has the key, this waits for another one.
async fn by_copy<T>(near: &Near, held: &Held, until: Instant, caller: &mut oneshot::Sender<T>) -> Option<Claimed> {
    let mut waits = 0;
    loop {
        match near.find(held.generation, &held.claim).await {
            Some(Copy::Done { found, is_whole }) => return Some(Claimed::Found { found, is_whole }),
            Some(Copy::Running) if Instant::now() < until && !caller.is_closed() => {
                wait(&mut waits, until, caller).await;
            }
            // The store says whether the unit has the key still.
            Some(Copy::Running) | None => return None,
        }
    }
}

async fn acquire_at_store<T>(
    requests: &Requests,
    held: &mut Held,
    until: Instant,
    caller: &mut oneshot::Sender<T>,
) -> Result<Claimed, (ClaimError, Option<Held>)> {
    let at = held.place();
    let (mut epoch, mut waits, mut tries, mut lost_races, mut may_be_held) = (now(), 0, 0, 0, false);
    loop {
        let answer = requests.update_once(&at, &take(requests, held, epoch)).await;
        let old = match answer {
            Ok(Conditional::Done(_)) => return Ok(Claimed::Held(held.clone())),
            Ok(Conditional::Failed(old)) => old,
            Err(error) if error.is_in_transaction() => None,
            Err(error) => {
                may_be_held |= error.is_unknown();
                tries += 1;
                if !error.passes() || tries >= TRIES_MAX || Instant::now() >= until {
                    return Err((error.into_store(CLAIMING).into(), may_be_held.then(|| held.clone())));
                }
                tokio::time::sleep(pause(tries)).await;
                continue;
            }
        };
        let mut seen = old;
        loop {
            match judge(seen.as_ref(), held, epoch) {
                Ok(Seen::Mine) => return Ok(Claimed::Held(held.clone())),
                Ok(Seen::Done(found)) => return Ok(Claimed::read(found)),
                // Taken by others between each look and its claim.
                Ok(Seen::Free { .. }) if lost_races >= TRIES_MAX && Instant::now() >= until => {
                    return Err((ClaimError::Held, may_be_held.then(|| held.clone())));
                }
                Ok(Seen::Free { above }) => {
                    lost_races += 1;
                    epoch = epoch.max(now()).max(above + 1);
                    held.at = now();
                    break;
                }
                Ok(Seen::Others) => {}
                Err(error) => return Err((error.into(), may_be_held.then(|| held.clone()))),
            }
            if Instant::now() >= until {
                return Err((ClaimError::Held, may_be_held.then(|| held.clone())));
            }
            wait(&mut waits, until, caller).await;
            if caller.is_closed() {
                return Err((ClaimError::Held, may_be_held.then(|| held.clone())));
            }
            // A read costs half of what the condition of a write does.
            seen = match requests.get(&at).await {
                Ok(item) => item.or_else(|| Some(Item::new())),
                Err(error) => return Err((error.into_store(CLAIMING).into(), may_be_held.then(|| held.clone()))),
            };
        }
    }
}

/// What a claim finds.
enum Seen {
    /// This very claim, whose answer was lost.
    Mine,
    Done(Box<Found>),
    /// No unit holds it; epochs up to `above` are used.
    Free {
        above: Micros,
    },
    Others,
}

/// `None` while a transaction on the item is being decided, and an item without attributes where there is none.
fn judge(item: Option<&Item>, held: &Held, epoch: Micros) -> Result<Seen, StoreError> {
    let Some(item) = item else { return Ok(Seen::Others) };
    if item.is_empty() {
        return Ok(Seen::Free { above: epoch });
    }
    let above = item.needed(item.number("ep"), "ep")?;
    if bugs::planted(Bug::FoundInProgress)
        && State::of(item)? == State::Claimed
        && let Some(found) = found(item, &held.claim)?
    {
        return Ok(Seen::Done(Box::new(found)));
    }
    Ok(match State::of(item)? {
        State::Done => match found(item, &held.claim)? {
            Some(found) => Seen::Done(Box::new(found)),
            None => Seen::Others,
        },
        State::GivenUp => Seen::Free { above },
        State::Claimed if held.has(item) => Seen::Mine,
        State::Claimed if item.number("until").is_none_or(|until| until <= now()) => Seen::Free { above },
        State::Claimed => Seen::Others,
    })
}

async fn wait<T>(waits: &mut u32, until: Instant, caller: &mut oneshot::Sender<T>) {
    let longest = WAIT_FIRST.saturating_mul(1 << (*waits).min(8)).min(WAIT_MAX);
    *waits += 1;
    let time = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
    tokio::select! {
        () = tokio::time::sleep_until((Instant::now() + time).min(until)) => {}
        () = caller.closed() => {}
    }
}

/// Whether a claim by hand would take this item now.
pub(crate) fn is_free(item: Option<&Item>, claim: &Claim) -> Result<Option<bool>, StoreError> {
    let nothing = Item::new();
    Ok(match judge(Some(item.unwrap_or(&nothing)), &Held::new(claim, RunId(0)), 0)? {
        Seen::Free { .. } | Seen::Mine => Some(true),
        Seen::Done(_) => Some(false),
        Seen::Others => None,
    })
}

fn take(requests: &Requests, held: &Held, epoch: Micros) -> Change {
    let (claim, now) = (&held.claim, now());
    Change::new(
        "SET st = :p, tok = :tok, ep = :ep, #until = :until, h = :h, hr = :hr, #key = :key, #by = :by, v = :v REMOVE #ttl",
    )
    .on(match bugs::planted(Bug::NoCondition) || (bugs::planted(Bug::CopyRuns) && requests.near.is_some()) {
        true => "attribute_not_exists(pk) OR ep < :ep OR st = :a OR st = :p OR #until <= :now",
        false => "attribute_not_exists(pk) OR (ep < :ep AND (st = :a OR (st = :p AND #until <= :now)))",
    })
    .name("#until", "until")
    .name("#key", "key")
    .name("#by", "by")
    .name("#ttl", TTL)
    .value(":p", text(State::Claimed.as_str()))
    .value(":a", text(State::GivenUp.as_str()))
    .value(":tok", text(&held.token))
    .value(":ep", number(epoch))
    .value(":until", number(now.saturating_add(span(requests.limits.lease))))
    .value(":now", number(now))
    .value(":h", bytes(claim.hash.as_bytes().to_vec()))
    .value(":hr", number(claim.hash_rule.0))
    .value(":key", text(claim.key.as_str()))
    .value(":by", number(held.run.0))
    .value(":v", number(FORMAT))
}

/// What became of a claim that its unit gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// It was given up, or another unit has the key: nothing that this unit sends applies any more.
    Yes,
    /// Its transaction had committed.
    Committed,
}

/// Gives a claim up: from then on neither the claim nor the commit of its token applies, however late it arrives.
pub(crate) async fn give_up(requests: &Requests, held: &Held) -> Result<GivenUp, DynamoError> {
    let change = Change::new("SET st = :a, tok = :f, ep = ep + :one, #ttl = :ttl REMOVE #until, h, hr, #key, #by")
        .on("tok = :tok AND st = :p")
        .name("#until", "until")
        .name("#key", "key")
        .name("#by", "by")
        .name("#ttl", TTL)
        .value(":a", text(State::GivenUp.as_str()))
        .value(":p", text(State::Claimed.as_str()))
        .value(":tok", text(&held.token))
        // Another token, by which an answer that was lost is known.
        .value(":f", text(format!("f{}", held.token)))
        .value(":one", number(1))
        .value(":ttl", ttl_after(GIVEN_UP_KEPT));
    match requests.update(&held.place(), &change).await? {
        Conditional::Failed(Some(item)) if held.has(&item) => Ok(GivenUp::Committed),
        Conditional::Done(_) | Conditional::Failed(_) => {
            if let Some(near) = &requests.near {
                near.remove(held);
            }
            Ok(GivenUp::Yes)
        }
    }
}

/// Gives claims up, as far as DynamoDB answers. The first error is answered.
pub(crate) async fn give_all_up(requests: &Requests, held: &[Held]) -> Result<(), DynamoError> {
    let mut first = Ok(());
    for one in held {
        if let Err(error) = give_up(requests, one).await
            && first.is_ok()
        {
            first = Err(error);
        }
    }
    first
}

//! `idem dead-letters` on a table of DynamoDB.

use idem_core::{
    ConsumerName, Store as _,
    dead_letter::{DeadLetterId, Reason, StoredDeadLetter},
    store::Bookkeeping as _,
};
use idem_dynamodb::HeldLetter;
use serde_json::Value;

use super::{Dynamo, absent, at, failed};
use crate::{
    command_line::{DeadLetters, Replay, StateOf, Which, shared::Limit},
    commands::{
        dead_letters::{self, wait},
        show::UNNOTED,
    },
    confirm::confirm,
    exit::Failure,
    report::{Report, Row},
};

/// The dead letters of a consumer that are read: all that there are.
pub(super) const MAX: u32 = u32::MAX;

pub(super) async fn run(on: &Dynamo<'_>, command: DeadLetters) -> Result<Report, Failure> {
    match command {
        DeadLetters::List { which, limit } => list(on, &which, &limit).await,
        DeadLetters::Show { id, payload } => show(on, id, payload).await,
        DeadLetters::Replay(asked) => replay(on, &asked).await,
        DeadLetters::Drop { which, because, dry_run, yes } => {
            let chosen = named(on, &which).await?;
            if dry_run {
                return Ok(Report::said(format!("{} would be dropped", chosen.len())));
            }
            confirm(&format!("This deletes {} dead letters for good", chosen.len()), yes.yes)?;
            let mut dropped = 0;
            for (consumer, letter) in &chosen {
                let Some(held) = on.store.dead_letter(letter.id).await.map_err(failed)? else { continue };
                // Noted before: what is gone has no consumer that a line could name.
                let details = format!("dead letter {}: {because}", letter.id.0);
                on.note((held.scope, consumer.as_str()), letter.key.clone(), "drop", &details).await?;
                dropped += u32::from(on.store.drop_dead_letter(letter.id).await.map_err(failed)?);
            }
            Ok(Report::said(format!("{dropped} dropped")))
        }
        DeadLetters::Groups(_) => Err(absent("dead-letters groups", "`idem dead-letters list` has the error of each")),
        DeadLetters::AcceptLoss(_) => Err(absent("dead-letters accept-loss", "drop the dead letter")),
    }
}

/// A letter as a row of a list.
pub(super) fn row(consumer: &str, letter: &StoredDeadLetter, is_due: bool) -> Row {
    Row::new([
        ("id", letter.id.0.into()),
        ("consumer", consumer.into()),
        ("key", letter.key.as_ref().map_or(Value::Null, |key| key.as_str().into())),
        ("reason", letter.reason.as_str().into()),
        ("attempts", letter.attempts.into()),
        ("copies", letter.copies.into()),
        ("error", letter.error.as_str().into()),
        ("first_at", at(Some(letter.first_at))),
        ("origin", letter.origin.as_str().into()),
        ("payload_kept", letter.payload_kept.into()),
        ("replay", if is_due { "awaited".into() } else { letter.replayed.as_deref().map_or(Value::Null, Value::from) }),
    ])
}

/// The letters that are meant, the newest of each consumer first.
async fn chosen(on: &Dynamo<'_>, which: &Which) -> Result<Vec<(ConsumerName, StoredDeadLetter)>, Failure> {
    if which.from.is_some() || which.to.is_some() {
        return Err(absent("dead-letters", "leave --from and --to out: choose by id, --consumer, --reason or --group"));
    }
    if which.state() == StateOf::Waiting {
        return Err(absent("waiting", "no message waits for a later try in this store"));
    }
    let mut all = Vec::new();
    if which.id.is_empty() {
        let mut consumers: Vec<_> =
            on.scopes(which.consumer.as_deref()).await?.into_iter().map(|of| of.consumer).collect();
        consumers.dedup();
        for consumer in consumers {
            let letters = on.store.bookkeeping().dead_letters(&consumer, MAX).await.map_err(failed)?;
            all.extend(letters.into_iter().map(|letter| (consumer.clone(), letter)));
        }
    }
    for id in &which.id {
        let held = held(on, *id).await?;
        all.push((held.consumer, held.letter));
    }
    all.retain(|(consumer, letter)| {
        let is_over = letter.replayed.as_deref().is_some_and(|end| !end.starts_with("failed"));
        which.consumer.as_deref().is_none_or(|name| name == consumer.as_str())
            && which.reason.is_none_or(|reason| reason == letter.reason)
            && which.group.as_ref().is_none_or(|group| letter.fingerprint.is_some_and(|of| of.to_string() == *group))
            && !(which.open && is_over)
    });
    Ok(all)
}

/// The same for a command that changes them. Refuses one without a choice, and a choice of nothing, which would look like success.
async fn named(on: &Dynamo<'_>, which: &Which) -> Result<Vec<(ConsumerName, StoredDeadLetter)>, Failure> {
    if which.id.is_empty() && which.consumer.is_none() && which.group.is_none() {
        return Err(Failure::refused("say which: ids, --consumer or --group"));
    }
    match chosen(on, which).await? {
        none if none.is_empty() => {
            Err(Failure::refused("there is no such dead letter; `idem dead-letters list` shows those that there are"))
        }
        chosen => Ok(chosen),
    }
}

async fn list(on: &Dynamo<'_>, which: &Which, limit: &Limit) -> Result<Report, Failure> {
    let letters = chosen(on, which).await?;
    let max = usize::try_from(limit.limit).unwrap_or(usize::MAX);
    let shown = letters.iter().take(max).map(|(consumer, letter)| row(consumer.as_str(), letter, false)).collect();
    let report = Report::new().table(dead_letters::title(which.state()), shown);
    Ok(if letters.len() > max {
        report.line(format!("{max} of {}; --limit N shows more", letters.len()))
    } else {
        report
    })
}

async fn show(on: &Dynamo<'_>, id: i64, with_payload: bool) -> Result<Report, Failure> {
    let held = held(on, id).await?;
    let (of, key) = ((held.scope, held.consumer.as_str()), held.letter.key.clone());
    let noted = on.note(of, key, dead_letters::read(with_payload), &format!("dead letter {id}")).await;
    noted.map_err(|failure| failure.so(UNNOTED))?;
    let letter = row(held.consumer.as_str(), &held.letter, held.is_due);
    let report = Report::new().record("dead letter", std::iter::once(letter).collect());
    if !with_payload {
        return Ok(report);
    }
    let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
    let headers: Vec<_> = held
        .message
        .headers()
        .iter()
        .map(|(name, value)| Value::from([Value::from(name), value.map_or(Value::Null, text)].to_vec()))
        .collect();
    let payload = hex::encode(held.message.payload().map_or(&[][..], |payload| payload));
    let content = Row::new([("payload", payload.into()), ("headers", headers.into())]);
    Ok(dead_letters::with_content(report, &std::iter::once(content).collect()))
}

async fn held(on: &Dynamo<'_>, id: i64) -> Result<HeldLetter, Failure> {
    let held = on.store.dead_letter(DeadLetterId(id)).await.map_err(failed)?;
    held.ok_or_else(|| Failure::refused(format!("there is no dead letter {id}")))
}

async fn replay(on: &Dynamo<'_>, asked: &Replay) -> Result<Report, Failure> {
    if asked.is_changed() {
        let instead = "leave --forget-first, --key and --payload out; `idem forget` forgets a key before its replay";
        return Err(absent("dead-letters replay", instead));
    }
    let chosen = named(on, &asked.which).await?;
    for (_, letter) in &chosen {
        if let Some(why) = hopeless(on, letter, asked.unchanged).await? {
            return Err(Failure::refused(format!("dead letter {} cannot be replayed: {why}", letter.id.0)));
        }
    }
    if asked.dry_run {
        return Ok(Report::said(format!("{} would be replayed", chosen.len())));
    }
    confirm(&format!("This has running workers handle {} dead letters again", chosen.len()), asked.yes.yes)?;
    let ids: Vec<_> = chosen.iter().map(|(_, letter)| letter.id).collect();
    let due = on.store.bookkeeping().due_now(&ids, &on.target.by).await.map_err(failed)?;
    for (consumer, letter) in &chosen {
        if let Some(held) = on.store.dead_letter(letter.id).await.map_err(failed)? {
            let details = format!("dead letter {}", letter.id.0);
            on.note((held.scope, consumer.as_str()), letter.key.clone(), "replay", &details).await?;
        }
    }
    if asked.wait {
        return wait::until_over(ids.len(), async || left(on, &ids).await).await;
    }
    Ok(wait::asked(i64::try_from(due).unwrap_or(i64::MAX)))
}

/// Why a replay would only fail again, and what to do.
async fn hopeless(
    on: &Dynamo<'_>,
    letter: &StoredDeadLetter,
    unchanged: bool,
) -> Result<Option<&'static str>, Failure> {
    let of_a_record = [Reason::Conflict, Reason::KeyCollision, Reason::HashUnknown].contains(&letter.reason);
    Ok(if !letter.payload_kept {
        Some("its payload was too large to keep, or was erased: have the producer send the message again")
    } else if letter.reason == Reason::MissingKey && letter.key.is_none() {
        Some("it has no key: have the producer send it with one")
    } else if letter.reason == Reason::Malformed && !unchanged {
        Some("its payload cannot be read: give --unchanged if the handler was fixed")
    } else if of_a_record && has_record(on, letter).await? {
        Some("its key has a record of another payload: forget the key with `idem forget` if this one is to take effect")
    } else {
        held(on, letter.id.0).await?.is_due.then_some("it awaits a replay already")
    })
}

async fn has_record(on: &Dynamo<'_>, letter: &StoredDeadLetter) -> Result<bool, Failure> {
    let Some(key) = &letter.key else { return Ok(false) };
    let scope = held(on, letter.id.0).await?.scope;
    Ok(on.store.held(scope, key).await.map_err(failed)?.record.is_some())
}

/// How many of these wait or run, and how many have failed again.
async fn left(on: &Dynamo<'_>, ids: &[DeadLetterId]) -> Result<[i64; 2], Failure> {
    let mut counts = [0, 0];
    for id in ids {
        if let Some(held) = on.store.dead_letter(*id).await.map_err(failed)? {
            let has_failed = held.letter.replayed.as_deref().is_some_and(|end| end.starts_with("failed"));
            counts[0] += i64::from(held.is_due);
            counts[1] += i64::from(!held.is_due && has_failed);
        }
    }
    Ok(counts)
}

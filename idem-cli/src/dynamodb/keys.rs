//! `idem show`, `forget` and `erase` on a table of DynamoDB.

use idem_core::{IdempotencyKey, Store as _, dead_letter::StoredDeadLetter, store::Bookkeeping as _};
use idem_dynamodb::ListedConsumer;
use serde_json::Value;

use super::{Dynamo, absent, at, dead_letters::MAX, failed};
use crate::{
    command_line::{Erase, Forget, Show},
    commands::{erase, forget, show::UNNOTED},
    confirm::confirm,
    exit::Failure,
    report::{Report, Row},
};

/// The lines of the trail that are looked through for a key, and those that are shown.
const TRAIL: usize = 10_000;
const SHOWN: usize = 20;

fn key_of(text: &str) -> Result<IdempotencyKey, Failure> {
    IdempotencyKey::new(text).map_err(|error| Failure::refused(format!("that is no key: {error}")))
}

pub(super) async fn show(on: &Dynamo<'_>, asked: &Show) -> Result<Report, Failure> {
    if asked.result {
        return Err(absent("show", "results are shown by their service alone: leave --result out"));
    }
    let key = key_of(&asked.of.recorded(&asked.key)?)?;
    let details = format!("key id {}", idem_sql::key_id(key.as_str()));
    let (mut records, mut letters, mut audit) = (Vec::new(), Vec::new(), Vec::new());
    let (mut done, mut claimed) = (Vec::new(), Vec::new());
    for of in on.scopes(asked.consumer.as_deref()).await? {
        let (name, held) = (of.consumer.as_str(), on.store.held(of.scope, &key).await.map_err(failed)?);
        let of_key = letters_of(on, &of, &key).await?;
        let is_held = held.record.is_some() || held.claimed_until.is_some() || held.attempts > 0 || !of_key.is_empty();
        // The text of a key goes where it stands already, so that looking up an erased one does not bring it back.
        let is_erased = held.record.as_ref().is_some_and(|record| record.erased);
        let named = (is_held && !is_erased).then(|| key.clone());
        let noted = on.note((of.scope, name), named, "read-key", &details).await;
        noted.map_err(|failure| failure.so(UNNOTED))?;
        if let Some(record) = &held.record {
            done.push(name.to_owned());
            records.push(Row::new([
                ("consumer", name.into()),
                ("tenant", of.tenant.as_str().into()),
                ("processed_at", at(record.processed_at)),
                ("run", record.run.into()),
                ("expires_at", at(record.expires_at)),
                ("erased", record.erased.into()),
                ("has_result", record.has_result.into()),
                ("attempts", held.attempts.into()),
            ]));
        }
        claimed.extend(held.claimed_until.map(|_| name.to_owned()));
        letters.extend(of_key.iter().map(|letter| super::dead_letters::row(name, letter, false)));
        let lines = on.store.trail(&of.consumer, TRAIL).await.map_err(failed)?;
        let lines =
            lines.into_iter().filter(|line| line.key.as_deref() == Some(key.as_str()) && line.action != "read-key");
        audit.extend(lines.take(SHOWN).map(|line| {
            Row::new([
                ("at", at(Some(line.at))),
                ("who", line.who.into()),
                ("action", line.action.into()),
                ("consumer", Value::from(name)),
                ("details", line.details.into()),
            ])
        }));
    }
    let redelivery = match (&done[..], &claimed[..]) {
        ([], []) => "A redelivery is handled: there is no record of this key.".to_owned(),
        ([], claimed) => format!("The key is in progress at {}: a redelivery waits for its end.", claimed.join(", ")),
        (done, _) => format!(
            "A redelivery with the same payload is skipped as a duplicate by {}; with another payload it is a conflict, and \
             never runs.",
            done.join(", ")
        ),
    };
    let report = Report::new().record("records", records.into_iter().collect());
    let report = report.record("dead letters", letters.into_iter().collect());
    Ok(report.table("audit", audit.into_iter().collect()).line(redelivery))
}

async fn letters_of(
    on: &Dynamo<'_>,
    of: &ListedConsumer,
    key: &IdempotencyKey,
) -> Result<Vec<StoredDeadLetter>, Failure> {
    let mut letters = on.store.bookkeeping().dead_letters(&of.consumer, MAX).await.map_err(failed)?;
    letters.retain(|letter| letter.key.as_ref() == Some(key));
    Ok(letters)
}

pub(super) async fn forget(on: &Dynamo<'_>, asked: &Forget) -> Result<Report, Failure> {
    let Some(keys) = forget::keys(asked)? else {
        return Err(absent("forget", "name keys, or give --keys: records are found by their keys alone"));
    };
    let scopes = on.scopes(Some(&asked.consumer)).await?;
    let mut chosen = Vec::new();
    for (place, text) in keys.iter().enumerate() {
        let key = key_of(text)?;
        for of in &scopes {
            let held = on.store.held(of.scope, &key).await.map_err(failed)?;
            if held.claimed_until.is_some() {
                return Err(Failure::refused(format!(
                    "key number {} cannot be forgotten: it is in progress at {}. Nothing was changed; try again later",
                    place + 1,
                    of.consumer
                )));
            }
            if held.record.is_some() {
                chosen.push((of.scope, key.clone()));
            }
        }
    }
    let records = if chosen.len() == 1 { "1 record".to_owned() } else { format!("{} records", chosen.len()) };
    if chosen.is_empty() || asked.dry_run {
        return forget::none_or_dry(&records, asked);
    }
    let warning = forget::warning(&records, &asked.consumer);
    confirm(&format!("{warning}. On DynamoDB this cannot be taken back"), asked.yes.yes)?;
    let mut forgotten = 0;
    for (scope, key) in chosen {
        if on.store.forget(scope, &key, &on.target.by, &asked.reason).await.map_err(failed)? {
            on.log(&asked.consumer, Some(key.as_str()), "forget", &asked.reason);
            forgotten += 1;
        }
    }
    Ok(Report::said(format!(
        "{forgotten} forgotten. Running workers may still answer from memory for up to 2 seconds."
    )))
}

pub(super) async fn erase(on: &Dynamo<'_>, asked: &Erase) -> Result<Report, Failure> {
    let key = key_of(&asked.of.recorded(&asked.key)?)?;
    let scopes = on.scopes(asked.consumer.as_deref()).await?;
    for of in &scopes {
        if on.store.held(of.scope, &key).await.map_err(failed)?.claimed_until.is_some() {
            let text = format!(
                "the key cannot be erased: it is in progress at {}. Nothing was changed; try again later",
                of.consumer
            );
            return Err(Failure::refused(text));
        }
    }
    let what = "This blanks the key's text, payloads, answers and errors for good. Ids and hashes stay, so that redeliveries are \
                still skipped";
    confirm(what, asked.yes.yes)?;
    let (mut erased, details) = (0, format!("key id {}: {}", idem_sql::key_id(key.as_str()), asked.reason));
    for of in &scopes {
        let count = on.store.erase(of.scope, &key, &on.target.by, &details).await.map_err(failed)?;
        if count > 0 {
            on.log(of.consumer.as_str(), None, "erase", &details);
        }
        erased += i64::try_from(count).unwrap_or(i64::MAX);
    }
    Ok(Report::said(erase::told(erased)))
}

//! Claims and records as parameters and rows: a batch of any size is one statement.

use std::{collections::HashSet, sync::Arc};

use idem_core::{
    ErrorClass, Retention, StoreError,
    message::OrderingKey,
    store::{Ahead, Claim, Claimed, Found, HashRuleId, Recorded, RunId, ScopeId, boxed},
};
use idem_sql::{kept_beside, key_and_hash};
use sqlx::{AssertSqlSafe, Row, SqliteConnection, sqlite::SqliteRow};

use super::{clock, driver, error, statements::Statements};

/// The parameters that stand for a batch: texts and numbers as JSON, binary values as one blob, because JSON has
/// no binary and hexadecimal would have to be undone for each.
struct Parameters {
    json: String,
    ids: Vec<u8>,
}

impl Parameters {
    fn of(claims: &[Claim], now: i64) -> Result<Self, StoreError> {
        let mut ids = Vec::with_capacity(claims.len() * 48);
        let mut rows = Vec::with_capacity(claims.len());
        for claim in claims {
            ids.extend_from_slice(idem_sql::key_id(claim.key.as_str()).as_bytes());
            ids.extend_from_slice(claim.hash.as_bytes());
            let expires_at = match claim.retention {
                Retention::For(time) => clock::expiry(now, time),
                Retention::Forever => clock::FOREVER,
            };
            rows.push((claim.scope.0, claim.key.as_str(), claim.hash_rule.0, expires_at));
        }
        let json = serde_json::to_string(&rows).map_err(|error| StoreError::Failed {
            doing: "claiming keys",
            class: ErrorClass::Permanent,
            source: boxed(error),
        })?;
        Ok(Self { json, ids })
    }
}

/// Inserts the keys that have no record yet. The caller holds the write lock, so no other insert runs at the same time.
pub(super) async fn claim(
    connection: &mut SqliteConnection,
    statements: &Statements,
    claims: &[Claim],
    (run, lane): (RunId, i32),
    now: i64,
) -> Result<(Vec<Claimed>, bool), StoreError> {
    let failed = |error| error::of_unit("claiming keys", error);
    let parameters = Parameters::of(claims, now)?;
    let rows = sqlx::query(statements.claim())
        .bind(parameters.json)
        .bind(parameters.ids.as_slice())
        .bind(now)
        .bind(run.0)
        .bind(lane)
        .fetch_all(connection)
        .await
        .map_err(failed)?;
    let mut waits = false;
    for row in &rows {
        waits |= row.try_get::<bool, _>(2).map_err(failed)?;
    }
    if rows.len() == claims.len() {
        // The usual batch: none of the keys had a record.
        return Ok((vec![Claimed::Inserted; claims.len()], waits));
    }
    let won = rows.iter().map(|row| Ok((row.try_get::<i32, _>(0)?, row.try_get::<&[u8], _>(1)?)));
    let won: HashSet<(i32, &[u8])> = won.collect::<Result<_, _>>().map_err(failed)?;
    let ids = parameters.ids.chunks(48).map(|chunk| chunk.get(..16).unwrap_or_default());
    let answer = |(claim, id): (&Claim, &[u8])| match won.contains(&(claim.scope.0, id)) {
        true => Claimed::Inserted,
        false => Claimed::NotInserted,
    };
    Ok((claims.iter().zip(ids).map(answer).collect(), waits))
}

/// The rows of these ordering keys that are not over.
pub(super) async fn ahead(
    connection: &mut SqliteConnection,
    statements: &Statements,
    keys: &[(ScopeId, OrderingKey)],
) -> Result<Vec<Ahead>, StoreError> {
    let doing = "asking what waits in an ordering key";
    let (mut asked, mut bytes) = (Vec::with_capacity(keys.len()), Vec::new());
    for (scope, key) in keys {
        asked.push((scope.0, bytes.len() + 1, key.as_bytes().len()));
        bytes.extend_from_slice(key.as_bytes());
    }
    let asked = serde_json::to_string(&asked).map_err(|error| StoreError::Failed {
        doing,
        class: ErrorClass::Permanent,
        source: boxed(error),
    })?;
    let query = sqlx::query(statements.rows_ahead()).bind(asked).bind(bytes).bind(clock::now());
    let rows = query.fetch_all(connection).await.map_err(failed(doing))?;
    let mut ahead = vec![Ahead::Nothing; keys.len()];
    for row in &rows {
        let place: i64 = row.try_get("place").map_err(failed(doing))?;
        let runs: bool = row.try_get("runs").map_err(failed(doing))?;
        if let Some(ahead) = usize::try_from(place).ok().and_then(|place| ahead.get_mut(place)) {
            *ahead = if runs { Ahead::Runs } else { Ahead::Waits };
        }
    }
    Ok(ahead)
}

/// Reads the records of these keys.
pub(super) async fn read(
    connection: &mut SqliteConnection,
    statements: &Statements,
    claims: &[Claim],
) -> Result<Vec<Option<Recorded>>, StoreError> {
    let (doing, statement) = ("reading records", statements.read());
    rows(connection, doing, statement, claims, |row, claim| record(row, claim).map_err(failed(doing))).await
}

/// Reads the records of these keys, with their results. It may be a transaction of its own.
pub(super) async fn look_up(
    connection: &mut SqliteConnection,
    statements: &Statements,
    claims: &[Claim],
) -> Result<Vec<Option<Found>>, StoreError> {
    let (doing, statement) = ("looking keys up", statements.look_up());
    let found = |row: &SqliteRow, claim: &Claim| {
        let recorded = record(row, claim).map_err(failed(doing))?;
        let row = driver::decode(std::slice::from_ref(row)).map_err(failed(doing))?;
        Ok(Found::new(recorded, row.first().map(kept_beside).transpose()?.flatten()))
    };
    rows(connection, doing, statement, claims, found).await
}

/// Runs a statement of claims, whose rows say by their place which claim they answer.
async fn rows<T>(
    connection: &mut SqliteConnection,
    doing: &'static str,
    statement: AssertSqlSafe<Arc<str>>,
    claims: &[Claim],
    read: impl Fn(&SqliteRow, &Claim) -> Result<T, StoreError>,
) -> Result<Vec<Option<T>>, StoreError> {
    let parameters = Parameters::of(claims, 0)?;
    let query = sqlx::query(statement).bind(parameters.json).bind(parameters.ids);
    let rows = query.fetch_all(connection).await.map_err(failed(doing))?;
    let mut found: Vec<Option<T>> = claims.iter().map(|_| None).collect();
    for row in &rows {
        let place: i64 = row.try_get("place").map_err(failed(doing))?;
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        if let (Some(slot), Some(claim)) = (found.get_mut(place), claims.get(place)) {
            *slot = Some(read(row, claim)?);
        }
    }
    Ok(found)
}

fn failed(doing: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| error::of_unit(doing, error)
}

/// The record that answers this claim.
fn record(row: &SqliteRow, claim: &Claim) -> Result<Recorded, sqlx::Error> {
    let expires_at: i64 = row.try_get("expires_at")?;
    let (key, hash) = key_and_hash(row.try_get("idempotency_key")?, row.try_get("payload_hash")?, claim);
    Ok(Recorded::new(
        key,
        hash,
        HashRuleId(row.try_get("hash_id")?),
        clock::instant(row.try_get("processed_at")?),
        RunId(row.try_get("processed_by")?),
        (expires_at != clock::FOREVER).then(|| clock::instant(expires_at)),
    ))
}

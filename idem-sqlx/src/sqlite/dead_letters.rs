//! Messages that are set aside, and their way back through a running worker.

use std::time::Duration;

use idem_core::{
    Bytes, ConsumerName, DeadLetter, DeadLetterId, DeadLetterIdentity, Fingerprint, IdempotencyKey, Message, Origin,
    ParkedDeadLetter, Reason, Replay, ReplayEnd, RunId, ScopeId, StoreError,
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{Sqlite, bookkeeping::key_id, claim, clock, connections::Borrowed};

/// After how long a replay that was taken and not ended can be taken by another run: its process has died. Well beyond a
/// handler's deadline and all its attempts.
const TAKE_OVER_AFTER: Duration = Duration::from_secs(600);

impl Sqlite {
    pub(super) async fn park_dead_letter(&self, letter: &DeadLetter) -> Result<ParkedDeadLetter, StoreError> {
        let mut connection = self.connections.write("storing a dead letter").await?;
        connection.begin().await?;
        let failed = connection.failed();
        let (now, identity) = (clock::now(), letter.identity());
        let inserted = self.insert_dead_letter(&mut connection, letter, identity, now).await?;
        let id: i64 = match inserted {
            Some(id) => id,
            None => sqlx::query_scalar(self.statements.count_dead_letter())
                .bind(letter.scope.0)
                .bind(identity.as_bytes().as_slice())
                .bind(letter.message.origin().as_str())
                .bind(letter.reason.as_str())
                .bind(letter.attempts)
                .bind(letter.error.as_str())
                .bind(letter.fingerprint.to_string())
                .bind(now)
                .bind(kept(letter))
                .fetch_one(connection.get()?)
                .await
                .map_err(&failed)?,
        };
        if let Some(key) = &letter.key {
            // The count is used up: a replay, or the same message sent again, has all its attempts.
            let forget = sqlx::query(self.statements.forget_attempts()).bind(letter.scope.0).bind(key_id(key));
            forget.execute(connection.get()?).await.map_err(&failed)?;
        }
        let select = sqlx::query(self.statements.select_dead_letter()).bind(id);
        let row = select.fetch_one(connection.get()?).await.map_err(&failed)?;
        let parked = parked(&row).map_err(&failed)?;
        connection.commit().await?;
        Ok(parked)
    }

    async fn insert_dead_letter(
        &self,
        connection: &mut Borrowed<'_>,
        letter: &DeadLetter,
        identity: DeadLetterIdentity,
        now: i64,
    ) -> Result<Option<i64>, StoreError> {
        let failed = connection.failed();
        let message = &letter.message;
        let (hash, rule) = letter.payload_hash();
        let payload_bytes = message.payload().map_or(0, Bytes::len);
        sqlx::query_scalar(self.statements.insert_dead_letter())
            .bind(letter.scope.0)
            .bind(message.origin().as_str())
            .bind(letter.key.as_ref().map(key_id))
            .bind(letter.key.as_ref().map(IdempotencyKey::as_str))
            .bind(hash.as_bytes().as_slice())
            .bind(rule.map(|rule| rule.0))
            .bind(letter.reason.as_str())
            .bind(letter.attempts)
            .bind(letter.error.as_str())
            .bind(kept(letter))
            .bind(i64::try_from(payload_bytes).unwrap_or(i64::MAX))
            .bind(message.payload().is_some())
            .bind(idem_schema::encode_headers(message.headers()))
            .bind(message.id())
            .bind(message.message_type())
            .bind(message.record_key().map(|key| key.as_ref()))
            .bind(now)
            .bind(identity.as_bytes().as_slice())
            .bind(letter.fingerprint.to_string())
            .fetch_optional(connection.get()?)
            .await
            .map_err(failed)
    }

    pub(super) async fn list_dead_letters(
        &self,
        consumer: &ConsumerName,
        max: u32,
    ) -> Result<Vec<ParkedDeadLetter>, StoreError> {
        let mut connection = self.connections.read("reading dead letters").await?;
        let failed = connection.failed();
        let select = sqlx::query(self.statements.dead_letters()).bind(consumer.as_str()).bind(max);
        let rows = select.fetch_all(connection.get()?).await.map_err(&failed)?;
        connection.done();
        rows.iter().map(parked).collect::<Result<_, _>>().map_err(failed)
    }

    pub(super) async fn ask_for_replay(&self, ids: &[DeadLetterId]) -> Result<u64, StoreError> {
        let mut connection = self.connections.write("asking for a replay").await?;
        let failed = connection.failed();
        let ids = serde_json::Value::from_iter(ids.iter().map(|id| id.0)).to_string();
        let update = sqlx::query(self.statements.request_replay()).bind(ids).bind(clock::now());
        let done = update.execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(done.rows_affected())
    }

    pub(super) async fn take_asked_replays(
        &self,
        consumer: &ConsumerName,
        run: RunId,
        max: u32,
    ) -> Result<Vec<Replay>, StoreError> {
        let doing = "taking replays";
        let now = clock::now();
        let taken_before = now.saturating_sub(clock::micros(TAKE_OVER_AFTER));
        // Workers ask every few seconds, mostly for nothing, and that must not take the write lock.
        let mut connection = self.connections.read(doing).await?;
        let failed = connection.failed();
        let ask = sqlx::query_scalar(self.statements.replays_waiting()).bind(consumer.as_str()).bind(taken_before);
        let waiting: bool = ask.fetch_one(connection.get()?).await.map_err(&failed)?;
        connection.done();
        if !waiting {
            return Ok(Vec::new());
        }
        let mut connection = self.connections.write(doing).await?;
        let rows = sqlx::query(self.statements.take_replays())
            .bind(consumer.as_str())
            .bind(taken_before)
            .bind(max)
            .bind(now)
            .bind(run.0)
            .fetch_all(connection.get()?)
            .await
            .map_err(&failed)?;
        connection.done();
        let mut replays = rows.iter().map(replay).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        replays.sort_by_key(|replay| replay.id);
        Ok(replays)
    }

    pub(super) async fn end_replay(&self, id: DeadLetterId, end: ReplayEnd) -> Result<(), StoreError> {
        let outcome = match end {
            ReplayEnd::Processed => Some("processed".to_owned()),
            ReplayEnd::Duplicate => Some("duplicate".to_owned()),
            ReplayEnd::Failed { reason, error } => Some(format!("failed ({reason}): {error}")),
            ReplayEnd::Released => None,
        };
        let mut connection = self.connections.write("ending a replay").await?;
        let failed = connection.failed();
        let update = match outcome {
            Some(outcome) => sqlx::query(self.statements.finish_replay()).bind(id.0).bind(clock::now()).bind(outcome),
            None => sqlx::query(self.statements.release_replay()).bind(id.0),
        };
        update.execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(())
    }
}

/// What the row keeps of the payload.
fn kept(letter: &DeadLetter) -> Option<&[u8]> {
    letter.message.payload().filter(|_| letter.keep_payload).map(|payload| payload.as_ref())
}

fn parked(row: &SqliteRow) -> Result<ParkedDeadLetter, sqlx::Error> {
    let key: Option<&str> = row.try_get("idempotency_key")?;
    let reason = Reason::parse(row.try_get("reason")?);
    let published_at: Option<i64> = row.try_get("published_at")?;
    Ok(ParkedDeadLetter {
        id: DeadLetterId(row.try_get("id")?),
        key: key.map(claim::key).transpose()?,
        origin: row.try_get("origin")?,
        reason: reason.ok_or_else(|| sqlx::Error::Decode("unknown reason of a dead letter".into()))?,
        attempts: row.try_get("attempts")?,
        error: row.try_get("error")?,
        fingerprint: row.try_get::<Option<&str>, _>("fingerprint")?.and_then(Fingerprint::parse),
        copies: row.try_get::<i64, _>("copies")?.unsigned_abs(),
        first_at: clock::instant(row.try_get("first_at")?),
        payload_kept: row.try_get("payload_kept")?,
        published_at: published_at.map(clock::instant),
        loss_accepted: row.try_get("loss_accepted")?,
        replayed: row.try_get("replay_outcome")?,
    })
}

fn replay(row: &SqliteRow) -> Result<Replay, sqlx::Error> {
    let payload: Option<Vec<u8>> = row.try_get("payload")?;
    let origin: &str = row.try_get("origin")?;
    let mut message = payload.map_or_else(Message::tombstone, Message::new).with_origin(Origin::new(origin));
    if let Some(text) = row.try_get::<Option<&str>, _>("headers")? {
        let headers = idem_schema::decode_headers(text);
        message = message.with_headers(headers.ok_or_else(|| sqlx::Error::Decode("headers of a dead letter".into()))?);
    }
    if let Some(id) = row.try_get("message_id")? {
        message = message.with_id(id);
    }
    if let Some(message_type) = row.try_get("message_type")? {
        message = message.with_type(message_type);
    }
    if let Some(key) = row.try_get::<Option<Vec<u8>>, _>("record_key")? {
        message = message.with_record_key(key);
    }
    let key: Option<&str> = row.try_get("idempotency_key")?;
    Ok(Replay {
        id: DeadLetterId(row.try_get("id")?),
        scope: ScopeId(row.try_get("consumer")?),
        message,
        key: key.map(claim::key).transpose()?,
    })
}

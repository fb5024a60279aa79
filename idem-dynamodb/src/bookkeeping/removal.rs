//! Dead letters and lines of the trail that an operator reads, removes or blanks.

use aws_sdk_dynamodb::types::TransactWriteItem;
use idem_core::{ConsumerName, IdempotencyKey, StoreError, dead_letter::DeadLetterId, store::ScopeId};

use super::{DynamoBookkeeping, letter, register::ROUNDS};
use crate::{
    client::Change,
    error::DynamoError,
    item::{At, Item, Read, flag, number, text},
    operators::HeldLetter,
};

const READING: &str = "reading a dead letter";
const DROPPING: &str = "dropping a dead letter";
const BLANKING: &str = "erasing a key";

impl DynamoBookkeeping {
    pub(crate) async fn held_letter(&self, id: DeadLetterId) -> Result<Option<HeldLetter>, StoreError> {
        let unread = |error: DynamoError| error.into_store(READING);
        let Some((_, item)) = self.letter(id).await.map_err(unread)? else { return Ok(None) };
        let mut payload = Vec::new();
        for part in 0..parts(&item) {
            let part = self.requests.get(&At::payload(id, part)).await.map_err(unread)?.unwrap_or_default();
            payload.extend_from_slice(part.needed(part.blob("b"), "b")?);
        }
        let consumer = item.string("consumer").and_then(|name| ConsumerName::new(name).ok());
        Ok(Some(HeldLetter {
            consumer: item.needed(consumer, "consumer")?,
            scope: letter::scope(&item)?,
            letter: letter::stored(&item)?,
            is_due: letter::due_at(&item).is_some(),
            message: letter::due(&item, payload, false)?.message,
        }))
    }

    pub(crate) async fn drop_letter(&self, id: DeadLetterId) -> Result<bool, StoreError> {
        let failed = |error: DynamoError| error.into_store(DROPPING);
        for _ in 0..ROUNDS {
            let Some((at, item)) = self.letter(id).await.map_err(failed)? else { return Ok(false) };
            let seen = Change::default().on("rev = :rev").value(":rev", number(item.number("rev").unwrap_or_default()));
            let mut all = self.remains(id, &item).map_err(failed)?;
            all.push(self.requests.delete_action_on(&at, &seen).map_err(failed)?);
            all.push(self.requests.delete_action(&At::dead_number(id)).map_err(failed)?);
            if self.requests.transact(&all).await.map_err(failed)? {
                return Ok(true);
            }
        }
        Err(StoreError::contended(DROPPING, "other processes change the dead letter all the time"))
    }

    /// What stands beside a letter: its row that is due, its payload, and what makes later copies fold into it.
    fn remains(&self, id: DeadLetterId, item: &Item) -> Result<Vec<TransactWriteItem>, DynamoError> {
        let identity =
            item.blob("identity").and_then(|identity| Some(At::identity(letter::scope(item).ok()?, identity)));
        let payload = (0..parts(item)).map(|part| At::payload(id, part));
        letter::due_at(item)
            .into_iter()
            .chain(identity)
            .chain(payload)
            .map(|at| self.requests.delete_action(&at))
            .collect()
    }

    /// A letter without its payload is never replayed, and a copy that comes later is kept whole, as a letter of its own.
    pub(crate) async fn blank_letters(&self, scope: ScopeId, key: &IdempotencyKey) -> Result<u64, StoreError> {
        let failed = |error: DynamoError| error.into_store(BLANKING);
        let Some(consumer) = self.consumer_of(scope).await? else { return Ok(0) };
        let letters = self.requests.all(self.requests.query(&format!("dead#{consumer}")), usize::MAX).await;
        let of_key = |item: &Item| item.string("key") == Some(key.as_str()) && letter::scope(item).ok() == Some(scope);
        let mut count = 0;
        for id in letters.map_err(failed)?.iter().filter(|item| of_key(item)).map(letter::id) {
            count += u64::from(self.blank(id?, key).await?);
        }
        Ok(count)
    }

    async fn blank(&self, id: DeadLetterId, key: &IdempotencyKey) -> Result<bool, StoreError> {
        let failed = |error: DynamoError| error.into_store(BLANKING);
        for _ in 0..ROUNDS {
            let Some((at, mut item)) = self.letter(id).await.map_err(failed)? else { return Ok(false) };
            if item.string("key") != Some(key.as_str()) {
                return Ok(false);
            }
            let remains = self.remains(id, &item).map_err(failed)?;
            for name in ["key", "headers", "message_id", "record_key", "ordering_key", "identity", "due", "due_by"] {
                item.remove(name);
            }
            letter::keep(&mut item, None, false);
            item.extend([
                ("error".to_owned(), text("")),
                ("replay".to_owned(), text(letter::IDLE)),
                ("loss_accepted".to_owned(), flag(true)),
            ]);
            if self.replace(&at, item, remains).await.map_err(failed)? {
                return Ok(true);
            }
        }
        Err(StoreError::contended(BLANKING, "other processes change the dead letter all the time"))
    }

    pub(crate) async fn blank_trail(&self, scope: ScopeId, key: &IdempotencyKey) -> Result<u64, StoreError> {
        let failed = |error: DynamoError| error.into_store(BLANKING);
        let Some(consumer) = self.consumer_of(scope).await? else { return Ok(0) };
        let lines = self.requests.all(self.requests.query(&format!("audit#{consumer}")), usize::MAX).await;
        let of_key =
            |item: &Item| item.string("key") == Some(key.as_str()) && item.number("scope") == Some(i64::from(scope.0));
        let blanked = Change::new("REMOVE #key").on("attribute_exists(pk)").name("#key", "key");
        let mut count = 0;
        for line in lines.map_err(failed)?.iter().filter(|item| of_key(item)) {
            let (pk, sk) = (line.string("pk").unwrap_or_default(), line.string("sk").unwrap_or_default());
            self.requests.update(&At::new(pk, sk), &blanked).await.map_err(failed)?;
            count += 1;
        }
        Ok(count)
    }
}

fn parts(item: &Item) -> usize {
    usize::try_from(item.number("parts").unwrap_or_default()).unwrap_or_default()
}

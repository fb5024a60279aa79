//! Dead letters: each is one item, changed only by a writer that has seen its last revision.

use aws_sdk_dynamodb::types::TransactWriteItem;
use idem_core::{
    Bytes, ConsumerName, StoreError,
    dead_letter::{DeadLetter, DeadLetterId, StoredDeadLetter},
    store::Usage,
};

use super::{DynamoBookkeeping, letter, register::ROUNDS};
use crate::{
    clock::now,
    error::DynamoError,
    item::{At, Item, Read, bytes, number, text},
    table::describe,
};

const STORING: &str = "storing a dead letter";

impl DynamoBookkeeping {
    pub(super) async fn store_letter(&self, dead_letter: &DeadLetter) -> Result<StoredDeadLetter, StoreError> {
        for _ in 0..ROUNDS {
            let identity = At::identity(dead_letter.scope, dead_letter.identity().as_bytes());
            let known = self.requests.get(&identity).await.map_err(|error| error.into_store(STORING))?;
            let stored = match known.as_ref().and_then(|item| item.number("id")).map(DeadLetterId) {
                None => self.insert(dead_letter, &identity).await?,
                Some(id) => self.fold(dead_letter, id).await?,
            };
            if let Some(stored) = stored {
                return Ok(stored);
            }
        }
        Err(StoreError::contended(STORING, "other processes change the dead letter all the time"))
    }

    /// Writes a new one; `None` where another process was faster.
    async fn insert(&self, of: &DeadLetter, identity: &At) -> Result<Option<StoredDeadLetter>, StoreError> {
        let id = DeadLetterId(self.next("dead").await?);
        let mut item = letter::new(of, id, now());
        item.insert("rev".to_owned(), number(1));
        let stored = letter::stored(&item)?;
        let kept = of.message.payload().filter(|_| letter::keeps(of));
        let actions = || {
            let owner = Item::from([("consumer".to_owned(), text(of.consumer.as_str()))]);
            let named = Item::from([("id".to_owned(), number(id.0))]);
            let is_new = Some("attribute_not_exists(pk)");
            let mut actions = vec![
                self.requests.put_action(identity, named, is_new)?,
                self.requests.put_action(&At::dead_letter(of.consumer.as_str(), id), item, is_new)?,
                self.requests.put_action(&At::dead_number(id), owner, is_new)?,
            ];
            actions.extend(self.payload_actions(id, kept)?);
            actions.extend(self.ends_count(of.scope, of.key.as_ref(), of.payload_hash().0)?);
            Ok(actions)
        };
        let actions = actions().map_err(|error: DynamoError| error.into_store(STORING))?;
        let is_done = self.requests.transact(&actions).await.map_err(|error| error.into_store(STORING))?;
        Ok(is_done.then_some(stored))
    }

    /// Counts a copy; `None` where another process has changed the letter meanwhile, or it is gone.
    async fn fold(&self, of: &DeadLetter, id: DeadLetterId) -> Result<Option<StoredDeadLetter>, StoreError> {
        let at = At::dead_letter(of.consumer.as_str(), id);
        let Some(mut item) = self.requests.get(&at).await.map_err(|error| error.into_store(STORING))? else {
            return Ok(None);
        };
        let origin = crate::item::storable(of.message.origin().as_str());
        if item.get("origin") != Some(&origin) && item.get("last_origin") != Some(&origin) {
            let copies = item.number("copies").unwrap_or(1) + 1;
            item.insert("copies".to_owned(), number(copies));
            item.insert("last_origin".to_owned(), origin);
            letter::reopen(&mut item);
        }
        letter::last(&mut item, of, now());
        let mut kept = None;
        if letter::keeps(of) && !item.is_set("kept") {
            kept = of.message.payload();
            letter::keep(&mut item, kept, true);
        }
        let stored = letter::stored(&item)?;
        let also = |book: &Self| {
            let mut also = book.payload_actions(id, kept)?;
            also.extend(book.ends_count(of.scope, of.key.as_ref(), of.payload_hash().0)?);
            Ok(also)
        };
        let also = also(self).map_err(|error: DynamoError| error.into_store(STORING))?;
        let is_done = self.replace(&at, item, also).await.map_err(|error| error.into_store(STORING))?;
        Ok(is_done.then_some(stored))
    }

    /// Writes a letter that was read, unless it was changed since; and the rest with it, or nothing.
    pub(super) async fn replace(
        &self,
        at: &At,
        mut item: Item,
        also: Vec<TransactWriteItem>,
    ) -> Result<bool, DynamoError> {
        let revision = item.number("rev").unwrap_or_default();
        item.insert("rev".to_owned(), number(revision + 1));
        // The revision is a number that was read: it has no need of a placeholder but the syntax.
        let put = aws_sdk_dynamodb::types::Put::builder()
            .table_name(&self.requests.table)
            .set_item(Some(item.into_iter().chain(at.attributes()).collect()))
            .condition_expression("rev = :rev")
            .expression_attribute_values(":rev", number(revision))
            .build()
            .map_err(|error| DynamoError::own("TransactWriteItems", "Unbuilt", error.to_string()))?;
        let mut actions = vec![TransactWriteItem::builder().put(put).build()];
        actions.extend(also);
        self.requests.transact(&actions).await
    }

    fn payload_actions(
        &self,
        id: DeadLetterId,
        payload: Option<&Bytes>,
    ) -> Result<Vec<TransactWriteItem>, DynamoError> {
        let Some(payload) = payload else { return Ok(Vec::new()) };
        let part = |(number, part): (usize, &[u8])| {
            let item = Item::from([("b".to_owned(), bytes(part.to_vec()))]);
            self.requests.put_action(&At::payload(id, number), item, None)
        };
        payload.chunks(letter::PART).enumerate().map(part).collect()
    }

    /// A letter by its number, with its place; `None` where there is none.
    pub(super) async fn letter(&self, id: DeadLetterId) -> Result<Option<(At, Item)>, DynamoError> {
        let Some(owner) = self.requests.get(&At::dead_number(id)).await? else { return Ok(None) };
        let at = At::dead_letter(owner.string("consumer").unwrap_or_default(), id);
        Ok(self.requests.get(&at).await?.map(|item| (at, item)))
    }

    pub(super) async fn mark(&self, id: DeadLetterId) -> Result<(), StoreError> {
        let doing = "marking a dead letter";
        for _ in 0..ROUNDS {
            let letter = self.letter(id).await.map_err(|error| error.into_store(doing))?;
            let Some((at, mut item)) = letter else { return Ok(()) };
            item.insert("published_at".to_owned(), number(now()));
            if self.replace(&at, item, Vec::new()).await.map_err(|error| error.into_store(doing))? {
                return Ok(());
            }
        }
        Err(StoreError::contended(doing, "other processes change the dead letter all the time"))
    }

    pub(super) async fn listed(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let newest = self.requests.query(&format!("dead#{consumer}")).scan_index_forward(false);
        let newest = newest.limit(i32::try_from(max.clamp(1, 1_000)).unwrap_or(1_000));
        let all = self.requests.all(newest, max as usize).await;
        all.map_err(|error| error.into_store("reading dead letters"))?.iter().map(letter::stored).collect()
    }

    pub(super) async fn bytes_of(&self, consumer: &ConsumerName) -> Result<u64, StoreError> {
        let all = self.requests.all(self.requests.query(&format!("dead#{consumer}")), usize::MAX).await;
        Ok(all.map_err(|error| error.into_store("measuring dead letters"))?.iter().map(letter::bytes_of).sum())
    }

    pub(super) async fn usage_of(&self, consumer: &ConsumerName) -> Result<Usage, StoreError> {
        let doing = "looking at the table's size";
        // DynamoDB counts the items of all kinds together, every six hours.
        let table = describe(&self.requests).await.map_err(|error| error.into_store(doing))?;
        let count = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
        let dead = self.requests.all(self.requests.query(&format!("dead#{consumer}")), usize::MAX).await;
        let dead = dead.map_err(|error| error.into_store(doing))?;
        Ok(Usage::default()
            .records(table.as_ref().and_then(|table| count(table.item_count)))
            .record_bytes(table.as_ref().and_then(|table| count(table.table_size_bytes)))
            .dead_letters(u64::try_from(dead.len()).ok())
            .dead_letter_bytes(Some(dead.iter().map(letter::bytes_of).sum())))
    }
}

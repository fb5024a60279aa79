//! The conformance suite of every store, on DynamoDB.

use std::{sync::Arc, time::Duration};

use idem_conformance::store::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest, taken_numbers};
use idem_core::{HandlerError, Tx, store::ScopeId};
use idem_dynamodb::{
    DynamoStore, Item,
    aws_sdk_dynamodb::{
        primitives::Blob,
        types::{AttributeValue, ConditionCheck, Put},
    },
};
use idem_testkit::proxy::dynamodb::DynamoFault;

use super::fixture::{Table, at, string, text, unique};

const EFFECTS: &str = "effect#";

/// The attributes that are instants, in microseconds.
const INSTANTS: [&str; 8] = ["at", "until", "x", "first_at", "last_at", "published_at", "replayed_at", "u"];

/// A table of its own for each case.
struct Fresh(Table);

async fn fresh() -> Fresh {
    Fresh(Table::new("case").await)
}

fn write(tx: &mut Tx<'_, DynamoStore>, effect: &Effect) -> Result<(), HandlerError> {
    let mut tx = tx.connection();
    let name = unique("effect");
    // An item has at most 400 KB.
    let mut parts: Vec<&[u8]> = effect.payload.chunks(300 << 10).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    for (number, part) in parts.into_iter().enumerate() {
        let mut item = at(&format!("{EFFECTS}{}", effect.key), &format!("{name}#{number}"));
        item.insert("payload".to_owned(), AttributeValue::B(Blob::new(part)));
        item.insert("note".to_owned(), text(&effect.note));
        item.insert("of".to_owned(), text(&effect.key));
        tx.write(Put::builder().table_name(tx.table()).set_item(Some(item)).build()?);
    }
    Ok(())
}

impl Fresh {
    /// Changes every item, past the store.
    async fn change(&self, mut change: impl FnMut(&mut Item) -> bool) {
        let mut changed = self.0.items().await;
        // Nothing else of idem's depends on the time.
        changed
            .retain(|item| ["k#", "dead#", "due#", "cleaner"].iter().any(|kind| string(item, "pk").starts_with(kind)));
        changed.retain_mut(|item| change(item));
        let put = |item| self.0.client.put_item().table_name(&self.0.name).set_item(Some(item)).send();
        for put in futures_util::future::join_all(changed.into_iter().map(put)).await {
            put.unwrap();
        }
    }
}

/// Moves the instants of an item and of its answer back. Answers whether it has any.
fn age(item: &mut Item, by: i64) -> bool {
    let mut is_aged = false;
    for name in INSTANTS {
        if let Some(AttributeValue::N(instant)) = item.get_mut(name) {
            *instant = (instant.parse::<i64>().unwrap() - by).to_string();
            is_aged = true;
        }
    }
    match item.get_mut("res") {
        Some(AttributeValue::M(answer)) => age(answer, by) || is_aged,
        _ => is_aged,
    }
}

fn is_record(item: &Item) -> bool {
    string(item, "pk").starts_with("k#") && string(item, "st") == "C"
}

impl StoreUnderTest for Fresh {
    type Store = DynamoStore;

    fn store(&self) -> Arc<DynamoStore> {
        Arc::clone(&self.0.store)
    }

    async fn another(&self) -> Arc<DynamoStore> {
        self.0.another()
    }

    async fn write(tx: &mut Tx<'_, DynamoStore>, effect: &Effect) -> Result<(), HandlerError> {
        write(tx, effect)
    }

    async fn effects(&self) -> Vec<Effect> {
        let mut effects: Vec<Effect> = Vec::new();
        for item in self.0.items_of(EFFECTS).await {
            let payload = item["payload"].as_b().unwrap().as_ref();
            match effects.last_mut().filter(|_| !string(&item, "sk").ends_with("#0")) {
                Some(effect) => effect.payload.extend_from_slice(payload),
                None => effects.push(Effect {
                    key: string(&item, "of").to_owned(),
                    payload: payload.to_vec(),
                    note: string(&item, "note").to_owned(),
                }),
            }
        }
        effects
    }

    async fn recorded(&self) -> Vec<String> {
        let mut items = self.0.items_of("k#").await;
        items.retain(is_record);
        items.iter().map(|item| string(item, "key").to_owned()).collect()
    }

    async fn audited(&self) -> Vec<(String, Option<String>)> {
        let mut lines = self.0.items_of("audit#").await;
        lines.sort_by_key(|line| string(line, "sk").to_owned());
        let key = |line: &Item| line.get("key").map(|key| key.as_s().unwrap().clone());
        lines.iter().map(|line| (string(line, "action").to_owned(), key(line))).collect()
    }

    /// Nothing of a handler's reaches DynamoDB before the commit: there is no transaction that it could end, nest or spoil.
    fn offers(&self, action: HandlerAction) -> bool {
        matches!(action, HandlerAction::DeferredFailure)
    }

    async fn act(tx: &mut Tx<'_, DynamoStore>, action: HandlerAction, _: &Effect) -> Result<(), HandlerError> {
        if action != HandlerAction::DeferredFailure {
            return Err(NotOffered.into());
        }
        let mut tx = tx.connection();
        let check = ConditionCheck::builder().table_name(tx.table()).set_key(Some(at("nothing", "-")));
        tx.write(check.condition_expression("attribute_exists(pk)").build()?);
        Ok(())
    }

    fn arranges(&self, arrangement: Arrangement) -> bool {
        match arrangement {
            Arrangement::Age(_)
            | Arrangement::HideRecords
            | Arrangement::Restore
            | Arrangement::EraseKeys
            | Arrangement::TakeNumbers => true,
            // No trigger swallows a write, a table has one primary key, and names are not changed yet.
            Arrangement::SwallowRecords | Arrangement::DropUniqueKey | Arrangement::DropSeal | Arrangement::Rename => {
                false
            }
        }
    }

    async fn arrange(&self, arrangement: Arrangement) -> Result<(), NotOffered> {
        match arrangement {
            Arrangement::Age(by) => {
                let by = i64::try_from(by.as_micros()).unwrap();
                self.change(|item| age(item, by)).await;
            }
            Arrangement::HideRecords => self.0.proxy.always(Some(DynamoFault::Refused("ResourceNotFoundException"))),
            Arrangement::Restore => self.0.proxy.always(None),
            Arrangement::EraseKeys => self.change(|item| is_record(item) && item.remove("key").is_some()).await,
            Arrangement::TakeNumbers => {
                for ScopeId(number) in taken_numbers() {
                    let mut item = at(&format!("scope#{number}"), "-");
                    item.insert("consumer".to_owned(), text("others"));
                    item.insert("tenant".to_owned(), text(number.to_string()));
                    let put = self.0.client.put_item().table_name(&self.0.name).set_item(Some(item));
                    put.send().await.unwrap();
                }
            }
            Arrangement::SwallowRecords | Arrangement::DropUniqueKey | Arrangement::DropSeal | Arrangement::Rename => {
                return Err(NotOffered);
            }
        }
        Ok(())
    }

    async fn discard(self) {
        // A claim that was given up by a dropped unit may still be on its way.
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.0.drop().await;
    }
}

/// One test a case, in a module of its own so that their names do not clash with others.
mod suite {
    idem_conformance::store_conformance!(super::fresh);
}

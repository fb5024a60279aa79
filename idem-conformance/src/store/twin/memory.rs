//! The twin as a subject of the suite, as far as the sequences need one.

use std::sync::Arc;

use idem_core::{HandlerError, Tx};

use super::super::subject::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest};
use idem_testkit::MemoryStore;

const EFFECTS: &str = "effects";

/// Between note and key, in one text.
const APART: char = '\u{1f}';

pub(super) struct Twin(Arc<MemoryStore>);

impl Twin {
    pub(super) fn of(store: MemoryStore) -> Self {
        Self(Arc::new(store))
    }
}

impl StoreUnderTest for Twin {
    type Store = MemoryStore;

    fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.0)
    }

    async fn another(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.0)
    }

    async fn write(tx: &mut Tx<'_, MemoryStore>, effect: &Effect) -> Result<(), HandlerError> {
        let key = format!("{}{APART}{}", effect.note, effect.key);
        Ok(tx.connection().append(EFFECTS, &key, effect.payload.clone()).await?)
    }

    async fn effects(&self) -> Vec<Effect> {
        let effect = |(key, payload): (String, idem_core::Bytes)| {
            let (note, key) = key.split_once(APART).unwrap_or_default();
            Effect { key: key.to_owned(), payload: payload.to_vec(), note: note.to_owned() }
        };
        self.0.rows(EFFECTS).into_iter().map(effect).collect()
    }

    async fn recorded(&self) -> Vec<String> {
        self.0.recorded_keys()
    }

    async fn audited(&self) -> Vec<(String, Option<String>)> {
        self.0.audited()
    }

    fn offers(&self, _: HandlerAction) -> bool {
        false
    }

    async fn act(_: &mut Tx<'_, MemoryStore>, _: HandlerAction, _: &Effect) -> Result<(), HandlerError> {
        Err(NotOffered.into())
    }

    fn arranges(&self, arrangement: Arrangement) -> bool {
        matches!(arrangement, Arrangement::Age(_))
    }

    async fn arrange(&self, arrangement: Arrangement) -> Result<(), NotOffered> {
        match arrangement {
            Arrangement::Age(by) => self.0.advance(by),
            Arrangement::SwallowRecords
            | Arrangement::HideRecords
            | Arrangement::Restore
            | Arrangement::EraseKeys
            | Arrangement::DropUniqueKey
            | Arrangement::DropSeal
            | Arrangement::Rename
            | Arrangement::TakeNumbers => return Err(NotOffered),
        }
        Ok(())
    }
}

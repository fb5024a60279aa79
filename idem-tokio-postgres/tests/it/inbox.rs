//! The inbox suite on this driver.

use std::sync::Arc;

use idem_conformance::inbox::{Commit, InboxUnderTest, SlotChange};
use idem_core::{
    inbox::{Inbox, InboxStore as _, NewInboxRow},
    store::ScopeId,
};

use crate::fixture::Fixture;

struct Subject {
    fixture: Option<Fixture>,
}

impl Subject {
    fn fixture(&self) -> &Fixture {
        self.fixture.as_ref().unwrap()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let Some(fixture) = self.fixture.take().filter(|_| !std::thread::panicking()) else { return };
        // The suite has no end of its own that could wait.
        let given_back = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(fixture.drop());
        });
        given_back.join().unwrap();
    }
}

async fn fresh() -> Subject {
    Subject { fixture: Some(Fixture::reused().await) }
}

impl InboxUnderTest for Subject {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.fixture().store.clone()).inbox()
    }

    async fn put_late(&self, inbox: ScopeId, row: NewInboxRow) -> Option<Commit> {
        let client = self.fixture().connect().await;
        client.batch_execute("BEGIN").await.unwrap();
        let (slot, origin) = (i16::try_from(row.slot).unwrap(), row.message.origin().as_str());
        let payload = row.message.payload().map(|payload| payload.to_vec());
        let text = "INSERT INTO inbox (consumer, slot, origin, payload) VALUES ($1, $2, $3, $4)";
        client.execute(text, &[&inbox.0, &slot, &origin, &payload]).await.unwrap();
        Some(Box::new(move || Box::pin(async move { client.batch_execute("COMMIT").await.unwrap() })))
    }

    async fn change_slots(&self, inbox: ScopeId, change: SlotChange<'_>) {
        let (set, of) = match change {
            SlotChange::Wanted => {
                ("wanted_by = 'another', wanted_until = clock_timestamp() + interval '700 ms'", String::new())
            }
            SlotChange::Lost => ("epoch = epoch + 1", String::new()),
            SlotChange::Expired(holder) => {
                ("held_by = NULL, held_until = NULL, held_login = NULL", format!("AND held_by = '{holder}'"))
            }
        };
        self.fixture().run(format!("UPDATE inbox_slots SET {set} WHERE consumer = {inbox} {of}")).await;
    }

    async fn holders(&self, inbox: ScopeId) -> Vec<(String, usize)> {
        let query = format!(
            "SELECT held_by || ' ' || count(*) FROM inbox_slots WHERE consumer = {inbox} AND held_until > clock_timestamp() GROUP BY held_by"
        );
        let holders = self.fixture().texts(query).await;
        holders
            .iter()
            .map(|text| text.split_once(' ').unwrap())
            .map(|(by, slots)| (by.to_owned(), slots.parse().unwrap()))
            .collect()
    }
}

idem_conformance::inbox_conformance!(fresh);

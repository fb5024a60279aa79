//! Two workers in a row, with a queue between them.

use std::ops::Range;

use super::{
    database::Database,
    fixture::Fixture,
    queue::{Server, on_both_servers},
    shared_chain::{self, Link},
    worker::Worker,
};

on_both_servers!(o2_o3_both_ledgers_are_exact);

struct Chain {
    shop: Fixture,
    /// On the queue of what is announced.
    accounts: Fixture,
}

impl Link for Chain {
    // Standard queues promise none.
    const ORDERED: bool = false;

    fn shop(&self) -> &Database {
        &self.shop
    }

    fn accounts(&self) -> &Database {
        &self.accounts
    }

    fn start_shop(&self, more: &[&str]) -> Worker {
        self.shop.start(&[&["--announce", &self.accounts.queue.url, "--batch", "20"], more].concat())
    }

    fn start_accounts(&self, more: &[&str]) -> Worker {
        self.accounts.start(more)
    }

    async fn send(&self, numbers: Range<i64>) {
        self.shop.send(numbers).await;
    }

    async fn arrived(&self) -> usize {
        usize::try_from(self.accounts.queue.counts().await.iter().sum::<u64>()).expect("a count")
    }

    async fn ids(&self) -> Vec<String> {
        let ids = self.accounts.queue.values("idempotencykey").await;
        ids.into_iter().map(|id| id.expect("the id")).collect()
    }
}

async fn o2_o3_both_ledgers_are_exact(server: Server) {
    let shop = Fixture::on(&server, "shop", "").await;
    let chain = Chain { shop, accounts: Fixture::on(&server, "accounts", "").await };
    shared_chain::o2_o3_both_ledgers_are_exact(&chain).await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}

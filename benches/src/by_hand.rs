//! Loops written by hand, on sqlx, with which idem is compared.

use std::{error::Error, time::Duration};

use idem_tokio_postgres::tokio_postgres::{self, Client, NoTls, Statement};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    postgres::Round,
    work::{CUSTOMERS, INSERT, Work, body},
};

const TEXTBOOK: &str = "INSERT INTO idem_bench.seen (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByHand {
    /// At least once: begin, handler, commit, and no look at duplicates.
    Transaction,
    /// The bare statement, which is all that a handler of one statement needs where duplicates do not matter.
    Autocommit,
    /// The textbook: begin, insert the key on conflict do nothing, handler, commit; on a connection that it keeps.
    Textbook,
    /// The same on a pool with its defaults, as most people have it.
    TextbookOnPool,
    /// The loop that the crate backbone-outbox 3.19 documents for its `inbox::once`, on a pool. The crate itself stands on
    /// sqlx 0.8, whose connections are not those of the sqlx 0.9 that all else is measured on, so its one statement and its
    /// table are written here as it has them.
    InboxOnce,
}

impl ByHand {
    pub(crate) async fn round(self, work: Work, url: &str, time: Duration) -> Result<Round, Box<dyn Error>> {
        let (pool, mut held) = (PgPool::connect(url).await?, PgConnection::connect(url).await?);
        let (started, mut done) = (Instant::now(), 0);
        while started.elapsed() < time {
            let customer = done * 7_919 % CUSTOMERS;
            match self {
                Self::Autocommit => work.run(&mut held, customer).await?,
                Self::Transaction | Self::Textbook => self.transaction(held.begin().await?, work, customer).await?,
                Self::TextbookOnPool | Self::InboxOnce => self.transaction(pool.begin().await?, work, customer).await?,
            }
            done += 1;
        }
        let took = started.elapsed();
        pool.close().await;
        Ok(Round { messages: done, took, effects: done })
    }

    pub(crate) async fn transaction(
        self,
        mut tx: Transaction<'_, Postgres>,
        work: Work,
        customer: usize,
    ) -> Result<(), sqlx::Error> {
        if self.claims(&mut tx).await? {
            work.run(&mut tx, customer).await?;
        }
        tx.commit().await
    }

    /// Whether the message is new; a loop that does not look says yes.
    async fn claims(self, tx: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let once = "INSERT INTO idem_bench.inbox_consumed (consumer, event_id)
           VALUES ($1,$2) ON CONFLICT (consumer, event_id) DO NOTHING";
        let claimed = match self {
            Self::Transaction | Self::Autocommit => return Ok(true),
            Self::Textbook | Self::TextbookOnPool => {
                sqlx::query(TEXTBOOK).bind("bench").bind(Uuid::new_v4().to_string())
            }
            Self::InboxOnce => sqlx::query(once).bind("bench").bind(Uuid::new_v4()),
        };
        Ok(claimed.execute(tx).await?.rows_affected() == 1)
    }
}

/// The textbook on a connection of tokio-postgres, with the insert as its work.
pub(crate) struct OnTokioPostgres {
    client: Client,
    claim: Statement,
    insert: Statement,
}

impl OnTokioPostgres {
    pub(crate) async fn connect(url: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let (claim, insert) = (client.prepare(TEXTBOOK).await?, client.prepare(INSERT).await?);
        Ok(Self { client, claim, insert })
    }

    pub(crate) async fn insert(&mut self, customer: usize) -> Result<(), tokio_postgres::Error> {
        let tx = self.client.transaction().await?;
        if tx.execute(&self.claim, &[&"bench", &Uuid::new_v4().to_string()]).await? == 1 {
            tx.execute(&self.insert, &[&Uuid::new_v4(), &body(customer)]).await?;
        }
        tx.commit().await
    }
}

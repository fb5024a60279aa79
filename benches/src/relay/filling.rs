//! Puts events into the outbox by one statement, as units would have left them there.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep_until};

use super::Failed;
use crate::{
    postgres::{RECORDS, checkpoint, empty, reset_tables},
    work::{CUSTOMERS, body},
};

/// Whose events they are.
const WRITER: &str = "bench";

/// One that puts events into the outbox, each with 200 bytes of JSON.
pub(super) struct Filling {
    connection: PgConnection,
    url: String,
}

/// Whether events bear the ordering key of one of 10,000 customers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    None,
    Customers,
}

impl Filling {
    /// Of an outbox without a row, where these destinations are declared.
    pub(super) async fn new(url: &str, destinations: &[&str]) -> Result<Self, Failed> {
        let store = empty(url, RECORDS).await?;
        store.plain_outbox(WRITER, destinations.iter().copied()).await?;
        let mut connection = PgConnection::connect(url).await?;
        reset_tables(&mut connection).await?;
        Ok(Self { connection, url: url.to_owned() })
    }

    /// Another connection to the same.
    pub(super) async fn beside(&self) -> Result<Self, Failed> {
        Ok(Self { connection: PgConnection::connect(&self.url).await?, url: self.url.clone() })
    }

    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Puts in so many events with one statement, of which each says its number, from `first` on.
    pub(super) async fn put(
        &mut self,
        destination: &str,
        first: usize,
        events: usize,
        keys: Keys,
    ) -> Result<(), sqlx::Error> {
        let ordering_key = match keys {
            Keys::None => "NULL".to_owned(),
            Keys::Customers => format!("convert_to(lpad((n * 7919 % {CUSTOMERS})::text, 5, '0'), 'UTF8')"),
        };
        let payload = body(12_345).replacen('{', r#"{"n":"#, 1).replacen("{\"n\":", "{\"n\":' || n || ',", 1);
        let put = format!(
            r#"INSERT INTO {RECORDS}.outbox (key_id, number, destination, consumer, event_key, ordering_key, event_type,
                   content_type, event_hash, headers, payload)
               SELECT e.id, nextval('{RECORDS}.outbox_numbers'), d.id, c.id, e.id::text, {ordering_key}, 'Ordered',
                   'application/json', sha256(uuid_send(e.id)),
                   ('[["idemcause","order-' || n || '"],["idemcausedby","order-' || n || '"]]')::json,
                   convert_to('{payload}', 'UTF8')
               FROM (SELECT n, gen_random_uuid() AS id FROM generate_series($2::int8, $2::int8 + $3::int8 - 1) AS n) AS e,
                   {RECORDS}.outbox_destinations AS d, {RECORDS}.consumers AS c
               WHERE d.name = $1 AND c.name = '{WRITER}' ORDER BY n"#
        );
        let query = sqlx::query(AssertSqlSafe(put)).bind(destination);
        query.bind(first as i64).bind(events as i64).execute(&mut self.connection).await?;
        Ok(())
    }

    /// A backlog with nothing left to write of it, and with the statistics that autovacuum would have made of it by then.
    pub(super) async fn backlog(&mut self, destination: &str, events: usize, keys: Keys) -> Result<(), Failed> {
        self.put(destination, 0, events, keys).await?;
        let analyze = format!("ANALYZE {RECORDS}.outbox");
        sqlx::raw_sql(AssertSqlSafe(analyze)).execute(&mut self.connection).await?;
        checkpoint(&mut self.connection).await?;
        Ok(())
    }

    /// Commits a hundredth of a second's worth of events each hundredth of a second, for ever: a producer at this rate.
    /// `is_due` gets the number of the first event and how many there are, just before their transaction is sent.
    pub(super) async fn at_rate(
        mut self,
        destination: String,
        a_second: usize,
        mut is_due: impl FnMut(usize, usize),
    ) -> Result<(), sqlx::Error> {
        const STEP: Duration = Duration::from_millis(10);
        let (mut due, mut first, events) = (Instant::now(), 0, a_second.div_ceil(100));
        loop {
            sleep_until(due).await;
            due += STEP;
            is_due(first, events);
            self.put(&destination, first, events, Keys::None).await?;
            first += events;
        }
    }
}

/// The number that an event says.
pub(super) fn number_in(payload: &[u8]) -> Option<usize> {
    let digits = payload.strip_prefix(b"{\"n\":")?.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

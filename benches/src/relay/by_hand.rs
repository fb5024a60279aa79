//! The loop written by hand: poll unpublished events by id, publish, wait for the confirmations, mark.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};
use sqlx::{Connection, PgConnection};
use tokio::time::Instant;

use super::Failed;
use crate::{kafka::Topic, work::body};

const TABLE: &str = "
    DROP TABLE IF EXISTS idem_bench.told;
    CREATE TABLE idem_bench.told (id bigserial PRIMARY KEY, key text NOT NULL, payload text NOT NULL,
                                  created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz);
    CREATE INDEX ON idem_bench.told (id) WHERE published_at IS NULL";

const NEXT: &str = "SELECT id, key, payload FROM idem_bench.told WHERE published_at IS NULL ORDER BY id LIMIT $1";
const MARK: &str = "UPDATE idem_bench.told SET published_at = now() WHERE id = ANY ($1)";

/// Publishes a backlog of so many events, by so many a poll. With `one_by_one` each is waited for before the next is sent.
pub(super) async fn publish(
    url: &str,
    topic: &Topic,
    events: usize,
    a_poll: i64,
    one_by_one: bool,
) -> Result<Duration, Failed> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(TABLE).execute(&mut connection).await?;
    let fill = "INSERT INTO idem_bench.told (key, payload)
        SELECT gen_random_uuid()::text, $1 FROM generate_series(1, $2::int8)";
    sqlx::query(fill).bind(body(12_345)).bind(i64::try_from(events)?).execute(&mut connection).await?;
    sqlx::raw_sql("ANALYZE idem_bench.told").execute(&mut connection).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut connection).await?;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &topic.brokers).set("enable.idempotence", "true").set("linger.ms", "1");
    let producer: FutureProducer = config.create()?;
    let (mut started, mut first, mut done) = (None, 0, 0);
    while done < events {
        let rows: Vec<(i64, String, String)> = sqlx::query_as(NEXT).bind(a_poll).fetch_all(&mut connection).await?;
        let mut sent = Vec::with_capacity(rows.len());
        for (_, key, payload) in &rows {
            let headers = OwnedHeaders::new().insert(Header { key: "idempotencykey", value: Some(key) });
            let record = FutureRecord::<str, str>::to(&topic.name).headers(headers).payload(payload);
            let confirmation = producer.send_result(record).map_err(|(error, _)| error)?;
            if one_by_one {
                confirmation.await?.map_err(|(error, _)| error)?;
            } else {
                sent.push(confirmation);
            }
        }
        for confirmation in sent {
            confirmation.await?.map_err(|(error, _)| error)?;
        }
        let ids: Vec<i64> = rows.iter().map(|(id, ..)| *id).collect();
        sqlx::query(MARK).bind(&ids).execute(&mut connection).await?;
        done += ids.len();
        // Timed from the first confirmations, so that connecting to the broker is left out.
        if started.is_none() {
            (started, first) = (Some(Instant::now()), done);
        }
    }
    let took = started.map(|started| started.elapsed()).unwrap_or_default();
    sqlx::raw_sql("DROP TABLE idem_bench.told").execute(&mut connection).await?;
    Ok(took.mul_f64(events as f64 / (events - first).max(1) as f64))
}

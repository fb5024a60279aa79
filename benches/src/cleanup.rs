//! Cleanup on a large table: the time of a pass, the bloat after turnovers, and the effect on claims beside it.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use idem_core::{
    CancellationToken, Cleanup, CleanupSettings, DedupConsumer, Effects, Handler, HandlerError, Message, Store as _, Tx,
};
use idem_sqlx::{PostgresOptions, PostgresStore};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::growth::fill::Filling;

/// The argument that asks for this; after it, how many rows.
pub(crate) const FLAG: &str = "--cleanup";

const ROWS: usize = 20_000_000;

/// Of so many rows, one has expired when a usual pass comes: an hour's worth where a day's is kept.
const EXPIRED: usize = 24;

const TURNOVERS: u32 = 3;

/// How long claims are measured without anything beside them.
const ALONE: Duration = Duration::from_secs(30);

struct Nothing;

impl Handler<PostgresStore> for Nothing {
    async fn handle(&self, _: &Message, _: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        Ok(())
    }
}

struct Fixture {
    schema: String,
    admin: PgConnection,
    store: Arc<PostgresStore>,
    consumer: DedupConsumer<PostgresStore>,
    rows: usize,
    /// The number of the next row.
    next: usize,
}

/// Measures with so many rows, in a schema of its own.
pub(crate) async fn measure(url: &str, arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let rows = arguments.first().map_or(Ok(ROWS), |rows| rows.replace('_', "").parse())?;
    let mut fixture = Fixture::new(url, rows).await?;
    println!("Cleanup of {rows} records of five retentions");
    fixture.fill(rows, EXPIRED).await?;
    println!("  the table and its indexes take {}", fixture.size().await?);
    let alone = fixture.claims(tokio::time::sleep(ALONE)).await?;
    println!("  p99 of a claim with its commit, alone: {alone:?}");
    fixture.pass("a usual pass", alone).await?;
    for turnover in 1..=TURNOVERS {
        fixture.fill(rows, 1).await?;
        fixture.pass(&format!("turnover {turnover}: every row of it has expired"), alone).await?;
        println!("  the table and its indexes take {}", fixture.size().await?);
    }
    fixture.fill(rows / EXPIRED, 1).await?;
    fixture.pass("a usual pass after the turnovers", alone).await?;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA {} CASCADE", fixture.schema))).execute(&mut fixture.admin).await?;
    Ok(())
}

impl Fixture {
    async fn new(url: &str, rows: usize) -> Result<Self, Box<dyn Error>> {
        let schema = format!("bench_{}", uuid::Uuid::new_v4().simple());
        let options = PostgresOptions::parse(url)?.schema(idem_sqlx::idem_sql::SchemaName::new(&schema)?);
        let store = Arc::new(options.build()?);
        store.migrate().await?;
        let consumer = DedupConsumer::builder_shared(Arc::clone(&store), "bench").effects(Effects::InTransaction);
        let consumer = consumer.handler(Nothing).lanes(1).build()?;
        Ok(Self { schema, admin: PgConnection::connect(url).await?, store, consumer, rows, next: 0 })
    }

    /// Adds rows of five retentions, one of `expired` of which has expired.
    async fn fill(&mut self, rows: usize, expired: usize) -> Result<(), Box<dyn Error>> {
        let expires = format!(
            "CASE WHEN n % {expired} = 0 THEN now() - n % 3600 * interval '1 s'
             ELSE now() + (ARRAY['2 h', '1 d', '7 d', '30 d', '365 d'])[1 + n % 5]::interval END"
        );
        let filling = Filling { schema: &self.schema, consumers: 5, expires: &expires };
        filling.fill(&mut self.admin, self.next..self.next + rows).await?;
        self.next += rows;
        Ok(())
    }

    async fn size(&mut self) -> Result<String, Box<dyn Error>> {
        let text = format!("SELECT pg_size_pretty(pg_total_relation_size('{}.processed_messages'))", self.schema);
        Ok(sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut self.admin).await?)
    }

    /// One cycle of cleanup, with claims beside it.
    async fn pass(&self, name: &str, alone: Duration) -> Result<(), Box<dyn Error>> {
        let steps_max = u32::try_from(self.rows / 1_000)?.clamp(1_000, 1_000_000);
        let settings = CleanupSettings::default().steps_max(steps_max);
        let mut cleanup = Cleanup::new(self.store.cleaner(), settings)?;
        let (done, begun) = (CancellationToken::new(), Instant::now());
        let cleaning = async {
            let report = cleanup.cycle().await;
            done.cancel();
            (report, begun.elapsed())
        };
        let ((report, took), beside) = tokio::join!(cleaning, self.claims(done.cancelled()));
        let (report, beside) = (report?, beside?);
        let ratio = beside.as_secs_f64() / alone.as_secs_f64();
        println!("  {name}: {} rows in {took:.1?}; p99 of claims beside it {beside:?}, {ratio:.2}x", report.rows());
        Ok(())
    }

    /// The p99 of claims, one after the other, until this is over.
    async fn claims(&self, until: impl Future<Output = ()>) -> Result<Duration, Box<dyn Error>> {
        tokio::pin!(until);
        let (mut took, mut is_over) = (Vec::new(), false);
        // At least enough of them for a p99.
        while !is_over || took.len() < 1_000 {
            is_over = is_over || futures_util::poll!(&mut until).is_ready();
            let message = Message::new("{}").with_header("idempotencykey", uuid::Uuid::new_v4().to_string());
            let begun = Instant::now();
            self.consumer.process(vec![message]).await?;
            took.push(begun.elapsed());
        }
        took.sort_unstable();
        Ok(took[took.len() * 99 / 100])
    }
}

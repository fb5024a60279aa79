//! A rolling deploy: workers of two releases side by side, killed and started again, while the schema goes up under them
//! and down again. The older release is this build; the newer one needs a migration that this build does not know.

use std::time::Duration;

use futures_util::future::join;
use idem_core::failpoint;
use idem_sql::{
    AppliedMigration, Dialect, Migration, MigrationStatements, POSTGRES_MIGRATIONS, SchemaName, pending_migrations,
    version_to_revert,
};
use idem_testkit::memory::QueueOptions;
use idem_tests::plan::{Plan, StorePlan, WORKER_FAILED};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::{fixture::Fixture, matrix::BATCH};
use crate::support::{
    child::{Child, Ended},
    database::Kind,
};

/// It only adds, so that workers that know nothing of it go on.
const UP: &str = "CREATE TABLE {schema}.notes (message_key text NOT NULL);
ALTER TABLE {schema}.processed_messages ADD note text;";

/// It refuses to drop rows that were written.
const DOWN: &str = "DO $idem$
BEGIN
    IF EXISTS (SELECT FROM {schema}.notes) THEN
        RAISE EXCEPTION 'there are notes: move them away first';
    END IF;
END
$idem$;
ALTER TABLE {schema}.processed_messages DROP note;
DROP TABLE {schema}.notes;";

/// The migrations of the newer release.
fn newer_migrations() -> Vec<Migration> {
    let mut newest = *POSTGRES_MIGRATIONS.last().unwrap();
    newest.version += 1;
    newest.name = "notes";
    newest.up_template = UP;
    newest.down_template = DOWN;
    [POSTGRES_MIGRATIONS, &[newest]].concat()
}

struct Schema {
    connection: PgConnection,
    name: SchemaName,
}

impl Schema {
    async fn of(fixture: &Fixture) -> Self {
        let StorePlan::PostgresStore { url } = &fixture.plan.store else { panic!("{:?}", fixture.plan.store) };
        Self { connection: PgConnection::connect(url).await.unwrap(), name: SchemaName::default() }
    }

    async fn run(&mut self, text: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.connection).await.map(drop)
    }

    /// One step of the newer release's runner, by the contract of [`Migration`].
    async fn step(&mut self, is_up: bool) -> Result<(), sqlx::Error> {
        let statements = MigrationStatements::new(Dialect::Postgres, &self.name);
        self.run("BEGIN").await?;
        self.run(&statements.bootstrap).await?;
        self.run(&statements.lock.unwrap()).await?;
        let rows = sqlx::query(AssertSqlSafe(statements.applied)).fetch_all(&mut self.connection).await?;
        let applied: Vec<_> = rows
            .iter()
            .map(|row| AppliedMigration {
                version: row.get::<i32, _>("version").try_into().unwrap(),
                name: row.get("name"),
                checksum: row.get("checksum"),
                oldest_worker: row.get("oldest_worker"),
            })
            .collect();
        let known = newer_migrations();
        if is_up {
            let [migration] = pending_migrations(&known, &applied).unwrap() else { panic!("{applied:?}") };
            self.run(&migration.up(&self.name)).await?;
            let record = sqlx::query(AssertSqlSafe(statements.record)).bind(i32::try_from(migration.version).unwrap());
            let record = record.bind(migration.name).bind(migration.checksum()).bind(migration.oldest_worker);
            record.execute(&mut self.connection).await?;
        } else {
            let migration = version_to_revert(&known, &applied).unwrap().unwrap();
            self.run(&migration.down(&self.name)).await?;
            let forget = sqlx::query(AssertSqlSafe(statements.forget));
            forget.bind(i32::try_from(migration.version).unwrap()).execute(&mut self.connection).await?;
        }
        self.run("COMMIT").await
    }

    /// How many notes there are, and of how many messages.
    async fn notes(&mut self) -> (i64, i64) {
        let text = "SELECT count(*), count(DISTINCT message_key) FROM idem.notes";
        sqlx::query_as(text).fetch_one(&mut self.connection).await.unwrap()
    }
}

/// Both workers at once on a new wave, each killed at this failpoint if it comes by.
async fn side_by_side(fixture: &mut Fixture, older: &Plan, newer: &Plan, point: &str) -> Result<(), String> {
    fixture.publish_wave();
    let armed = |skip: u64| format!("{point}={skip}+1*abort");
    let (one, other) = (fixture.rng.u64(..3), fixture.rng.u64(..3));
    let workers = [fixture.start(older, &armed(one)), fixture.start(newer, &armed(other))];
    let [older, newer] = workers.map(Child::ended);
    let (older, newer) = join(older, newer).await;
    let died_or_done = |ended: Ended| match ended.aborted() || ended.status.success() {
        true => Ok(()),
        false => ended.unexpected(&format!("died at {point}, or been done")),
    };
    died_or_done(older?)?;
    died_or_done(newer?)
}

async fn deploy_and_roll_back(fixture: &mut Fixture) -> Result<(), String> {
    let older = Plan { handler_ms: 2, ..fixture.plan.clone() };
    let newer = Plan { newer: true, ..older.clone() };
    let points =
        [failpoint::CLAIMED, failpoint::HANDLER_MID, failpoint::COMMIT_SENT, failpoint::COMMIT_OK, failpoint::ACK_SENT];
    let mut schema = Schema::of(fixture).await;

    // The newer release before its migration.
    let too_early = fixture.start(&newer, "").ended().await?;
    if too_early.status.code() != Some(WORKER_FAILED.into()) {
        return too_early.unexpected("refused the schema");
    }

    // The migration, under the load of an older worker.
    fixture.publish_wave();
    let under_load = fixture.start(&older, "");
    let delivered = fixture.queue.stats().delivered;
    fixture.queue.until(|stats| stats.delivered > delivered).await;
    schema.step(true).await.map_err(|error| format!("the migration: {error}"))?;
    let ended = under_load.ended().await?;
    if !ended.status.success() {
        return ended.unexpected("gone on through the migration");
    }

    for point in points {
        side_by_side(fixture, &older, &newer, point).await?;
    }
    let (notes, messages) = schema.notes().await;
    if notes == 0 || notes != messages {
        return Err(format!("the newer workers wrote {notes} notes on {messages} messages"));
    }
    // The deploy is rolled back: older workers alone, on the newer schema.
    fixture.recover_and_check().await?;

    // Data that the newer release has written is never dropped.
    let refused = schema.step(false).await.expect_err("there are notes");
    assert!(refused.to_string().contains("move them away first"), "{refused}");
    schema.run("ROLLBACK; DELETE FROM idem.notes").await.unwrap();
    schema.step(false).await.map_err(|error| format!("the way back: {error}"))?;
    fixture.publish_wave();
    fixture.recover_and_check().await.map(drop)
}

/// J12: two releases, two schemas, both workers killed and started again side by side; then rolled back.
#[tokio::test]
async fn j12_a_rolling_deploy_and_its_way_back_keep_the_ledger_exact() {
    let mut fixture = Fixture::new("rolling-deploy", Kind::PostgresStore, BATCH, QueueOptions::default()).await;
    if let Err(wrong) = deploy_and_roll_back(&mut fixture).await {
        panic!("{wrong}");
    }
    fixture.remove().await;
}

/// A migration that waits for a lock makes every worker wait behind it; so it gives up, and is run again.
#[tokio::test]
async fn j12_a_migration_gives_up_a_lock_that_it_does_not_get() {
    let fixture = Fixture::new("migration-lock", Kind::PostgresStore, BATCH, QueueOptions::default()).await;
    let (mut schema, mut reader) = (Schema::of(&fixture).await, Schema::of(&fixture).await);
    reader.run("BEGIN; SELECT FROM idem.processed_messages").await.unwrap();
    // It only ends a test that hangs.
    let migration = tokio::time::timeout(Duration::from_secs(60), schema.step(true)).await;
    let error = migration.expect("it gives up").expect_err("the table is read");
    let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
    assert_eq!(code.as_deref(), Some("55P03"), "{error}");
    schema.run("ROLLBACK").await.unwrap();
    reader.run("ROLLBACK").await.unwrap();
    schema.step(true).await.unwrap();
    fixture.remove().await;
}

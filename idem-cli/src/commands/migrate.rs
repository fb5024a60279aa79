//! `idem migrate`.

use std::fmt::Write as _;

use idem_sql::{Dialect, MigrationStatements, POSTGRES_MIGRATIONS, SchemaName, postgres_roles};
use serde_json::Value;

use crate::{
    command_line::{Migrate, Target},
    commands::progress::beside_one,
    confirm::confirm,
    database::{self, Database},
    exit::Failure,
    report::{Report, Row, Table},
};

pub(crate) async fn run(target: &Target, command: Migrate) -> Result<Report, Failure> {
    match command {
        Migrate::Up => up(target).await,
        Migrate::Down(yes) => down(target, yes.yes).await,
        Migrate::Status => status(target).await,
        Migrate::Print { roles: true } => Ok(Report::script(postgres_roles(&target.schema))),
        Migrate::Print { roles: false } => Ok(Report::script(script(&target.schema))),
    }
}

async fn up(target: &Target) -> Result<Report, Failure> {
    let behind = sequences_behind(target).await?;
    let schema = &target.schema;
    let applied = beside_one(&format!("migrating schema {schema}"), database::store(target)?.migrate()).await?;
    let report = behind.rows().iter().fold(Report::new(), |report, row| {
        let (sequence, next, highest) = (row.text("sequence_name"), row.number("next_value"), row.number("highest"));
        report.line(format!(
            "sequence {sequence} gave {next} next, and its table has rows up to {highest}: it was set forward"
        ))
    });
    if applied.is_empty() {
        return Ok(report.line(format!("schema {schema} is up to date")));
    }
    let report = applied
        .iter()
        .fold(report, |report, version| report.line(format!("schema {schema}: migration {version} was applied")));
    Ok(report.line("Roles and their rights: idem migrate print --roles | psql -1 \"$DATABASE_URL\""))
}

/// The sequences that a migration sets forward, because they are behind their rows.
async fn sequences_behind(target: &Target) -> Result<Table, Failure> {
    let mut database = Database::open(target).await?;
    let exists = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_proc WHERE oid = pg_catalog.to_regprocedure('{schema}.sequences_behind()')::oid";
    match database.number(exists, &[]).await? {
        0 => Ok(Table::default()),
        _ => database.table("SELECT sequence_name, next_value, highest FROM {schema}.sequences_behind()", &[]).await,
    }
}

async fn down(target: &Target, is_yes: bool) -> Result<Report, Failure> {
    confirm(&format!("This takes the newest migration of schema {} back", target.schema), is_yes)?;
    Ok(match database::store(target)?.migrate_down().await? {
        Some(version) => Report::said(format!("migration {version} was taken back")),
        None => Report::said("there is no migration to take back"),
    })
}

async fn status(target: &Target) -> Result<Report, Failure> {
    let mut database = Database::open(target).await?;
    let exists = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass('{schema}.migrations')::oid";
    let applied = match database.number(exists, &[]).await? {
        0 => Table::default(),
        _ => {
            let query =
                "SELECT version, name, checksum, applied_at, oldest_worker FROM {schema}.migrations ORDER BY version";
            database.table(query, &[]).await?
        }
    };
    let known = POSTGRES_MIGRATIONS.iter().map(|migration| {
        let version = i64::from(migration.version);
        let row = applied.rows().iter().find(|row| row.number("version") == version);
        let state = match row {
            None => "to come",
            Some(row) if row.text("checksum") == migration.checksum() => "applied",
            Some(_) => "applied with another text",
        };
        let applied_at = row.map_or(Value::Null, |row| row.get("applied_at").clone());
        Row::new([
            ("version", version.into()),
            ("name", migration.name.into()),
            ("state", state.into()),
            ("applied_at", applied_at),
            ("oldest_worker", migration.oldest_worker.into()),
        ])
    });
    Ok(Report::new().table("migrations", known.collect()))
}

/// Every migration, each in a transaction with its row, as the runner does it. It is for an empty schema: one that was
/// applied already fails, and changes nothing.
fn script(schema: &SchemaName) -> String {
    let statements = MigrationStatements::new(Dialect::Postgres, schema);
    let mut script = String::from("-- idem's migrations, to be run by psql with ON_ERROR_STOP.\n");
    for migration in POSTGRES_MIGRATIONS {
        let lock = statements.lock.as_deref().unwrap_or("SELECT 1");
        // Numbers, names and digests of this build's own: no value comes from outside.
        let record = format!(
            "INSERT INTO {}.migrations (version, name, checksum, oldest_worker) VALUES ({}, '{}', '{}', '{}');",
            schema.quoted(),
            migration.version,
            migration.name,
            migration.checksum(),
            migration.oldest_worker
        );
        // Writing to a String cannot fail.
        let _ =
            write!(script, "BEGIN;\n{}\n{lock};\n{}\n{record}\nCOMMIT;\n", statements.bootstrap, migration.up(schema));
    }
    script
}

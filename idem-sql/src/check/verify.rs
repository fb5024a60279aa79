//! Whether a database's schema can keep the promise: decided from facts, before the first message.

use idem_core::StoreError;

use crate::text::{migrations::POSTGRES_MIGRATIONS, name::SchemaName, plan::runs_on};

/// The facts of a PostgreSQL schema that start-up reads, by [`schema_facts`](crate::PostgresStatements::schema_facts) and
/// [`schema_version`](crate::PostgresStatements::schema_version). Descriptions are normalised by the statement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SchemaFacts {
    /// The schema that was looked at.
    pub schema: SchemaName,
    /// Whether the table of migrations is there.
    pub migrations_table: bool,
    /// The newest migration, if there is one.
    pub version: Option<u32>,
    /// The oldest release whose workers run on that version.
    pub oldest_worker: Option<String>,
    /// The kind of `processed_messages`: `table`, `unlogged table`, `partitioned table`; `None` if it is missing.
    pub table_kind: Option<String>,
    /// Its columns: name, type, collation, `not null`.
    pub columns: Vec<String>,
    /// Its indexes: `unique (consumer, key_id) valid`.
    pub indexes: Vec<String>,
    /// The seal's triggers, as the table and the state: `units enabled`, `disabled`, `not deferred`, `altered`.
    pub seal_triggers: Vec<String>,
    /// Triggers, rules and row level security that may swallow rows of `processed_messages` or `units`.
    pub suppressors: Vec<String>,
    /// The schema's functions, with the types of their arguments.
    pub functions: Vec<String>,
    /// Rights that a worker needs and the role that asked lacks.
    pub missing_privileges: Vec<String>,
    /// Whether ordinary triggers fire in this session (`session_replication_role` is not `replica`).
    pub triggers_fire: bool,
    /// The sequences that are behind the rows of their columns.
    pub sequences_behind: Vec<SequenceBehind>,
}

/// One thing about the schema that makes the guarantee impossible, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}. {cure}")]
#[non_exhaustive]
pub struct SchemaProblem {
    /// The problem, with the value found.
    pub problem: String,
    /// The cure, as a command or a statement.
    pub cure: String,
}

impl SchemaProblem {
    /// All problems as one refusal, with each cure once.
    #[must_use]
    pub fn refusal(problems: &[Self]) -> StoreError {
        let mut cures: Vec<&str> = Vec::with_capacity(problems.len());
        for Self { cure, .. } in problems {
            if !cures.contains(&cure.as_str()) {
                cures.push(cure);
            }
        }
        let problem = problems.iter().map(|problem| problem.problem.as_str()).collect::<Vec<_>>().join("; ");
        StoreError::Schema { problem, cure: cures.join(". ") }
    }
}

const COLUMNS: [&str; 9] = [
    "key_id uuid not null",
    "processed_at timestamp with time zone not null",
    "expires_at timestamp with time zone not null",
    "consumer integer not null",
    "hash_id integer not null",
    "processed_by integer not null",
    "idempotency_key text collate C not null",
    "payload_hash bytea not null",
    "alone boolean not null",
];
/// The tables whose rows refuse a COMMIT that idem did not send, and which of them do.
const SEALED: [(&str, &str); 2] = [("units", ""), ("processed_messages", "WHEN (NEW.alone) ")];
const KEY_COLUMNS: &str = "unique (consumer, key_id)";
const EXPIRY_COLUMNS: &str = "index (expires_at)";
const FUNCTIONS: [&str; 44] = [
    "any_due(text, bigint)",
    "as_json(bytea)",
    "count_events(integer, text)",
    "count_messages(integer, bigint[], bigint)",
    "declare_destination(text)",
    "due_now(bigint[], text)",
    "end_due(bigint[], text[], integer, bigint[], text[], bigint[], text[], text[])",
    "first_sent(smallint, timestamp with time zone, timestamp with time zone, timestamp with time zone)",
    "keep_payload(bigint, bytea)",
    "hold_slots(integer, text, bigint, boolean)",
    "interned_numbers(text, text[])",
    "key_id(text)",
    "lead_due(integer[], bytea[])",
    "lease_destination(integer, text, bigint, bigint, text, bigint, boolean)",
    "let_followers_go(integer, bytea[])",
    "let_next_go()",
    "lock_due(integer[])",
    "mark_behind(integer, bigint[])",
    "next_events(integer, bigint, bigint)",
    "next_messages(integer, bigint[], bigint[], bigint[], bigint[], bigint, bigint, bigint)",
    "open_inbox(integer, integer)",
    "publish(text, text, bytea, text, text, text, jsonb, text)",
    PUT_ASIDE,
    "raise_pending(integer, text, bigint)",
    "read_records(integer[], uuid[])",
    "read_results(integer[], uuid[])",
    "refuse_other_answer()",
    "refuse_other_first_name()",
    "refuse_unsealed_commit()",
    "relays(integer)",
    "release_destination(integer, text)",
    "release_due(bigint[], integer)",
    "release_slots(integer, text, bigint[], bigint[])",
    "remove_expired(text, bigint, bigint)",
    "remove_messages(integer, text, bigint[], bigint[], bigint[], bigint[])",
    "renew_due(bigint[], integer)",
    "retry_events(bigint[], text[], boolean)",
    "rows_ahead(integer[], bytea[])",
    SEQUENCES_BEHIND,
    "server_identity()",
    "settle_events(integer, bigint[], text[], json)",
    "skip_events(bigint[], text[])",
    "take_due(text, integer, bigint, bigint, bigint)",
    "unmark_waits(integer[])",
];

const PUT_ASIDE: &str = "put_aside(integer, text, uuid, text, bytea, integer, text, integer, text, bytea, bigint, boolean, json, text, \
                         text, bytea, bytea, bytea, text, bigint)";

/// The function that compares sequences with the rows of their columns.
pub(crate) const SEQUENCES_BEHIND: &str = "sequences_behind()";

/// A sequence whose next value a row of its column has already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceBehind {
    /// The table, without its schema.
    pub table: String,
    /// The sequence, quoted and with its schema.
    pub sequence: String,
    /// The value that it gives next.
    pub next: i64,
    /// The highest value in the table.
    pub highest: i64,
}

impl SequenceBehind {
    /// Whether a worker cannot do its bookkeeping without it. The other sequences are not drawn from, or give no key, and any worker may
    /// write the rows beside them: `idem doctor` warns of those.
    fn stops_workers(&self) -> bool {
        matches!(self.table.as_str(), "audit" | "dead_letters" | "worker_runs" | "inbox")
    }

    fn problem(&self, schema: &SchemaName) -> SchemaProblem {
        let Self { table, sequence, next, highest } = self;
        SchemaProblem {
            problem: format!(
                "the sequence {sequence} gives {next} next, and {}.{table} has rows up to {highest}, as after a logical replication or a \
                 restore of the rows alone",
                schema.quoted()
            ),
            cure: format!("{}, or SELECT pg_catalog.setval('{sequence}', {highest})", migrate(schema)),
        }
    }

    /// The refusal of a database with these, which names each sequence and the cure.
    #[must_use]
    pub fn refusal(schema: &SchemaName, behind: &[Self]) -> StoreError {
        SchemaProblem::refusal(&behind.iter().map(|sequence| sequence.problem(schema)).collect::<Vec<_>>())
    }
}

/// The cure of a schema that lacks something. The command has a schema of its own by default, which need not be the worker's.
fn migrate(schema: &SchemaName) -> String {
    match schema.as_str() {
        SchemaName::DEFAULT => "Run `idem migrate up`".to_owned(),
        other => format!("Run `idem migrate up --schema {other}`"),
    }
}

/// Decides whether a worker of this build may start on the schema.
///
/// # Errors
/// Every problem at once, each with its cure, so that an operator repairs all of them in one go.
pub fn verify_schema(facts: &SchemaFacts) -> Result<(), Vec<SchemaProblem>> {
    let mut problems = Vec::new();
    check_version(facts, &mut problems);
    // Without the table, all else would only repeat that it is missing.
    if facts.migrations_table && facts.table_kind.is_some() {
        check_columns(facts, &mut problems);
        check_indexes(facts, &mut problems);
        check_seal(facts, &mut problems);
        check_suppressors(facts, &mut problems);
        check_privileges(facts, &mut problems);
        let behind = facts.sequences_behind.iter().filter(|sequence| sequence.stops_workers());
        problems.extend(behind.map(|sequence| sequence.problem(&facts.schema)));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn check_version(facts: &SchemaFacts, problems: &mut Vec<SchemaProblem>) {
    let schema = &facts.schema;
    let known = POSTGRES_MIGRATIONS.last().map_or(0, |newest| newest.version);
    match facts.version {
        None => add(problems, format!("schema {schema} holds no migration of idem"), migrate(schema)),
        Some(found) if found < known => {
            add(
                problems,
                format!("schema {schema} is at version {found} and this build needs {known}"),
                migrate(schema),
            );
        }
        Some(found) if found > known && !runs_on(facts.oldest_worker.as_deref()) => {
            let oldest = facts.oldest_worker.as_deref().unwrap_or("unknown");
            add(
                problems,
                format!(
                    "schema {schema} is at version {found}, this build ({}) knows versions up to {known}, and version \
                     {found} needs workers of {oldest} or later",
                    env!("CARGO_PKG_VERSION")
                ),
                "Start a later release of the worker",
            );
        }
        Some(_) if facts.table_kind.is_none() => {
            let problem = format!("table {schema}.processed_messages is missing although its migration was applied");
            add(
                problems,
                problem,
                "Restore the table from a backup: without its records, redeliveries run a second time",
            );
        }
        Some(_) => {}
    }
}

fn check_columns(facts: &SchemaFacts, problems: &mut Vec<SchemaProblem>) {
    let schema = &facts.schema;
    if facts.table_kind.as_deref() != Some("table") {
        let kind = facts.table_kind.as_deref().unwrap_or("nothing");
        let cure = "Make it an ordinary logged table: an unlogged one is empty after a crash, and partitions let a key in twice";
        add(problems, format!("{schema}.processed_messages is of kind {kind:?}"), cure);
    }
    for wanted in COLUMNS {
        let name = wanted.split(' ').next().unwrap_or(wanted);
        let found = facts.columns.iter().find(|column| column.split(' ').next() == Some(name));
        match found {
            Some(found) if found == wanted => {}
            Some(found) => add(
                problems,
                format!("{schema}.processed_messages has the column {found:?} where {wanted:?} is needed"),
                "Stop the workers and put the column back with ALTER TABLE: another type or collation takes different keys for one",
            ),
            None => add(
                problems,
                format!("{schema}.processed_messages lacks the column {wanted:?}"),
                migrate(&facts.schema),
            ),
        }
    }
}

fn check_indexes(facts: &SchemaFacts, problems: &mut Vec<SchemaProblem>) {
    let quoted = facts.schema.quoted();
    let state_of = |columns: &str| {
        let states = facts.indexes.iter().filter_map(|index| index.strip_prefix(columns)).map(str::trim);
        states.fold(None, |best, state| if best == Some("valid") { best } else { Some(state) })
    };
    match state_of(KEY_COLUMNS) {
        Some("valid") => {}
        state => add(
            problems,
            format!(
                "{quoted}.processed_messages has no valid unique index on (consumer, key_id): it is {}",
                state.unwrap_or("missing")
            ),
            format!(
                "Stop the workers, drop an invalid index, and run \
                 ALTER TABLE {quoted}.processed_messages ADD CONSTRAINT processed_messages_pkey PRIMARY KEY (consumer, key_id)"
            ),
        ),
    }
    match state_of(EXPIRY_COLUMNS) {
        Some("valid") => {}
        state => add(
            problems,
            format!(
                "{quoted}.processed_messages has no valid index on (expires_at): it is {}",
                state.unwrap_or("missing")
            ),
            format!(
                "Drop an invalid index, and run CREATE INDEX CONCURRENTLY idx_processed_messages_expires ON \
                 {quoted}.processed_messages (expires_at)"
            ),
        ),
    }
    for other in facts.indexes.iter().filter(|index| index.starts_with("unique") && !index.starts_with(KEY_COLUMNS)) {
        let cure =
            "Drop it: a fresh key that meets it raises a unique violation, and its message would be dead-lettered";
        add(problems, format!("{quoted}.processed_messages has another unique index: {other}"), cure);
    }
}

fn check_seal(facts: &SchemaFacts, problems: &mut Vec<SchemaProblem>) {
    let quoted = facts.schema.quoted();
    for (table, which) in SEALED {
        let state = facts.seal_triggers.iter().find_map(|trigger| trigger.strip_prefix(table)?.strip_prefix(' '));
        if state == Some("enabled") {
            continue;
        }
        let (state, table) = (state.unwrap_or("missing"), format!("{quoted}.{table}"));
        add(
            problems,
            format!("the trigger refuse_unsealed_commit on {table} is {state}"),
            format!(
                "Run ALTER TABLE {table} ENABLE TRIGGER refuse_unsealed_commit if it is disabled; otherwise run \
                 DROP TRIGGER IF EXISTS refuse_unsealed_commit ON {table}; CREATE CONSTRAINT TRIGGER \
                 refuse_unsealed_commit AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {which}EXECUTE \
                 FUNCTION {quoted}.refuse_unsealed_commit()"
            ),
        );
    }
    if !facts.triggers_fire {
        add(
            problems,
            "session_replication_role is replica, so the trigger that guards COMMIT does not fire".to_owned(),
            "Remove the setting from the role, the database and the connection's options",
        );
    }
    for wanted in FUNCTIONS {
        if !facts.functions.iter().any(|function| function == wanted) {
            add(problems, format!("the function {quoted}.{wanted} is missing"), migrate(&facts.schema));
        }
    }
}

fn check_suppressors(facts: &SchemaFacts, problems: &mut Vec<SchemaProblem>) {
    for suppressor in &facts.suppressors {
        add(
            problems,
            format!("schema {} has a {suppressor}, which may swallow the rows that idem inserts", facts.schema),
            "Drop or disable it, and keep the application's own rules on tables of its own",
        );
    }
}

fn check_privileges(facts: &SchemaFacts, problems: &mut Vec<SchemaProblem>) {
    if !facts.missing_privileges.is_empty() {
        add(
            problems,
            format!("the worker's role lacks {} in schema {}", facts.missing_privileges.join(", "), facts.schema),
            "Run the role script, then GRANT idem_worker TO the role that the worker connects as",
        );
    }
}

fn add(problems: &mut Vec<SchemaProblem>, problem: String, cure: impl Into<String>) {
    problems.push(SchemaProblem { problem, cure: cure.into() });
}

#[cfg(test)]
mod tests;

use super::*;

#[test]
fn s6_every_statement_names_the_schema_quoted_and_no_other() {
    let statements = PostgresStatements::new(&SchemaName::new("select").unwrap());
    let without_tables = ["seal", "guard", "server_facts", "schema_facts", "read_only_default", "terminate_unit"];
    for (name, text) in statements.all() {
        assert!(!text.contains("{schema}"), "{name}");
        assert_eq!(text.contains("\"select\"."), !without_tables.contains(&name), "{name}");
        assert!(!text.contains(';'), "{name} is more than one statement");
    }
}

/// Failures B3, B7, B20: the conflict target is named, and a value is never updated by a claim.
#[test]
fn b7_the_claim_names_its_conflict_target() {
    let statements = PostgresStatements::new(&SchemaName::default());
    for claim in [statements.claim, statements.claim_one, statements.claim_to_ask] {
        assert!(claim.contains("ON CONFLICT (consumer, key_id) DO NOTHING"));
    }
}

#[test]
fn a_limit_of_zero_is_not_for_ever() {
    let limits =
        UnitLimits { lock: Duration::ZERO, statement: Duration::from_micros(10), idle_in_transaction: Duration::MAX };
    assert_eq!(
        begin_unit(Some(limits), None),
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = 1; SET LOCAL statement_timeout = 1; \
         SET LOCAL idle_in_transaction_session_timeout = 2147483647"
    );
}

/// A limit of one lock that is no shorter than that of the statement bounds nothing.
#[test]
fn only_a_shorter_limit_of_one_lock_is_set() {
    let statement = Duration::from_secs(2);
    let text = |lock| begin_unit(Some(UnitLimits { lock, statement, idle_in_transaction: statement }), None);
    assert!(
        text(Duration::from_secs(1)).contains("SET LOCAL lock_timeout = 1000; SET LOCAL statement_timeout = 2000;")
    );
    assert!(!text(statement).contains("lock_timeout"));
}

#[test]
fn a_session_that_others_share_says_how_durable_its_commits_are() {
    let second = Duration::from_secs(1);
    let limits = UnitLimits { lock: second, statement: second, idle_in_transaction: second };
    assert!(begin_unit(Some(limits), Some("on")).ends_with("; SET LOCAL synchronous_commit = on"));
}

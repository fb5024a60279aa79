//! S11: nothing that another role puts into a schema of the operator's search_path takes a statement of the command over.

#[path = "../../../idem-sql/tests/shared/usurpers.rs"]
mod shared;

use crate::fixture::{Answer, Fixture, command};

/// The command with the schema of the usurpers in its search_path.
fn run(fixture: &Fixture, arguments: &str) -> Answer {
    let url = format!("{}?options=-c%20search_path%3D{}", fixture.url, fixture.schema);
    let variables = [("DATABASE_URL", url.as_str()), ("IDEM_SCHEMA", &fixture.schema), ("IDEM_OPERATOR", "ada")];
    command(&variables, &arguments.split_whitespace().collect::<Vec<_>>())
}

#[tokio::test]
async fn s11_no_statement_of_the_command_can_be_taken_over() {
    let fixture = Fixture::new().await;
    fixture.refused.lock().unwrap().push("order-9".to_owned());
    fixture.deliver(&["order-1", "order-2", "order-3"]).await;
    let sources = [
        include_str!("../../src/commands/doctor.sql"),
        include_str!("../../src/commands/doctor.rs"),
        include_str!("../../src/commands/consumers.rs"),
        include_str!("../../src/commands/dead_letters.rs"),
        include_str!("../../src/commands/stuck.rs"),
    ];
    let rows = "INSERT INTO dead_letters (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, reason, attempts, error,
            payload, payload_bytes, has_payload)
        SELECT id, 'a', 'a', key_id('order-9'), 'order-9', '', 'permanent', 1, 'no', 'x', 1, true FROM consumers;
        INSERT INTO message_attempts (key_id, consumer, attempts, idempotency_key, payload_hash)
        SELECT key_id('order-8'), id, 2, 'order-8', '' FROM consumers;";
    fixture.run(rows).await;
    fixture.run(&shared::usurpers(&fixture.schema, sources)).await;
    let done = |arguments: &str| {
        let answer = run(&fixture, arguments);
        // The doctor finds the usurpers, which is another matter.
        assert!(answer.status == 0 || arguments.starts_with("doctor"), "{arguments}: {answer:?}");
        assert!(!answer.err.contains("usurper") && !answer.err.contains("point"), "{arguments}: {answer:?}");
        answer.out
    };
    let doctor = done("doctor --broker-horizon 8d --json");
    assert!(doctor.contains("has the name of an operator of the server's"), "{doctor}");
    // Here idem's schema is the first of the search_path, as with a login of its name.
    assert!(doctor.contains("come into idem's own schema"), "{doctor}");
    for arguments in [
        "doctor",
        "stats",
        "stuck",
        "workers",
        "consumers list",
        "consumers pause orders --reason x",
        "consumers resume orders",
        "show order-1",
        "dead-letters list --consumer orders --from 2020-01-01T00:00:00Z",
        "dead-letters show 1 --payload",
        "dead-letters replay 1 --new-key order-9b --yes",
        "dead-letters drop 1 --because x --yes",
        "forget order-1 --consumer orders --reason x --yes",
        "forget --consumer orders --from 2020-01-01T00:00:00Z --to 2021-01-01T00:00:00Z --reason x --dry-run",
        "forgotten list",
        "retention set orders 24h --existing --yes",
        "erase order-2 --reason x --yes",
        "consumers prune orders --yes",
        "consumers rebind orders --yes",
        "consumers rename orders orders-2 --yes",
        "cleanup",
        "cleanup --dry-run",
        "migrate status",
        "migrate up",
    ] {
        done(arguments);
    }
    let batch = fixture.texts("SELECT batch FROM forgotten").await.remove(0);
    done(&format!("forgotten restore {batch} --yes"));
    fixture.drop().await;
}

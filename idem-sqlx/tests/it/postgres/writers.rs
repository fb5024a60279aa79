//! The function by which programs in other languages publish, held against the plain outbox of Rust.

use idem_core::Event;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use super::{
    consumers::{Write, consumer, msg, process},
    fixture::{Fixture, until},
    roles::{arrange, give_up, login},
};

/// An event with all that one can have.
fn event() -> Event {
    let event = Event::to("payments").event_type("Paid").content_type("text/plain").ordering_key("é");
    event.header("b", "ü").header("aa", "").header("traceparent", "00-1").body("x")
}

/// The call for it.
const CALL: &str = r#"publish('payments', 'é-1', 'x', event_type => 'Paid', content_type => 'text/plain', ordering_key => 'é',
    headers => '{"traceparent": "00-2", "aa": "", "b": "ü"}', writer => 'idem_writer')"#;

async fn answer(connection: &mut PgConnection, call: &str) -> Result<bool, String> {
    let answer = sqlx::query_scalar(AssertSqlSafe(format!("SELECT {call}"))).fetch_one(connection).await;
    answer.map_err(|error| {
        let error = error.into_database_error().unwrap();
        format!("{} {}", error.code().unwrap(), error.message())
    })
}

/// O118: the event of the function and that of a plain outbox in Rust are one and the same: numbers of names, identity, headers and
/// hash, whichever comes first.
#[tokio::test]
async fn o118_an_event_by_sql_is_that_of_a_plain_outbox() {
    let columns = "SELECT concat_ws(' ', o.consumer, o.destination, o.key_id, o.event_key, o.ordering_key, o.event_type, o.content_type,
            encode(o.event_hash, 'hex'), o.payload, replace(o.headers::jsonb::text, '00-2', '00-1'), c.retention, c.handler, d.id_form)
        FROM outbox AS o JOIN consumers AS c ON c.id = o.consumer JOIN outbox_destinations AS d ON d.id = o.destination";
    let mut rows = Vec::new();
    for rust_first in [true, false] {
        let fixture = Fixture::new().await;
        let mut connection = fixture.connect().await;
        if !rust_first {
            fixture.run("SELECT declare_destination('payments'), declare_destination('payments')").await;
            assert_eq!(answer(&mut connection, CALL).await, Ok(true));
            rows.push(fixture.text(columns).await);
        }
        let plain = fixture.store.plain_outbox("idem_writer", ["payments"]).await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        plain.publish(&mut transaction, "é-1", event()).await.unwrap();
        transaction.commit().await.unwrap();
        if rust_first {
            rows.push(fixture.text(columns).await);
        }
        assert_eq!(answer(&mut connection, CALL).await, Ok(false));
        let other = CALL.replace("'x'", "'y'");
        let refused = answer(&mut connection, &other).await.unwrap_err();
        assert!(refused.starts_with("23505") && refused.contains("'é-1'"), "{refused}");
        assert_eq!(fixture.text("SELECT count(*) FROM outbox").await, "1");
        fixture.drop().await;
    }
    assert_eq!(rows[0], rows[1]);
}

/// O118: what a publisher in Rust is refused, a call is refused too, before anything is written.
#[tokio::test]
async fn o118_what_no_destination_takes_is_refused_by_sql_too() {
    let fixture = Fixture::new().await;
    assert_eq!(process(&consumer(fixture.store.clone(), Write), vec![msg("a")]).await, "P");
    let small = "UPDATE outbox_destinations SET relayed_by = 'r', relayed_until = now() + interval '1 hour', message_bytes_max = 3
        WHERE name = 'small'";
    fixture.run(format!("SELECT declare_destination('payments'), declare_destination('small'); {small}")).await;
    // The consumer's name is a login too.
    fixture.run(format!("CREATE ROLE {}_x; UPDATE consumers SET name = '{0}_x'", fixture.schema)).await;
    let mut connection = fixture.connect().await;
    let fine = [
        "'payments', repeat('k', 255), convert_to(repeat('x', 1000000), 'UTF8')",
        "'small', 'k', 'xyz'",
        "'payments', 'k', '', repeat('t', 255), repeat('c', 255), repeat('o', 1024), jsonb_build_object(repeat('h', 255), 'v', 'n', NULL)",
    ];
    let consumers = format!("'payments', 'k', '', writer => '{}_x'", fixture.schema);
    let refused = [
        ("22023", "'nowhere', 'k', ''"),
        ("22023", "NULL, 'k', ''"),
        ("22023", "'payments', '', ''"),
        ("22023", "'payments', NULL, ''"),
        ("22023", "'payments', repeat('k', 256), ''"),
        ("22023", "'payments', 'a' || chr(133), ''"),
        ("22023", "'payments', 'a' || chr(10), ''"),
        ("22023", "'payments', 'k', NULL"),
        ("22023", "'payments', 'k', '', ''"),
        ("22023", "'payments', 'k', '', repeat('t', 256)"),
        ("22023", "'payments', 'k', '', NULL, 'a' || chr(9)"),
        ("22023", "'payments', 'k', '', ordering_key => repeat('é', 513)"),
        ("22023", "'payments', 'k', '', headers => '[]'"),
        ("22023", "'payments', 'k', '', headers => 'null'"),
        ("22023", r#"'payments', 'k', '', headers => '{"a": 1}'"#),
        ("22023", r#"'payments', 'k', '', headers => '{"a b": ""}'"#),
        ("22023", r#"'payments', 'k', '', headers => '{"": ""}'"#),
        ("22023", r#"'payments', 'k', '', headers => '{"IdempotencyKey": ""}'"#),
        ("22023", r#"'payments', 'k', '', headers => '{"CE-id": ""}'"#),
        ("22023", r#"'payments', 'k', '', headers => '{"cloudEvents_id": ""}'"#),
        ("22023", "'payments', 'k', '', headers => jsonb_build_object('a', chr(127))"),
        ("22023", consumers.as_str()),
        ("54000", "'payments', 'k', convert_to(repeat('x', 1000001), 'UTF8')"),
        ("54000", "'small', 'k', 'wxyz'"),
        ("54000", "'payments', 'k', '', headers => jsonb_build_object('a', repeat('x', 4194304))"),
    ];
    for (code, arguments) in refused {
        let refused = answer(&mut connection, &format!("publish({arguments})")).await.expect_err(arguments);
        assert!(refused.starts_with(code), "{arguments}: {refused}");
    }
    assert_eq!(fixture.text("SELECT count(*) FROM outbox").await, "0");
    for arguments in fine {
        assert_eq!(answer(&mut connection, &format!("publish({arguments})")).await, Ok(true), "{arguments}");
    }
    // Beyond the relay's lease the limits of the destination are unknown.
    fixture.run("UPDATE outbox_destinations SET relayed_until = now() - interval '1 hour' WHERE name = 'small'").await;
    assert_eq!(answer(&mut connection, "publish('small', 'k2', 'wxyz')").await, Ok(true));
    fixture.run(format!("DROP ROLE {}_x", fixture.schema)).await;
    fixture.drop().await;
}

/// O119: a login in `idem_writer` publishes as itself and as roles that it has, and sees and changes nothing else; one without the
/// group, or with another of idem's groups, does not publish.
#[tokio::test]
async fn o119_a_writer_publishes_under_its_own_names_and_has_no_other_right() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture.run("SELECT declare_destination('payments')").await;
    let own = login(&fixture, "idem_writer").await;
    fixture
        .run(format!("CREATE ROLE {0}_team; CREATE ROLE {0}_other; GRANT {0}_team TO {0}_idem_writer", fixture.schema))
        .await;
    let mut writer = own.connect().await.unwrap();
    let call = |writer: &str| format!("publish('payments', 'k', 'x', writer => '{}_{writer}')", fixture.schema);
    assert_eq!(answer(&mut writer, "publish('payments', 'k', 'x')").await, Ok(true));
    assert_eq!(
        answer(&mut writer, &call("idem_writer")).await,
        Ok(false),
        "the login is the writer unless one is given"
    );
    assert_eq!(answer(&mut writer, &call("team")).await, Ok(true));
    for (name, role) in [("another role", call("other")), ("no role", call("nobody"))] {
        let refused = answer(&mut writer, &role).await.expect_err(name);
        assert!(refused.starts_with("42501") && refused.contains("may not publish as"), "{name}: {refused}");
    }
    for forbidden in [
        "declare_destination('mine')",
        "skip_events('{1}', '{k}')",
        "retry_events('{1}', '{k}', true)",
        "count(*) FROM outbox",
        "count(*) FROM consumers",
        "nextval('outbox_numbers')",
        "key_id('k')",
    ] {
        let refused = answer(&mut writer, forbidden).await.expect_err(forbidden);
        assert!(refused.starts_with("42501"), "{forbidden}: {refused}");
    }
    for group in ["idem_worker", "idem_cleanup", "idem_auditor"] {
        let mut connection = login(&fixture, group).await.connect().await.unwrap();
        let refused = answer(&mut connection, "publish('payments', 'k', 'x')").await.expect_err(group);
        assert!(refused.starts_with("42501"), "{group}: {refused}");
    }
    drop(writer);
    fixture.run(format!("DROP ROLE {0}_team; DROP ROLE {0}_other", fixture.schema)).await;
    give_up(fixture, &["idem_writer", "idem_worker", "idem_cleanup", "idem_auditor"]).await;
}

/// O118: two transactions that publish one event at once give one row, and a rollback leaves none.
#[tokio::test]
async fn o118_an_event_by_sql_goes_with_its_transaction() {
    let fixture = Fixture::new().await;
    fixture.run("SELECT declare_destination('payments')").await;
    let (mut one, mut other) = (fixture.connect().await, fixture.connect().await);
    let call = "publish('payments', 'k', 'x')";
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.unwrap();
    for (is_committed, second) in [(false, true), (true, false)] {
        let mut transaction = one.begin().await.unwrap();
        assert_eq!(answer(&mut transaction, call).await, Ok(true));
        let waiting = tokio::spawn(async move {
            let answered = answer(&mut other, call).await;
            (other, answered)
        });
        let waits = format!("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {pid}");
        until(&fixture.admin, &waits).await;
        if is_committed {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        let (connection, answered) = waiting.await.unwrap();
        assert_eq!(answered, Ok(second));
        other = connection;
        fixture.run("DELETE FROM outbox").await;
    }
    fixture.drop().await;
}

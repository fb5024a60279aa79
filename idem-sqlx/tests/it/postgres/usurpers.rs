//! S11, S15: nothing that another role puts into a schema of the search_path takes a statement of idem's over.

#[path = "../../../../idem-sql/tests/shared/usurpers.rs"]
mod shared;

use std::{sync::Arc, time::Duration};

use idem_core::{
    Store as _,
    cleanup::{Cleanup, CleanupSettings, Expiring, Removal},
    dead_letter::{DeadLetterId, DueEnd, DueRoom},
    store::{AuditEntry, Bookkeeping as _, Claimed, ControlState, UnitOfWork as _},
};
use idem_sql::PostgresStatements;
use sqlx::AssertSqlSafe;

use super::{
    consumers::{Write, claim_of, consumer, keys, messages, msg, options, process},
    fixture::Fixture,
};

/// S11: an operator that fits better had the claim write an expiry of yesterday, so that cleanup took fresh records.
#[tokio::test]
async fn s11_an_expiry_is_not_another_roles_to_say() {
    let fixture = Fixture::new().await;
    let operator =
        "CREATE FUNCTION yesterday(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT interval '-1 day' $$;
        CREATE OPERATOR * (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = yesterday)";
    fixture.run(operator).await;
    let consumer = consumer(fixture.store.clone(), Write);
    assert_eq!(process(&consumer, vec![msg("a")]).await + &process(&consumer, vec![msg("b"), msg("c")]).await, "PPP");
    let expired = "SELECT count(*) FROM processed_messages WHERE expires_at < now() + interval '1 day'";
    assert_eq!(fixture.text(expired).await, "0");
    fixture.drop().await;
}

/// S11: for every name that a statement uses, and any types that it is given, the server's own is taken.
#[tokio::test]
async fn s11_no_statement_can_be_taken_over() {
    let fixture = Fixture::new().await;
    let statements = PostgresStatements::new(&fixture.schema);
    fixture.run(shared::usurpers(fixture.schema.as_str(), statements.all().map(|(_, text)| text))).await;
    let mut connection = fixture.connect().await;
    let planted: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_operator WHERE oprnamespace = current_schema()::regnamespace::oid")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert!(planted > 500, "{planted}");
    for (name, text) in statements.all() {
        let prepared = sqlx::raw_sql(AssertSqlSafe(format!("PREPARE {name} AS {text}"))).execute(&mut connection).await;
        prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    live(&fixture).await;
    fixture.drop().await;
}

/// The names in a function's text that are looked up in the caller's search_path. It knows the grammar of the seal's function,
/// and takes every other word for a name or an operator that is looked up: `IS DISTINCT FROM`, `IN` and `CASE` are.
fn looked_up(body: &str) -> Vec<String> {
    const GRAMMAR: [&str; 11] =
        ["BEGIN", "IF", "true", "THEN", "RETURN", "NULL", "END", "RAISE", "EXCEPTION", "USING", "OPERATOR"];
    let lines: Vec<&str> = body.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    // Text between quotes is a value.
    let mut code = lines.join(" ").split('\'').step_by(2).collect::<Vec<_>>().join(" ");
    for option in ["ERRCODE", "MESSAGE", "DETAIL", "HINT"] {
        code = code.replace(&format!(" {option} = "), " ");
    }
    let words = code.split(|c: char| c.is_whitespace() || "(),;".contains(c)).flat_map(|word| word.split("::"));
    let is_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let is_qualified = |word: &str| {
        let name = word.strip_prefix("pg_catalog.").unwrap_or_default();
        !name.is_empty() && (name.chars().all(is_name) || !name.contains(is_name))
    };
    let bare = words.filter(|word| !word.is_empty() && !GRAMMAR.contains(word) && !is_qualified(word));
    bare.map(str::to_owned).collect()
}

#[test]
fn s11_what_is_looked_up_is_seen() {
    assert_eq!(looked_up("IF pg_catalog.now() OPERATOR(pg_catalog.=) 'now()'::pg_catalog.text -- now()"), [""; 0]);
    assert_eq!(looked_up("RAISE EXCEPTION USING MESSAGE = 'a' || now()::text, HINT = 'b';"), ["||", "now", "text"]);
    let unspaced = "pg_catalog.now()::pg_catalog.text=pg_catalog.version()";
    assert_eq!(looked_up(unspaced), ["pg_catalog.text=pg_catalog.version"]);
    assert_eq!(looked_up("IF pg_catalog.now() IS DISTINCT FROM NULL THEN"), ["IS", "DISTINCT", "FROM"]);
}

/// S11: the calls of idem's own functions do not depend on the caller's search_path. Only two have no search_path of their own,
/// that of the seal, which would cost every unit, and one that is put into statements as it stands; so everything in them is
/// qualified.
#[tokio::test]
async fn s11_every_function_has_a_search_path_of_its_own() {
    let fixture = Fixture::new().await;
    let without = "FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)";
    assert_eq!(
        fixture.texts(format!("SELECT proname {without} ORDER BY proname")).await,
        ["first_sent", "refuse_unsealed_commit"]
    );
    let bodies = fixture.texts(format!("SELECT prosrc {without} ORDER BY proname")).await;
    assert!(bodies[1].contains("pg_catalog.pg_current_xact_id()"), "{bodies:?}");
    assert_eq!(looked_up(&bodies[1]), [""; 0], "{bodies:?}");
    // Its one function is coalesce, which is grammar.
    let rest = bodies[0].replace("OPERATOR(pg_catalog.<=)", "").replace("coalesce(", "");
    assert!(!rest.contains(['(', '<', '>', '=', '+', '-', '*', '/', '|', '~']), "{rest}");
    fixture.drop().await;
}

/// Objects by which another role would have an unsealed COMMIT pass: an operator by which all texts are equal, a setting that
/// is always the transaction's id, and an id that is always the setting.
const PERMITS: &str = "
    CREATE ROLE {usurper}; CREATE SCHEMA {usurper} AUTHORIZATION {usurper};
    BEGIN;
    SET LOCAL ROLE {usurper};
    SET LOCAL search_path = {usurper};
    CREATE FUNCTION equal(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = equal);
    CREATE FUNCTION unequal(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false';
    CREATE OPERATOR <> (LEFTARG = text, RIGHTARG = text, FUNCTION = unequal);
    CREATE FUNCTION current_setting(text, bool) RETURNS text LANGUAGE sql
        AS 'SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text';
    CREATE FUNCTION pg_current_xact_id() RETURNS text LANGUAGE sql
        AS $$ SELECT pg_catalog.current_setting('idem.sealed', true) $$;
    COMMIT;";

/// Puts the usurper before the server's own names, and a type in pg_temp, which is searched for types before all else. With a
/// value of that type no COMMIT passes.
const IN_FRONT: &str = "
    SET ROLE {usurper};
    CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (false);
    RESET ROLE;
    SET search_path = {usurper}, pg_catalog, {schema}";

/// S11: a COMMIT passes by the seal of its own transaction alone, with anything before the server's own names in the
/// search_path.
#[tokio::test]
async fn s11_nobody_permits_a_commit_in_the_seals_place() {
    let fixture = Fixture::new().await;
    let usurper = format!("{}_usurper", fixture.schema);
    let of_usurper = |text: &str| text.replace("{usurper}", &usurper).replace("{schema}", fixture.schema.as_str());
    fixture.run(of_usurper(PERMITS)).await;
    for row in [
        "units (xid, run, lane) VALUES (7, 1, 1)",
        "processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash, alone)
            VALUES (pg_catalog.gen_random_uuid(), 'infinity', 1, 1, 1, 'a', pg_catalog.sha256(''), true)",
    ] {
        let mut connection = fixture.connect().await;
        sqlx::raw_sql(AssertSqlSafe(of_usurper(IN_FRONT))).execute(&mut connection).await.unwrap();
        let seal =
            "SELECT pg_catalog.set_config('idem.sealed', pg_catalog.pg_current_xact_id()::pg_catalog.text, true)";
        // The setting is NULL until its first use, and empty from then on.
        for (permit, passes) in [("SELECT", false), (seal, true), ("SELECT", false)] {
            let unit = format!("BEGIN; INSERT INTO {row}; {permit}; COMMIT");
            let done = sqlx::raw_sql(AssertSqlSafe(unit)).execute(&mut connection).await;
            let code = done.err().and_then(|error| Some(error.as_database_error()?.code()?.into_owned()));
            assert_eq!(code.as_deref(), (!passes).then_some("ID001"), "{row}: {permit}");
        }
        // Or its end would meet that of the role.
        sqlx::raw_sql("DROP DOMAIN pg_temp.text").execute(&mut connection).await.unwrap();
    }
    let committed = "SELECT (SELECT count(*) FROM units) || ' ' || (SELECT count(*) FROM processed_messages)";
    assert_eq!(fixture.text(committed).await, "1 1", "only what was sealed");
    fixture.run(format!("DROP OWNED BY {usurper} CASCADE; DROP ROLE {usurper}")).await;
    fixture.drop().await;
}

/// A worker's life: everything that a store is asked to do.
async fn live(fixture: &Fixture) {
    let store = &fixture.store;
    store.bookkeeping().verify().await.unwrap();
    let working = consumer(store.clone(), Write);
    assert_eq!(process(&working, messages(&keys(3))).await, "PPP");
    assert_eq!(process(&working, messages(&keys(4))).await, "DDDP");
    let (claim, run) = claim_of(store, "other").await;
    assert_eq!(store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash).await.unwrap(), 1);
    store.bookkeeping().uncount_attempt(claim.scope, &claim.key, claim.hash).await.unwrap();
    store.bookkeeping().end_attempts(claim.scope, &claim.key, claim.hash).await.unwrap();
    let name = idem_core::ConsumerName::new("by-hand").unwrap();
    assert!(store.bookkeeping().dead_letters(&name, 10).await.unwrap().is_empty());
    assert_eq!(store.bookkeeping().due_now(&[DeadLetterId(1)], "ann").await.unwrap(), 0);
    let letter = "INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload,
            ordering_key)
        SELECT id, 'q/1', 'q/1', 'permanent', 1, '', 'x', 1, true, 'o' FROM consumers WHERE name = 'by-hand'";
    fixture.run(letter).await;
    let letter = DeadLetterId(fixture.text("SELECT max(id) FROM dead_letters").await.parse().unwrap());
    assert_eq!(store.bookkeeping().due_now(&[letter], "ann").await.unwrap(), 1);
    let room = DueRoom::rows(5);
    assert_eq!(store.bookkeeping().take_due(&name, run, room).await.unwrap().len(), 1);
    store.bookkeeping().renew_due(run, &[letter]).await.unwrap();
    store.bookkeeping().release_due(run, &[letter]).await.unwrap();
    assert_eq!(store.bookkeeping().take_due(&name, run, room).await.unwrap().len(), 1);
    store.bookkeeping().end_due(run, &[(letter, DueEnd::Processed)]).await.unwrap();
    assert!(store.bookkeeping().take_due(&name, run, room).await.unwrap().is_empty());
    store.bookkeeping().set_control(claim.scope, ControlState::Paused, "ada", "a look").await.unwrap();
    assert_eq!(store.bookkeeping().control(claim.scope).await.unwrap().state, ControlState::Paused);
    let entry = AuditEntry::new("ada".to_owned(), "start", claim.scope, String::new());
    store.bookkeeping().audit(&entry).await.unwrap();
    let mut cleaner = Arc::new(store.clone()).cleaner();
    assert!(cleaner.may_delete().await.unwrap());
    cleaner.preview(&CleanupSettings::default()).await.unwrap();
    cleaner.backlog().await.unwrap();
    cleaner.last().await.unwrap();
    for kind in Expiring::ALL {
        let removal = Removal { kind, kept: Duration::from_secs(60), rows_max: 10, timeout: Duration::from_secs(30) };
        cleaner.remove(&removal).await.unwrap();
    }
    let mut cycle = Cleanup::new(cleaner, CleanupSettings::default()).unwrap();
    cycle.cycle().await.unwrap();
}

/// S15: where a claim is made to deny what it inserted, its own rows are no duplicates.
#[tokio::test]
async fn s15_what_a_unit_has_inserted_itself_is_no_duplicate() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (claim, run) = claim_of(store, "a").await;
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options(run, Duration::from_secs(5))).await.unwrap();
    let claims = [claim];
    assert_eq!(unit.claim(&claims).await.unwrap(), [Claimed::Inserted]);
    assert_eq!(unit.read(&claims).await.unwrap(), [None]);
    let (lane, committed) = unit.commit().await;
    committed.unwrap();
    let mut unit = store.begin(lane.unwrap(), options(run, Duration::from_secs(5))).await.unwrap();
    assert_eq!(unit.claim(&claims).await.unwrap(), [Claimed::NotInserted]);
    assert!(unit.read(&claims).await.unwrap()[0].is_some(), "once it is committed, it is one");
    unit.rollback().await.unwrap();
    fixture.drop().await;
}

//! Values of requests that nothing may keep, looked for everywhere.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, query_scalar, raw_sql};

use super::{client::Request, fixture::Fixture, seen::admin};

/// The forms in which a value may stand somewhere: as it is, as the hexadecimal digits of its bytes, and the part of its base64 that
/// does not depend on its neighbours, at each of three places.
async fn forms(fixture: &Fixture, value: &str) -> Vec<String> {
    let text = "SELECT ARRAY[$1, encode(convert_to($1, 'UTF8'), 'hex')] || ARRAY(
        SELECT substring(coded FROM (before * 4 + 2) / 3 + 1 FOR (before + length($1)) * 4 / 3 - (before * 4 + 2) / 3)
        FROM generate_series(0, 2) AS before, translate(
            encode(decode(repeat('00', before), 'hex') || convert_to($1, 'UTF8'), 'base64'), E'\n', '') AS coded)";
    query_scalar(text).bind(value).fetch_one(fixture.pool()).await.expect("its forms")
}

/// Where in the whole database a value stands: every table of every schema, the server's own too, and the statements of its sessions. Bytes are shown as hexadecimal digits, and JSON as its text.
async fn found(fixture: &Fixture, value: &str) -> BTreeSet<String> {
    let forms = forms(fixture, value).await;
    let tables =
        "SELECT format('%I.%I', nspname, relname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relkind IN ('r', 'p', 'm') UNION SELECT 'pg_catalog.pg_stat_activity'";
    let tables: Vec<String> = query_scalar(tables).fetch_all(fixture.pool()).await.expect("the tables");
    let mut found = BTreeSet::new();
    for table in tables {
        let text = format!(
            "SELECT EXISTS (SELECT FROM {table} AS the_row, unnest($1) AS form WHERE strpos(the_row::text, form) > 0)"
        );
        let stands: bool = query_scalar(AssertSqlSafe(text))
            .bind(&forms)
            .fetch_one(fixture.pool())
            .await
            .unwrap_or_else(|error| panic!("{table}: {error}"));
        found.extend(stands.then_some(table));
    }
    found
}

fn named(tables: &[&str]) -> BTreeSet<String> {
    tables.iter().map(|table| (*table).to_owned()).collect()
}

/// The search sees a value in each form and each schema.
async fn the_search_sees(fixture: &Fixture, value: &str) {
    let planted = "CREATE SCHEMA elsewhere;
        CREATE TABLE elsewhere.bytes AS SELECT convert_to('before ' || '{}' || ' behind', 'UTF8') AS of;
        CREATE TABLE elsewhere.documents AS SELECT jsonb_build_object('a', jsonb_build_array('{}')) AS of;
        CREATE TABLE public.texts AS SELECT '{}' AS of;
        CREATE TABLE idem.coded AS SELECT encode(convert_to('a{}', 'UTF8'), 'base64') AS of";
    raw_sql(AssertSqlSafe(planted.replace("{}", value))).execute(fixture.pool()).await.expect("the tables");
    let all = ["elsewhere.bytes", "elsewhere.documents", "idem.coded", "public.texts"];
    assert_eq!(found(fixture, value).await, named(&all));
}

/// W25: what a request brings along stands nowhere, whatever became of it: not in the database, its page, its metrics, nor in its log
/// at TRACE. The part that is in its answer stands where the answer is kept, and where the service's own tables have it.
#[tokio::test(flavor = "multi_thread")]
async fn w25_a_request_stands_nowhere_but_in_its_answer() {
    for store in ["sqlx", "tokio-postgres"] {
        let fixture = Fixture::new("http").await;
        let secret = std::env::temp_dir().join(format!("idem-hash-secret-{:016x}", fastrand::u64(..)));
        std::fs::write(&secret, "k".repeat(64)).expect("a file");
        let secrets = format!("1={}", secret.display());
        let flags = ["--store", store, "--hash-secret", &secrets, "--limit", "10000", "--admin", "127.0.0.1:0"];
        let api = fixture.start_with(&fixture.arguments_on(&fixture.url, &flags), &[("RUST_LOG", "trace")]).await;
        let refuse = "ALTER TABLE balances ADD CONSTRAINT refuses CHECK (cents < 9000)";
        raw_sql(refuse).execute(fixture.pool()).await.expect("a constraint");

        let of = |part: &str| format!("canary{part}{:08x}", fastrand::u32(..));
        let (answered, body, header, query) = (of("answered"), of("body"), of("header"), of("query"));
        let with = |key: &str, json: &str| {
            let request = Request::new("POST", &format!("/transactions?card={query}")).tenant("acme").body(json);
            request.header("content-type", "application/json").header("idempotency-key", key).header("x-card", &header)
        };
        let pay = |key: &str, cents: i64| {
            let json = serde_json::json!({ "customer": answered, "cents": cents, "card": body });
            with(key, &json.to_string())
        };
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for (what, request, status) in [
            ("the first", pay("order-1", 1_000).header("traceparent", trace), 201),
            ("a repeat", pay("order-1", 1_000), 201),
            ("another try of it", pay("order-1", 1_000).header("idempotency-attempt", "2"), 201),
            ("another request", pay("order-1", 1_001), 422),
            ("a refusal", pay("order-2", 0), 422),
            ("a decline", pay("order-3", 10_001), 402),
            ("a failure", pay("order-4", 8_500), 500),
            ("malformed", with("order-5", &format!("{{\"customer\":\"{body}")), 400),
            ("without a key", pay("order-6", 1).without("idempotency-key"), 400),
            ("of a stranger", pay("order-7", 1).without("authorization"), 401),
            ("damaged", pay("order-8", 1).header("content-digest", "sha-256=:AAAA:"), 400),
            ("too large", pay("order-9", 1).header("x-more", &header.repeat(1_000)), 431),
        ] {
            let answer = request.answer(&api.address).await;
            assert_eq!(answer.status, status, "{what}: {answer:?}");
        }
        // Each way to leave something was gone, and was looked at.
        let rows =
            "SELECT (SELECT count(*) FROM idem.processed_messages), (SELECT count(*) FROM idem.processed_results),
            (SELECT count(*) FROM idem.audit), (SELECT count(*) FROM idem.dead_letters)";
        let rows: (i64, i64, i64, i64) = sqlx::query_as(rows).fetch_one(fixture.pool()).await.expect("the records");
        assert_eq!(rows, (3, 3, 1, 0), "records, answers, conflicts, and dead letters");

        for unseen in [&body, &header, &query] {
            assert_eq!(found(&fixture, unseen).await, BTreeSet::new(), "{unseen}");
        }
        let own = ["idem.processed_results", "public.balances", "public.declines", "public.transactions"];
        assert_eq!(found(&fixture, &answered).await, named(&own));
        the_search_sees(&fixture, &body).await;

        let admin = admin(&api);
        let get = async |path| Request::new("GET", path).answer(&admin).await.text();
        let mut told = vec![("the page", get("/").await), ("metrics", get("/metrics").await)];
        let ended = api.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
        assert!(
            ended.log.contains("DEBUG") && ended.log.contains("POST /transactions order-4"),
            "it tells of requests: {}",
            ended.log
        );
        told.extend([("the log", ended.log), ("the output", ended.output)]);
        for value in [&body, &header, &query, &answered] {
            for form in forms(&fixture, value).await {
                for (place, text) in &told {
                    let leak = text.lines().find(|line| line.contains(&form));
                    assert!(leak.is_none(), "{store}: {place} has it: {}", leak.unwrap_or_default());
                }
            }
        }
        std::fs::remove_file(secret).expect("it is there");
        fixture.remove().await;
    }
}

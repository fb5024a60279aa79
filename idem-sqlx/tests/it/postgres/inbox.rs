//! The inbox suite on PostgreSQL, and what its statements read.

use std::{sync::Arc, time::Duration};

use idem_conformance::inbox::{Commit, InboxUnderTest, SlotChange};
use idem_core::{
    CancellationToken, ConsumerName, IdempotencyKey, Message, Worker,
    inbox::{Inbox, InboxSource, InboxStore as _, NewInboxRow, Reading, Receiver},
    store::ScopeId,
};
use idem_testkit::memory::{Broker, QueueOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, Row as _};

use super::{
    consumers::{Write, consumer, msg},
    fixture::Fixture,
    roles::{arrange, give_up, login},
};

struct Subject {
    fixture: Option<Fixture>,
}

impl Subject {
    fn fixture(&self) -> &Fixture {
        self.fixture.as_ref().unwrap()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let Some(fixture) = self.fixture.take().filter(|_| !std::thread::panicking()) else { return };
        // The suite has no end of its own that could wait.
        let given_back = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(fixture.drop());
        });
        given_back.join().unwrap();
    }
}

async fn fresh() -> Subject {
    Subject { fixture: Some(Fixture::reused().await) }
}

fn inbox(fixture: &Fixture) -> Arc<dyn Inbox> {
    Arc::new(fixture.store.clone()).inbox()
}

impl InboxUnderTest for Subject {
    fn inbox(&self) -> Arc<dyn Inbox> {
        inbox(self.fixture())
    }

    async fn put_late(&self, inbox: ScopeId, row: NewInboxRow) -> Option<Commit> {
        let mut connection = self.fixture().connect().await;
        sqlx::raw_sql("BEGIN").execute(&mut connection).await.unwrap();
        sqlx::query("INSERT INTO inbox (consumer, slot, origin, payload) VALUES ($1, $2, $3, $4)")
            .bind(inbox.0)
            .bind(i16::try_from(row.slot).unwrap())
            .bind(row.message.origin().as_str())
            .bind(row.message.payload().map(|payload| payload.to_vec()))
            .execute(&mut connection)
            .await
            .unwrap();
        Some(Box::new(move || {
            Box::pin(async move {
                sqlx::raw_sql("COMMIT").execute(&mut connection).await.unwrap();
            })
        }))
    }

    async fn change_slots(&self, inbox: ScopeId, change: SlotChange<'_>) {
        let set = match change {
            SlotChange::Wanted => {
                "wanted_by = 'another', wanted_until = clock_timestamp() + interval '700 ms'".to_owned()
            }
            SlotChange::Lost => "epoch = epoch + 1".to_owned(),
            SlotChange::Expired(_) => "held_by = NULL, held_until = NULL, held_login = NULL".to_owned(),
        };
        let of =
            if let SlotChange::Expired(holder) = change { format!("AND held_by = '{holder}'") } else { String::new() };
        self.fixture().run(format!("UPDATE inbox_slots SET {set} WHERE consumer = {inbox} {of}")).await;
    }

    async fn holders(&self, inbox: ScopeId) -> Vec<(String, usize)> {
        let query = format!(
            "SELECT held_by || ' ' || count(*) FROM inbox_slots WHERE consumer = {inbox} AND held_until > clock_timestamp() GROUP BY held_by"
        );
        let holders = self.fixture().texts(query).await;
        holders
            .iter()
            .map(|text| text.split_once(' ').unwrap())
            .map(|(by, slots)| (by.to_owned(), slots.parse().unwrap()))
            .collect()
    }
}

idem_conformance::inbox_conformance!(fresh);

fn name(consumer: &str) -> ConsumerName {
    ConsumerName::new(consumer).unwrap()
}

/// The pages that a statement touches, in its functions too, in a session that has run it before: a first call reads the catalogue.
pub(super) async fn buffers(connection: &mut PgConnection, statement: &str) -> u64 {
    let explained = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}");
    let mut pages = 0;
    for _ in 0..2 {
        let row = sqlx::raw_sql(AssertSqlSafe(explained.clone())).fetch_one(&mut *connection).await.unwrap();
        let plan: String = row.try_get_unchecked(0).unwrap();
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let of = |which: &str| plan[0]["Plan"][which].as_u64().unwrap();
        pages = of("Shared Hit Blocks") + of("Shared Read Blocks");
    }
    pages
}

/// N18: however many rows wait for others, and whatever the statistics say, a look reads its own rows by the index, and compiles
/// nothing.
#[tokio::test]
async fn n18_looks_read_no_row_of_another_consumer() {
    let fixture = Fixture::new().await;
    let inbox = inbox(&fixture);
    let (mine, other) =
        (inbox.open(&name("orders"), None, 16).await.unwrap(), inbox.open(&name("other"), None, 16).await.unwrap());
    let (mine, other) = (mine.id, other.id);
    let fill = |consumer: ScopeId, rows: u32| {
        format!(
            "INSERT INTO inbox (consumer, slot, origin, payload) SELECT {consumer}, n % 16, 'o/' || n, repeat('x', 200)::bytea FROM generate_series(1, {rows}) AS n"
        )
    };
    fixture.run(fill(other, 20_000)).await;
    fixture.run("ANALYZE inbox, inbox_slots").await;
    inbox.hold_slots(mine, "me", Duration::from_secs(100), true).await.unwrap();
    let mut connection = fixture.connect().await;
    // As a server that compiles whatever it can.
    sqlx::raw_sql("SET jit = on; SET jit_above_cost = 0").execute(&mut connection).await.unwrap();
    let slots = "ARRAY(SELECT n FROM generate_series(0, 15) AS n)::bigint[]";
    let same = |value: &str| format!("array_fill({value}::bigint, ARRAY[16])");
    let next = |rows: u32| {
        format!(
            "SELECT * FROM next_messages({mine}, {slots}, {epochs}, {cursors}, '{{}}', 32, {rows}, 4000000)",
            epochs = same("1"),
            cursors = same("0")
        )
    };
    let nothing = buffers(&mut connection, &next(100)).await;
    assert!(nothing <= 80, "{nothing} pages where nothing waits");
    // Not analysed since: the statistics know nothing of these.
    fixture.run(fill(mine, 3_000)).await;
    let hundred = buffers(&mut connection, &next(100)).await;
    assert!(hundred <= 700, "{hundred} pages for a hundred rows");
    let count = buffers(&mut connection, &format!("SELECT * FROM count_messages({mine}, '{{}}', 100)")).await;
    assert!(count <= 160, "{count} pages to count a hundred");
    let removed = format!(
        "SELECT * FROM remove_messages({mine}, 'me', array_agg(slot::bigint), array_agg(1::bigint), array_agg(number),
            array_agg((extract(epoch FROM received_at) * 1000000)::bigint))
        FROM (SELECT * FROM inbox WHERE consumer = {mine} AND slot = 3 ORDER BY number LIMIT 50) AS i"
    );
    let removed =
        buffers(&mut connection, &removed.replace("SELECT * FROM remove_messages", "SELECT remove_messages")).await;
    assert!(removed <= 700, "{removed} pages to remove fifty");
    assert_eq!(inbox.backlog(mine, &[], 10_000).await.unwrap().rows, 2_900);
    let settings = fixture
        .texts(
            "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
                AND proname IN ('next_messages', 'remove_messages', 'count_messages', 'hold_slots')
                AND proconfig @> ARRAY['jit=off', 'enable_seqscan=off'] ORDER BY 1",
        )
        .await;
    assert_eq!(settings, ["count_messages", "hold_slots", "next_messages", "remove_messages"]);
    drop(connection);
    fixture.drop().await;
}

/// The requirements' table, as a view with its columns and types.
#[tokio::test]
async fn the_view_has_the_columns_of_the_requirements() {
    let fixture = Fixture::new().await;
    let columns = fixture
        .texts(
            "SELECT concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod)) FROM pg_attribute AS a
            WHERE a.attrelid = 'inbox_messages'::regclass AND a.attnum > 0 ORDER BY a.attnum",
        )
        .await;
    assert_eq!(
        columns,
        [
            "id uuid",
            "source character varying(100)",
            "event_type character varying(100)",
            "payload jsonb",
            "received_at timestamp with time zone",
            "processed_at timestamp with time zone",
            "error text",
            "retry_count integer"
        ]
    );
    let inbox = inbox(&fixture);
    let open = inbox.open(&name("orders"), Some("queue orders"), 16).await.unwrap();
    let key = IdempotencyKey::new("order-1").unwrap();
    let json = Message::new("{\"cents\": 250}").with_type("OrderPlaced");
    let rows = [NewInboxRow::new(json, Some(key), 16), NewInboxRow::new(Message::new("\0 no JSON"), None, 16)];
    inbox.put(open.id, &rows).await.unwrap();
    let shown =
        "SELECT concat_ws('|', id = key_id('order-1'), source, event_type, payload, processed_at IS NULL, retry_count)
        FROM inbox_messages ORDER BY payload NULLS LAST";
    assert_eq!(fixture.texts(shown).await, ["t|queue orders|OrderPlaced|{\"cents\": 250}|t|0", "f|queue orders||t|0"]);
    // The record is the mark.
    fixture
        .run(format!(
            "INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
            VALUES (key_id('order-1'), 'infinity', {}, 1, 1, 'order-1', sha256(''))",
            open.id
        ))
        .await;
    assert_eq!(fixture.text("SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL").await, "1");
    // Cleanup knows no expiry of a message.
    let error = sqlx::raw_sql("SELECT remove_expired('inbox', 100, 0)").execute(&fixture.admin).await.unwrap_err();
    assert!(error.to_string().contains("nothing in a table 'inbox' expires"), "{error}");
    fixture.drop().await;
}

/// N11: a row that an operator or a defect has damaged is one dead letter, and no look fails.
#[tokio::test]
async fn n11_a_damaged_row_keeps_no_other_back() {
    let fixture = Fixture::new().await;
    let inbox = inbox(&fixture);
    let open = inbox.open(&name("orders"), None, 1).await.unwrap();
    let message = |body: &str| NewInboxRow::new(Message::new(body.to_owned()).with_header("a", "b"), None, 1);
    inbox.put(open.id, &[message("damaged"), message("sound")]).await.unwrap();
    fixture.run("UPDATE inbox SET headers = '{}' WHERE number = 1").await;
    let held = inbox.hold_slots(open.id, "me", Duration::from_secs(100), true).await.unwrap();
    let rows = inbox.next(open.id, Reading::new(&[(held[0].held, 0)])).await.unwrap();
    let problems: Vec<_> = rows.iter().map(|row| row.message.problem()).collect();
    assert_eq!(problems, [Some("the headers of its row in the inbox are damaged"), None]);
    fixture.drop().await;
}

/// S8: receiver and worker need no more than the worker's role, and under it no row is removed or changed but by the functions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_an_inbox_needs_no_more_than_the_workers_role() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let login = login(&fixture, "idem_worker").await;
    let store = Arc::new(fixture.options_of(login.clone()).build().unwrap());
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    for number in 0..30 {
        queue.publish(msg(&format!("key-{}", number % 20))).unwrap();
    }
    let stop = CancellationToken::new();
    let receiver = Receiver::new(queue.source(), store.inbox(), name("orders"));
    let receiving = tokio::spawn(receiver.run(stop.clone().cancelled_owned()));
    queue.drained().await;
    let mut connection = login.connect().await.unwrap();
    for forbidden in [
        "DELETE FROM inbox",
        "UPDATE inbox SET payload = 'x'",
        "INSERT INTO inbox (consumer, slot, origin, number) VALUES (1, 1, 'x', 1)",
        "TRUNCATE inbox",
        "UPDATE inbox_slots SET held_by = NULL",
        "DELETE FROM inbox_slots",
    ] {
        let error = sqlx::raw_sql(forbidden).execute(&mut connection).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}");
    }
    let open = store.inbox().find(&name("orders")).await.unwrap().unwrap();
    // A holder's name does not prove who it is: another login removes nothing of its slots.
    let held = inbox(&fixture).hold_slots(open.id, "another", Duration::from_secs(100), true).await.unwrap();
    let forged = format!(
        "SELECT remove_messages({}, 'another', array_agg(slot::bigint), array_agg({}::bigint), array_agg(number),
            array_agg((extract(epoch FROM received_at) * 1000000)::bigint)) FROM inbox",
        open.id, held[0].held.epoch
    );
    assert_eq!(sqlx::raw_sql(AssertSqlSafe(forged)).fetch_all(&mut connection).await.unwrap().len(), 0);
    assert_eq!(fixture.text("SELECT count(*) FROM inbox_messages").await, "30");
    let held: Vec<_> = held.iter().map(|one| one.held).collect();
    inbox(&fixture).release_slots(open.id, "another", &held).await.unwrap();

    let source = InboxSource::new(store.inbox(), name("orders"));
    let worker =
        Worker::builder(consumer((*store).clone(), Write), source).until_idle(Duration::from_millis(500)).cleanup(None);
    let summary = worker.build().unwrap().run(std::future::pending()).await.unwrap();
    assert_eq!((summary.processed, summary.duplicates), (20, 10));
    stop.cancel();
    assert_eq!(receiving.await.unwrap().unwrap(), 30);
    assert_eq!(fixture.text("SELECT count(*) FROM inbox_messages").await, "0");
    assert_eq!(fixture.effects().await.len(), 20);
    drop(connection);
    store.disconnect().await;
    give_up(fixture, &["idem_worker"]).await;
}

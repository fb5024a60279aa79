//! Two workers in a row: the first announces its purchases, the second consumes what it hears of. The tests of every worker
//! include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    os::unix::process::ExitStatusExt as _,
    time::Duration,
};

use idem_testkit::idem_core::failpoint;
use sqlx::{Connection, PgConnection, query, query_as, query_scalar, raw_sql};

use crate::{
    database::{Database, Ledger, count, until},
    own_servers::OwnServers,
    worker::Worker,
};

/// The two workers, and the broker between them.
pub(crate) trait Link {
    /// Whether the destination keeps the order of what it is given.
    const ORDERED: bool;

    fn shop(&self) -> &Database;
    fn accounts(&self) -> &Database;
    fn start_shop(&self, more: &[&str]) -> Worker;
    fn start_accounts(&self, more: &[&str]) -> Worker;
    /// The same with this failpoint armed.
    fn start_shop_armed(&self, armed: &str) -> Worker;
    fn start_accounts_armed(&self, armed: &str) -> Worker;
    async fn send(&self, numbers: Range<i64>);
    /// How many events have come to the destination, copies too, as far as it still knows.
    async fn arrived(&self) -> usize;
    /// The ids of all that the destination has, in order. They stay there.
    async fn ids(&self) -> Vec<String>;
    /// A worker is gone without a word. A broker that keeps its messages away for a time gives them back now.
    fn gone(&self) {}
}

/// The servers of a chain, which a test restarts as after a crash.
pub(crate) trait Crashing {
    async fn crash(&self, names: &[&str]);
}

impl Crashing for OwnServers {
    async fn crash(&self, names: &[&str]) {
        self.restart_all(names);
    }
}

/// The outbox: customer and id of each waiting event, in the order of their numbers.
pub(crate) async fn waiting(database: &Database) -> Vec<(String, String)> {
    let text = "SELECT convert_from(ordering_key, 'UTF8'), event_key FROM idem.outbox ORDER BY number";
    query_as(text).fetch_all(database.pool()).await.expect("the outbox")
}

/// How many events wait in the outbox.
pub(crate) async fn pending(database: &Database) -> i64 {
    query_scalar("SELECT count(*) FROM idem.outbox").fetch_one(database.pool()).await.expect("the outbox")
}

/// O2, O3: kills between the confirmation of a broker and the note in the outbox, a relay that stands still for longer
/// than its lease, a consumer behind that is killed too. Both ledgers are exact.
pub(crate) async fn o2_o3_both_ledgers_are_exact(link: &impl Link) {
    let (first, all) = (count(2_000, 200), count(6_000, 600));
    copies_under_the_same_ids(link, first).await;
    let (shop, accounts) = (link.start_shop(&[]), link.start_accounts(&[]));
    link.send(first..all / 2).await;
    link.accounts().until_purchases(first + 1).await;
    accounts.kill().await;
    // Another goes on where the relay that stands still has the destination.
    shop.signal("STOP").await;
    let other = link.start_shop(&[]);
    link.send(all / 2..all).await;
    let accounts = link.start_accounts(&[]);
    link.accounts().until_purchases(all / 2).await;
    // Twice the publish deadline.
    tokio::time::sleep(Duration::from_secs(u64::try_from(count(20, 0)).expect("a time"))).await;
    shop.signal("CONT").await;
    link.shop().until_purchases(all).await;
    link.accounts().until_purchases(all).await;
    for worker in [shop, other] {
        assert!(worker.stop().await.status.success());
    }
    let last = link.start_shop(&["--until-idle", "2s"]).ended().await;
    assert!(last.status.success(), "{}", last.log);
    assert_eq!(pending(link.shop()).await, 0);
    assert!(accounts.stop().await.status.success());
    let last = link.start_accounts(&["--until-idle", "2s"]).ended().await;
    assert!(last.status.success(), "{}", last.log);
    for database in [link.shop(), link.accounts()] {
        assert_eq!(database.ledger().await, Ledger::of(0..all), "{}", database.name);
        assert!(database.dead_letters().await.is_empty(), "{:?}", database.dead_letters().await);
    }
}

/// A trigger that notes the id of each committed event, and has relays wait with removing any while [`Holding`] lives.
const WATCHED: &str = "
    CREATE TABLE told (event_key text NOT NULL);
    CREATE FUNCTION note_told() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        INSERT INTO public.told VALUES (NEW.event_key);
        RETURN NEW;
    END $$;
    CREATE TRIGGER told AFTER INSERT ON idem.outbox FOR EACH ROW EXECUTE FUNCTION note_told();
    CREATE FUNCTION wait_to_remove() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_catalog.pg_advisory_xact_lock_shared(1997);
        RETURN NULL;
    END $$;
    CREATE TRIGGER held BEFORE DELETE ON idem.outbox FOR EACH STATEMENT EXECUTE FUNCTION wait_to_remove();";

/// While it lives, no event leaves the outbox.
struct Holding(PgConnection);

impl Holding {
    async fn back(database: &Database) -> Self {
        let mut connection = PgConnection::connect(&database.owner_url).await.expect("the database answers");
        query("SELECT pg_advisory_lock(1997)").execute(&mut connection).await.expect("the lock");
        Self(connection)
    }

    /// Ends what waits for it on behalf of a process that is gone, and lets the others go on.
    async fn end(mut self) {
        let waiting_for_it = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        query_scalar::<_, i64>(waiting_for_it).fetch_one(&mut self.0).await.expect("the sessions");
        self.0.close().await.expect("the connection closes");
    }
}

/// O2, O3, O9: while both workers run, the broker crashes, the database crashes, both do; and each worker is killed, the first one
/// with events that the broker has and the outbox does not know of. Both ledgers are exact, and the arrived ids are those of
/// the committed events, some of them more than once: the second worker knows nothing else, and has set nothing aside.
pub(crate) async fn o2_o3_o9_a_chain_outlives_its_servers(link: &impl Link, servers: &impl Crashing, broker: &str) {
    let all: [&[&str]; 3] = [&[broker, "postgres"], &[broker], &["postgres"]];
    let (outages, wave) = (&all[..usize::try_from(count(3, 1)).expect("a count")], count(3_000, 150));
    raw_sql(WATCHED).execute(link.shop().pool()).await.expect("the outbox is watched");
    let (mut shop, mut accounts) = (link.start_shop(&[]), link.start_accounts(&[]));
    let mut sent = 0;
    for outage in outages {
        let (before, holding) = (link.arrived().await, Holding::back(link.shop()).await);
        link.send(sent..sent + wave).await;
        sent += wave;
        until("events at the destination", async || link.arrived().await > before).await;
        shop.kill().await;
        link.gone();
        holding.end().await;
        shop = link.start_shop(&[]);
        link.accounts().until_purchases(sent).await;
        let seen = accounts.stop().await;
        assert!(seen.count("duplicates") > 0, "no copy came, so this has shown nothing: {}", seen.log);
        accounts = link.start_accounts(&[]);

        link.send(sent..sent + wave).await;
        link.accounts().until_purchases(sent + wave / 10).await;
        sent += wave;
        servers.crash(outage).await;
        link.accounts().until_purchases(sent - wave / 2).await;
        accounts.kill().await;
        link.gone();
        accounts = link.start_accounts(&[]);
        for (worker, name) in [(&mut shop, "shop"), (&mut accounts, "accounts")] {
            assert!(worker.runs(), "the {name}, after {outage:?}:\n{}", worker.logged());
        }
    }
    link.accounts().until_purchases(sent).await;
    until("an empty outbox", async || pending(link.shop()).await == 0).await;
    for worker in [shop, accounts] {
        let ended = worker.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }
    exact(link, sent).await;
}

/// Those that a message and its event pass on a good way. Failing messages, cleanup and a drain have the crash matrix.
pub(crate) fn points_of_a_chain() -> impl Iterator<Item = &'static str> {
    use failpoint::{CLEAN_CHUNK, DEAD_LETTER_OK, DEAD_LETTER_SENT, DRAIN, ISOLATE, ROLLBACK};
    let elsewhere = [CLEAN_CHUNK, DEAD_LETTER_OK, DEAD_LETTER_SENT, DRAIN, ISOLATE, ROLLBACK];
    failpoint::ALL.iter().copied().filter(move |point| !elsewhere.contains(point))
}

/// O45: the first worker dies at each of these failpoints, the second one at those that it passes. Both ledgers are exact, by the
/// ids that the outbox had, and the kill between confirmation and note has made copies. Answers how many messages the second worker
/// knew when it had died for the last time.
pub(crate) async fn o45_workers_die_at_each_failpoint(
    link: &impl Link,
    points: impl IntoIterator<Item = &'static str>,
) -> usize {
    let (first, wave) = (count(1_000, 200), count(200, 30));
    raw_sql(WATCHED).execute(link.shop().pool()).await.expect("the outbox is watched");
    link.send(0..first).await;
    let mut sent = first;
    let shop = link.start_shop(&[]);
    until("events at the destination", async || link.arrived().await > 0).await;
    link.shop().until_purchases(first).await;
    until("an empty outbox", async || pending(link.shop()).await == 0).await;
    assert!(shop.stop().await.status.success());
    for point in points {
        link.send(sent..sent + wave).await;
        sent += wave;
        let armed = format!("{point}=1*abort");
        let mut dying = vec![link.start_shop_armed(&armed)];
        // The second one publishes nothing.
        if point != failpoint::APPENDED && !failpoint::OF_A_RELAY.contains(&point) {
            dying.push(link.start_accounts_armed(&armed));
        }
        for worker in dying {
            let ended = worker.ended().await;
            assert_eq!(ended.status.signal(), Some(SIGABRT), "{point}: {}", ended.log);
            link.gone();
        }
    }
    let (shop, accounts) = (link.start_shop(&[]), link.start_accounts(&[]));
    for database in [link.shop(), link.accounts()] {
        database.until_purchases(sent).await;
    }
    until("an empty outbox", async || pending(link.shop()).await == 0).await;
    assert!(shop.stop().await.status.success());
    let last = link.start_accounts(&["--until-idle", "2s"]).ended().await;
    let copies = accounts.stop().await.count("duplicates") + last.count("duplicates");
    assert!(copies > 0, "no copy came, so this has shown nothing: {}", last.log);
    exact(link, sent).await;
    usize::try_from(copies).expect("a count")
}

const SIGABRT: i32 = 6;

/// Both ledgers are exact, and the accounts know each event by the id that it was committed with.
async fn exact(link: &impl Link, purchases: i64) {
    for database in [link.shop(), link.accounts()] {
        assert_eq!(database.ledger().await, Ledger::of(0..purchases), "{}", database.name);
        assert!(database.dead_letters().await.is_empty(), "{:?}", database.dead_letters().await);
    }
    let texts = async |database: &Database, text| {
        let texts: Vec<String> = query_scalar(text).fetch_all(database.pool()).await.expect("ids");
        texts
    };
    let told = texts(link.shop(), "SELECT event_key FROM told ORDER BY event_key").await;
    assert_eq!(i64::try_from(told.len()).expect("a count"), purchases, "one event a purchase, and none twice");
    let keys = texts(link.accounts(), "SELECT idempotency_key FROM purchases ORDER BY idempotency_key").await;
    assert_eq!(keys, told, "the accounts know each event by its id");
}

/// A relay that is killed with events that its broker has confirmed and the outbox still holds. The ids at the destination are
/// those of the table, some twice, and the first copies of each customer come in the order of the commits.
async fn copies_under_the_same_ids<L: Link>(link: &L, purchases: i64) {
    link.send(0..purchases).await;
    let ended = link.start_shop(&["--relay", "off", "--until-idle", "2s"]).ended().await;
    assert_eq!(ended.count("published"), 0, "it does not relay");
    let waiting = waiting(link.shop()).await;
    assert_eq!(i64::try_from(waiting.len()).expect("a count"), purchases);

    // Reads go on, and nothing can be removed.
    let mut held = PgConnection::connect(&link.shop().owner_url).await.expect("the database answers");
    query("BEGIN").execute(&mut held).await.expect("a transaction");
    query("LOCK TABLE idem.outbox IN SHARE MODE").execute(&mut held).await.expect("the lock");
    let killed = link.start_shop(&[]);
    until("events at the destination", async || link.arrived().await > 0).await;
    killed.kill().await;
    // Its statement may wait for the lock already, and would be done after its process is gone.
    let waiting_for_it = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    query_scalar::<_, i64>(waiting_for_it).fetch_one(&mut held).await.expect("the sessions");
    held.close().await.expect("the connection closes");
    let ended = link.start_shop(&["--until-idle", "2s"]).ended().await;
    assert_eq!(i64::try_from(ended.count("published")).expect("a count"), purchases, "{}", ended.log);
    assert_eq!(pending(link.shop()).await, 0);

    let ids = link.ids().await;
    let of_table: BTreeSet<&str> = waiting.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(ids.iter().map(String::as_str).collect::<BTreeSet<_>>(), of_table);
    assert!(ids.len() > of_table.len(), "no copy came, so this has shown nothing");
    if !L::ORDERED {
        return;
    }
    let customers: BTreeMap<&str, &str> =
        waiting.iter().map(|(customer, id)| (id.as_str(), customer.as_str())).collect();
    let mut seen = BTreeSet::new();
    let mut came: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for id in ids.iter().map(String::as_str).filter(|id| seen.insert(*id)) {
        came.entry(customers[id]).or_default().push(id);
    }
    let mut committed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (customer, id) in &waiting {
        committed.entry(customer).or_default().push(id);
    }
    assert_eq!(came, committed, "the first copies of a customer");
}

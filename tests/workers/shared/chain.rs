//! Two workers in a row: the first announces its purchases, the second consumes what it hears of. The tests of every worker
//! include this file.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use sqlx::{Connection, PgConnection, query, query_as, query_scalar};

use crate::{
    database::{Database, Ledger, count, until},
    worker::Worker,
};

/// The two workers, and what is between them.
pub(crate) trait Link {
    /// Whether the destination keeps the order of what it is given.
    const ORDERED: bool;

    fn shop(&self) -> &Database;
    fn accounts(&self) -> &Database;
    fn start_shop(&self, more: &[&str]) -> Worker;
    fn start_accounts(&self, more: &[&str]) -> Worker;
    async fn send(&self, numbers: Range<i64>);
    /// How many events the destination has, copies too.
    async fn arrived(&self) -> usize;
    /// The ids of all of them, in order. They stay there.
    async fn ids(&self) -> Vec<String>;
}

/// What waits in the outbox: customer and id of each event, in the order of their numbers.
pub(crate) async fn waiting(database: &Database) -> Vec<(String, String)> {
    let text = "SELECT convert_from(ordering_key, 'UTF8'), event_key FROM idem.outbox ORDER BY number";
    query_as(text).fetch_all(database.pool()).await.expect("the outbox")
}

/// How many events wait in the outbox.
pub(crate) async fn pending(database: &Database) -> i64 {
    query_scalar("SELECT count(*) FROM idem.outbox").fetch_one(database.pool()).await.expect("the outbox")
}

/// O2, O3: kills between what a broker has confirmed and what the outbox knows, a relay that stands still for longer
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

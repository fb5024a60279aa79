//! Two consumers in a row on real purchases: a shop, which publishes each purchase in its transaction, and accounts,
//! which consume the events from a broker. Both are killed on the way, the broker delivers twice, the relay sends twice,
//! and both end exact to the cent. `handlers.rs` and `consume.rs` are the application; the rest is the mischief.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that shows its results in a terminal")]

mod consume;
mod database;
mod handlers;
mod kill;
mod queue;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    thread,
};

use idem_core::{BoxError, CancellationToken, Message};
use idem_testkit::memory::{Broker, Faults, Order, Queue, QueueOptions, Rate};
use ledger::demo;
use tokio::runtime;

use self::{
    kill::{Kills, Moment},
    queue::{Sent, ToQueue},
};

/// The real sales.
const SOLD: (i64, i64) = (69_659, 250_031_563);

const USAGE: &str = "usage: chain\n\n  Runs a shop and its accounts on real purchases, kills both on the way, and prints what they have. It takes no arguments.";

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let folder = std::env::temp_dir().join(format!("idem-chain-{}", process::id()));
    let ran = fs::create_dir(&folder).map_err(BoxError::from).and_then(|()| run(&folder));
    if let Err(error) = fs::remove_dir_all(&folder) {
        eprintln!("{} could not be removed: {error}", folder.display());
    }
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let causes = std::iter::successors(Some(&*error as &dyn std::error::Error), |error| error.source());
            eprintln!("{}", causes.map(ToString::to_string).collect::<Vec<_>>().join(": "));
            ExitCode::FAILURE
        }
    }
}

/// Runs both consumers, and returns whether both were killed as planned, and both tables match the sales.
fn run(folder: &Path) -> Result<bool, BoxError> {
    println!("69,659 real purchases through two consumers in a row, each on a database of its own\n");
    let broker = Broker::new();
    let purchases = queue(&broker, "purchases")?;
    let recorded = queue(&broker, handlers::RECORDED)?;
    // With the mistakes of producers: second sends, altered amounts, unreadable messages.
    for record in demo::records(demo::PURCHASES).map_err(|error| error.to_string())? {
        purchases.publish(Message::new(record.payload).with_record_key(record.customer))?;
    }
    let (shop_file, accounts_file) = (folder.join("shop.db"), folder.join("accounts.db"));
    let of_shop = [(Moment::Written, 20_000), (Moment::Sent, 30_000), (Moment::Acknowledging, 50_000)];
    let of_accounts = [(Moment::Written, 25_000), (Moment::Acknowledging, 45_000)];
    let (of_shop, of_accounts) = (Arc::new(Kills::planned(of_shop)), Arc::new(Kills::planned(of_accounts)));
    let (sent, done) = (Arc::new(Sent::default()), CancellationToken::new());
    let second = {
        let (recorded, file, done) = (recorded.clone(), accounts_file.clone(), done.clone());
        let kills = Arc::clone(&of_accounts);
        thread::spawn(move || accounts(&recorded, &file, &done, &kills))
    };
    let first = shop(&purchases, &recorded, &sent, &shop_file, &of_shop);
    // Also where it has failed, or the second one would wait for ever.
    done.cancel();
    let second = second.join().map_err(|_| "the thread of the accounts died")?;
    first.and(second)?;
    let is_exact = report(&sent, &shop_file, &accounts_file)?;
    let kills_left = of_shop.left() + of_accounts.left();
    println!("  {} of 5 planned kills happened", 5 - kills_left);
    Ok(is_exact && kills_left == 0)
}

fn queue(broker: &Broker, name: &str) -> Result<Queue, BoxError> {
    let queue = broker.create(name, QueueOptions::default().order(Order::ByKey).seed(1997))?;
    queue.misbehave(Faults { resurrected: Rate::OneIn(10), ..Faults::default() });
    Ok(queue)
}

fn shop(
    purchases: &Queue,
    recorded: &Queue,
    sent: &Arc<Sent>,
    file: &Path,
    kills: &Arc<Kills>,
) -> Result<(), BoxError> {
    let start = || {
        let recorded = ToQueue { queue: recorded.clone(), sent: Arc::clone(sent), kills: Arc::clone(kills) };
        consume::shop(purchases.clone(), recorded, PathBuf::from(file))
    };
    kills.outlive(start, |at| println!("  the shop was killed: {at}"))
}

fn accounts(recorded: &Queue, file: &Path, done: &CancellationToken, kills: &Arc<Kills>) -> Result<(), BoxError> {
    let start = || consume::accounts(recorded.clone(), done.clone(), PathBuf::from(file), Arc::clone(kills));
    kills.outlive(start, |at| println!("  the accounts were killed: {at}"))
}

fn report(sent: &Sent, shop: &Path, accounts: &Path) -> Result<bool, BoxError> {
    let numbers = |file: &Path, query| -> Result<(i64, i64), BoxError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(database::numbers(file, query))
    };
    let in_shop = numbers(shop, "SELECT count(*), ifnull(sum(cents), 0) FROM purchases")?;
    let in_accounts = numbers(accounts, "SELECT ifnull(sum(purchases), 0), ifnull(sum(cents), 0) FROM accounts")?;
    let (left, _) = numbers(shop, "SELECT count(*), 0 FROM idem_outbox")?;
    let (ids, twice) = sent.ids();
    println!("\n                        purchases           money");
    for (name, (purchases, cents)) in
        [("what was really sold", SOLD), ("the shop", in_shop), ("the accounts", in_accounts)]
    {
        println!("{name:<22} {:>10}  {:>14}", grouped(purchases), money(cents));
    }
    let ids = i64::try_from(ids)?;
    println!("\n  {} ids were sent, and {left} events are left in the outbox", grouped(ids));
    if twice > 0 {
        println!("  some were sent twice, by a relay that was killed, and none has counted twice");
    }
    Ok(in_shop == SOLD && in_accounts == SOLD && ids == SOLD.0 && left == 0 && twice > 0)
}

/// 69,659.
fn grouped(number: i64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// $2,500,315.63 of cents.
fn money(cents: i64) -> String {
    format!("${}.{:02}", grouped(cents / 100), cents % 100)
}

//! A hot row: the loss where messages of several lanes touch one customer's balance.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx};
use idem_sqlx::PostgresStore;
use sqlx::{Connection, PgConnection};

use crate::{
    backlog,
    cases::At,
    feed::{Feed, Spread},
    postgres::{Round, fresh, remove, store},
    report::{Line, RATE, Table},
    work::Work,
};

const LANES: usize = 4;
const BATCH: usize = 100;

const LINES: [(&str, Spread); 3] = [
    ("messages of one customer on one lane", Spread::ByCustomer),
    (ONE_HOT, Spread::OneHotRow),
    ("any of 10,000 customers on any lane", Spread::ByKey),
];

/// The line that a target is about.
pub(crate) const ONE_HOT: &str = "the same, but 1 % of the messages are one customer's, on any lane";

/// A purchase that counts how often it is asked for.
struct Counted(Arc<AtomicUsize>);

impl Handler<PostgresStore> for Counted {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Work::Purchase.handle(message, tx).await
    }
}

/// One round, and how often the handler was called in it.
async fn round(spread: Spread, (url, _, time): At<'_>) -> Result<(Round, usize), Box<dyn Error>> {
    let calls = Arc::new(AtomicUsize::new(0));
    let consumer = DedupConsumer::builder(store(url).await?, "bench").handler(Counted(Arc::clone(&calls)));
    let consumer = consumer.effects(Effects::InTransaction).lanes(LANES).build()?;
    let feed = Feed { spread, ..Feed::fresh(Work::Purchase) };
    let warm_up = LANES * BATCH * 3 / 2;
    let round = backlog::consume_for(consumer, BATCH, warm_up, time, Box::new(move |n| feed.message(n))).await?;
    Ok((round, calls.load(Ordering::Relaxed)))
}

pub(crate) async fn row(at: At<'_>) -> Result<Vec<Table>, Box<dyn Error>> {
    let (url, rounds, _) = at;
    let mut connection = PgConnection::connect(url).await?;
    let [mut rates, mut lost] = [LINES.map(|(name, _)| Line::new(name)), LINES.map(|(name, _)| Line::new(name))];
    for _ in 0..rounds {
        for (((name, spread), rate), lost) in LINES.into_iter().zip(&mut rates).zip(&mut lost) {
            fresh(&mut connection).await?;
            let (round, calls) = round(spread, at).await?;
            let effects: i64 = sqlx::query_scalar(Work::Purchase.counted()).fetch_one(&mut connection).await?;
            if usize::try_from(effects)? != round.effects {
                return Err(format!("{name}: {effects} effects of {} messages", round.effects).into());
            }
            rate.note(round.messages, round.took);
            lost.rounds.push((calls - round.effects) as f64 * 100.0 / calls as f64);
        }
    }
    remove(&mut connection).await?;
    let title = "PostgreSQL, purchase, per-message handler, batches of up to 100, 4 lanes, rows that lanes share";
    Ok(vec![
        Table::print("hot-row", title, RATE, rates.into()),
        Table::print("hot-row-lost", "The same, what ran in vain", "% of the handler's calls", lost.into()),
    ])
}

//! The cost of an event or an answer a message: the same handler without, with an event, and with an answer of 1 KiB,
//! in pairs that are measured one after the other. No relay runs: it has a case of its own.

use std::{error::Error, time::Duration};

use idem_core::{DedupConsumer, Effects, Event, Handler, HandlerError, Message, ResultBody, Store, Tx};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{
    backlog,
    cases::At,
    feed::Feed,
    growth::written,
    postgres::{RECORDS, Round, checkpoint, remove, reset_tables, store, tokio_store},
    report::{Line, RATE, Table},
    work::Work,
};

/// Where the events would go.
const DESTINATION: &str = "bench";

const ANSWER_BYTES: usize = 1 << 10;

/// The output that the handler hands in beside its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tells {
    Nothing,
    AnEvent,
    AnAnswer,
}

/// The lines of each table, in the order in which a round measures them.
pub(crate) const NOTHING: &str = "neither";
pub(crate) const EVENT: &str = "one event a message";
pub(crate) const ANSWER: &str = "an answer of 1 KiB a message";
const LINES: [(&str, Tells); 3] = [(NOTHING, Tells::Nothing), (EVENT, Tells::AnEvent), (ANSWER, Tells::AnAnswer)];

struct Telling(Work, Tells);

impl<S: Store> Handler<S> for Telling
where
    Work: Handler<S>,
{
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.0.handle(message, tx).await?;
        let payload = || Ok::<_, HandlerError>(message.payload().ok_or("no payload")?.to_vec());
        match self.1 {
            Tells::Nothing => {}
            Tells::AnEvent => {
                let event = Event::to(DESTINATION).event_type("Ordered").content_type("application/json");
                let event = match message.ordering_key() {
                    Some(key) => event.ordering_key(key.as_bytes().to_vec()),
                    None => event,
                };
                tx.publish(message, event.body(payload()?))?;
            }
            Tells::AnAnswer => tx.set_result(message, ResultBody::new(vec![b'x'; ANSWER_BYTES]))?,
        }
        Ok(())
    }
}

async fn round<S: Store>(
    store: S,
    (work, tells): (Work, Tells),
    batch: usize,
    time: Duration,
) -> Result<Round, Box<dyn Error>>
where
    Work: Handler<S>,
{
    let consumer = DedupConsumer::builder(store, "bench").effects(Effects::InTransaction).lanes(1);
    let consumer = consumer.handler(Telling(work, tells));
    let consumer = match tells {
        Tells::Nothing => consumer,
        Tells::AnEvent => consumer.publish_to([DESTINATION]),
        Tells::AnAnswer => consumer.keep_results(ANSWER_BYTES),
    };
    let feed = Feed::fresh(work);
    // A lane's first messages run alone until a batch's worth of them is through.
    backlog::consume_for(consumer.build()?, batch, (batch * 3).max(200), time, Box::new(move |n| feed.message(n))).await
}

/// One batch size on one store.
struct Compared {
    id: String,
    title: String,
    is_tokio: bool,
    batch: usize,
    rates: Vec<Line>,
    /// Each round's rate over that of the line without, of the same round.
    pairs: Vec<Line>,
    /// Bytes of the server's log for each message, those of its own row and record included.
    log: Vec<Line>,
}

impl Compared {
    fn new(is_tokio: bool, batch: usize) -> Self {
        let store = if is_tokio { "tokio-postgres" } else { "sqlx" };
        let lines = || LINES.iter().map(|(name, _)| Line::new(*name)).collect();
        let title = format!("insert, a handler a message, one lane, batch {batch}, on {store}");
        Self { id: table(is_tokio, batch), title, is_tokio, batch, rates: lines(), pairs: lines(), log: lines() }
    }

    /// Each line once; every other round the other way round, so that a drift favours no line.
    async fn measure(&mut self, number: usize, url: &str, time: Duration) -> Result<(), Box<dyn Error>> {
        let mut connection = PgConnection::connect(url).await?;
        let mut rates = [0.0; LINES.len()];
        let order = if number.is_multiple_of(2) { [0, 1, 2] } else { [2, 1, 0] };
        for at in order {
            let (name, tells) = LINES[at];
            reset_tables(&mut connection).await?;
            let told = (Work::Insert, tells);
            let (round, written) = if self.is_tokio {
                let store = tokio_store(url).await?;
                checkpoint(&mut connection).await?;
                let before = written(&mut connection).await?;
                (round(store, told, self.batch, time).await?, written(&mut connection).await? - before)
            } else {
                let store = store(url).await?;
                checkpoint(&mut connection).await?;
                let before = written(&mut connection).await?;
                (round(store, told, self.batch, time).await?, written(&mut connection).await? - before)
            };
            self.log[at].rounds.push(written / round.effects as f64);
            check(&mut connection, name, tells, round.effects).await?;
            rates[at] = round.messages as f64 / round.took.as_secs_f64();
        }
        for ((rate, line), pair) in rates.iter().zip(&mut self.rates).zip(&mut self.pairs) {
            line.rounds.push(*rate);
            pair.rounds.push(rate / rates[0]);
        }
        Ok(())
    }
}

/// The table of pairs of this store and batch.
pub(crate) fn table(is_tokio: bool, batch: usize) -> String {
    format!("events-{}-{batch}", if is_tokio { "tokio" } else { "sqlx" })
}

/// Checks that each message's event or answer is there once.
async fn check(connection: &mut PgConnection, name: &str, tells: Tells, effects: usize) -> Result<(), Box<dyn Error>> {
    let of_its_own = match tells {
        Tells::Nothing => Work::Insert.counted().to_owned(),
        Tells::AnEvent => format!("SELECT count(*) FROM {RECORDS}.outbox"),
        Tells::AnAnswer => format!("SELECT count(*) FROM {RECORDS}.processed_results"),
    };
    for counted in [Work::Insert.counted().to_owned(), of_its_own] {
        let there: i64 = sqlx::query_scalar(AssertSqlSafe(counted.clone())).fetch_one(&mut *connection).await?;
        if usize::try_from(there)? != effects {
            return Err(format!("{name}: {there} of {effects} ({counted})").into());
        }
    }
    Ok(())
}

/// Batches of 100 and single messages, on both stores.
pub(crate) async fn all((url, rounds, time): At<'_>) -> Result<Vec<Table>, Box<dyn Error>> {
    let cases = [(false, 100), (true, 100), (false, 1), (true, 1)];
    let mut compared = cases.map(|(is_tokio, batch)| Compared::new(is_tokio, batch));
    for number in 0..rounds {
        for one in &mut compared {
            one.measure(number, url, time).await?;
        }
    }
    remove(&mut PgConnection::connect(url).await?).await?;
    let mut tables = Vec::new();
    for Compared { id, title, rates, pairs, log, .. } in compared {
        let rounds = format!("{rounds} rounds of {:.1} s", time.as_secs_f64());
        tables.push(Table::print(format!("{id}-rates"), format!("PostgreSQL, {title}; {rounds}"), RATE, rates));
        tables.push(Table::print(format!("{id}-wal"), "The same, what the server logs", "bytes a message", log));
        tables.push(Table::print(id, "The same, round by round", "of the rate without", pairs));
    }
    Ok(tables)
}

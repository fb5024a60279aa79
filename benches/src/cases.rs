//! The tables of PostgreSQL on one machine: the two works next to their baselines.

use std::{error::Error, time::Duration};

use idem_core::Concurrency;

use crate::{
    by_hand::ByHand::{Autocommit, InboxOnce, Textbook, TextbookOnPool, Transaction},
    pgbench::{Claims, PgBench},
    postgres::{Idem, Way, compare},
    report::Table,
    work::Work,
};

/// The names of the lines that targets are about.
pub(crate) const TRANSACTION: &str = "(a) by hand: begin, handler, commit";
pub(crate) const AUTOCOMMIT: &str = "(a') by hand: the bare statement, autocommit";
pub(crate) const TEXTBOOK: &str = "(b) textbook: begin, claim, handler, commit; pool with its defaults";
pub(crate) const PGBENCH_16: &str = "(c) pgbench: begin, handler, commit; 16 clients";
pub(crate) const ONE_BY_ONE: &str = "idem, batch 1, one lane";
pub(crate) const ONE_BY_ONE_TOKIO: &str = "idem, batch 1, one lane, on tokio-postgres";
pub(crate) const PIPELINED: &str = "idem, per-message handler, batch 500, 4 lanes, on tokio-postgres, pipelined";
/// Begin the names of a line for each number of lanes.
pub(crate) const EACH: &str = "idem, per-message handler, batch 100";
pub(crate) const SET: &str = "idem, set-based handler, batch 500";

pub(crate) fn lanes(name: &str, lanes: usize) -> String {
    if lanes == 1 { format!("{name}, one lane") } else { format!("{name}, {lanes} lanes") }
}

/// Where, how many rounds, and how long each is.
pub(crate) type At<'a> = (&'a str, usize, Duration);

fn idem(name: impl Into<String>, idem: Idem) -> (String, Way) {
    (name.into(), Way::Idem(idem))
}

fn by_hand(name: &str, way: crate::by_hand::ByHand) -> (String, Way) {
    (name.to_owned(), Way::ByHand(way))
}

/// One of the two works, beside all that people write and use for it.
pub(crate) async fn work(work: Work, at: At<'_>) -> Result<Table, Box<dyn Error>> {
    let mut lines = vec![by_hand(TRANSACTION, Transaction)];
    if work == Work::Insert {
        lines.push(by_hand(AUTOCOMMIT, Autocommit));
    }
    lines.push(by_hand(TEXTBOOK, TextbookOnPool));
    lines.push(by_hand("(b) textbook, on a connection that it keeps", Textbook));
    lines.push(by_hand("(d) inbox::once of backbone-outbox, its statement; pool with its defaults", InboxOnce));
    let pgbench = |clients, claims| Way::PgBench(PgBench { clients, claims });
    let (nothing, as_the_textbook) = (Claims::Nothing, Claims::AsTheTextbook);
    lines.push(("(c) pgbench: begin, handler, commit; 1 client".to_owned(), pgbench(1, nothing)));
    lines.push((PGBENCH_16.to_owned(), pgbench(16, nothing)));
    lines.push(("(c) pgbench: begin, claim, handler, commit; 16 clients".to_owned(), pgbench(16, as_the_textbook)));
    let one_by_one = Idem { batch: 1, ..Idem::base(work) };
    lines.push(idem(ONE_BY_ONE, one_by_one));
    lines.push((ONE_BY_ONE_TOKIO.to_owned(), Way::OnTokioPostgres(one_by_one)));
    for n in [1, 2, 4] {
        lines.push(idem(lanes(EACH, n), Idem { lanes: n, ..Idem::base(work) }));
    }
    let pipelined = Concurrency::Pipelined { at_once: 500 };
    let pipelined = Idem { handlers: pipelined, batch: 500, lanes: 4, ..Idem::base(work) };
    lines.push((PIPELINED.to_owned(), Way::OnTokioPostgres(pipelined)));
    for n in [1, 2, 4] {
        lines.push(idem(lanes(SET, n), Idem { lanes: n, ..Idem::set(work) }));
    }
    compare(work.name(), &format!("{} of 200-byte JSON", work.name()), work, lines, at).await
}

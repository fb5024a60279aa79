//! A relay that is killed at each of its failpoints, and one that stands still for twice its deadline. It relays to a file,
//! which outlives it; the brokers have the black-box tests of the workers.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::PathBuf,
    time::Duration,
};

use futures_util::future::join_all;
use idem_core::failpoint;
use idem_testkit::memory::{Order, QueueOptions};
use idem_tests::{
    plan::{Plan, Relaying},
    told::{Told, read},
};

use super::{
    fixture::{Fixture, conclude},
    kills,
    matrix::BATCH,
};
use crate::support::database::Kind;

/// How long the one that stands still has for what it gives to its publisher.
const DEADLINE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It dies at this failpoint.
    At(&'static str),
    /// It is stopped in the middle of a round, and goes on when another has had its destination for long.
    StandsStill,
}

struct Row {
    fixture: Fixture,
    told: PathBuf,
    /// The events in the outbox before any relay, in the order of their numbers.
    committed: Vec<Told>,
}

impl Row {
    fn plan(&self, event_ms: u64, deadline: Duration) -> Plan {
        let relay = Relaying { to: self.told.clone(), event_ms, deadline_ms: deadline.as_millis() as u64 };
        Plan { relay: Some(relay), ..self.fixture.plan.clone() }
    }

    /// Commits the events of a wave, before any relay runs.
    async fn commit(&mut self) -> Result<(), String> {
        self.fixture.publish_wave();
        let plan = self.fixture.plan.clone();
        let ended = self.fixture.start(&plan, "").ended().await?;
        if !ended.status.success() {
            return ended.unexpected("settled everything");
        }
        self.committed.extend(self.fixture.database.outbox().await);
        Ok(())
    }

    async fn dies_at(&mut self, point: &str) -> Result<(), String> {
        let plan = self.plan(0, Duration::from_secs(10));
        let skip = self.fixture.rng.u64(..3);
        let ended = self.fixture.start(&plan, &format!("{point}={skip}+1*abort")).ended().await?;
        if ended.aborted() { Ok(()) } else { ended.unexpected(&format!("died at {point}, pass {}", skip + 1)) }
    }

    async fn stands_still(&mut self) -> Result<(), String> {
        let plan = self.plan(50, DEADLINE);
        let before = read(&self.told).map_err(|error| error.to_string())?.len();
        let stopped = self.fixture.start(&plan, "");
        let begun = async {
            while read(&self.told).is_ok_and(|told| told.len() <= before) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), begun).await.map_err(|_| "the relay has begun nothing")?;
        stopped.signal("STOP").await;
        let stands_still = tokio::time::sleep(2 * DEADLINE + Duration::from_millis(100));
        let result = self.finish().await;
        stands_still.await;
        stopped.signal("CONT").await;
        let ended = stopped.ended().await?;
        if ended.status.success() { result } else { ended.unexpected("gone on") }
    }

    /// A relay that lives brings what is left.
    async fn finish(&mut self) -> Result<(), String> {
        let plan = self.plan(0, Duration::from_secs(10));
        let ended = self.fixture.start(&plan, "").ended().await?;
        if ended.status.success() { Ok(()) } else { ended.unexpected("brought everything") }
    }

    /// All that was committed has arrived, and nothing else; answers how many copies there are.
    async fn check(&self) -> Result<usize, String> {
        let left = self.fixture.database.outbox().await;
        if !left.is_empty() {
            return Err(format!("{} events wait in the outbox", left.len()));
        }
        let told = read(&self.told).map_err(|error| error.to_string())?;
        let mut seen = HashSet::new();
        let firsts: Vec<&Told> = told.iter().filter(|told| seen.insert(told.id.clone())).collect();
        let content = |told: &Told| (told.id.clone(), told.ordering_key.clone(), told.payload.clone());
        let arrived: BTreeSet<_> = told.iter().map(content).collect();
        let committed: BTreeSet<_> = self.committed.iter().map(content).collect();
        if arrived != committed {
            let missing: Vec<_> = committed.difference(&arrived).collect();
            let more: Vec<_> = arrived.difference(&committed).collect();
            return Err(format!("LOST or CHANGED: {missing:?} did not arrive, {more:?} nobody has committed"));
        }
        if by_ordering_key(firsts) != by_ordering_key(self.committed.iter()) {
            return Err("OUT OF ORDER: first copies did not come in the order of the commits".to_owned());
        }
        Ok(told.len() - committed.len())
    }
}

pub(super) fn by_ordering_key<'t>(told: impl IntoIterator<Item = &'t Told>) -> BTreeMap<&'t str, Vec<&'t str>> {
    let mut by_key: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for told in told {
        by_key.entry(&told.ordering_key).or_default().push(&told.id);
    }
    by_key
}

async fn run(kind: Kind, fate: Fate, name: &str) -> Result<(), String> {
    let options = QueueOptions::default().order(Order::ByKey);
    let fixture = Fixture::new(name, kind, BATCH, options).await;
    let told = fixture.folder().join("told");
    let mut row = Row { fixture, told, committed: Vec::new() };
    for _ in 0..kills() {
        row.commit().await?;
        match fate {
            Fate::At(point) => {
                row.dies_at(point).await?;
                row.finish().await?;
            }
            Fate::StandsStill => row.stands_still().await?,
        }
    }
    let copies = row.check().await?;
    match fate {
        // Between the arrival at the destination and the note in the outbox, and nowhere else.
        Fate::At(failpoint::RELAY_TAKEN | failpoint::RELAY_SETTLED) if copies > 0 => {
            return Err(format!("{copies} copies, and none was necessary"));
        }
        Fate::At(failpoint::RELAY_CONFIRMED) | Fate::StandsStill if copies == 0 => {
            return Err("no copy came, so this has shown nothing".to_owned());
        }
        Fate::At(_) | Fate::StandsStill => {}
    }
    row.fixture.remove().await;
    Ok(())
}

async fn relays(kind: Kind) {
    let fates = failpoint::OF_A_RELAY.into_iter().map(Fate::At).chain([Fate::StandsStill]);
    let rows = fates.map(|fate| async move {
        let fate_name = match fate {
            Fate::At(point) => point,
            Fate::StandsStill => "relay_stands_still",
        };
        let name = format!("{kind:?}-{fate_name}").to_lowercase();
        (name.clone(), run(kind, fate, &name).await)
    });
    conclude(join_all(rows).await);
}

/// O36, O2, O3, O4: no event is lost, and copies have the ids of the first ones.
#[tokio::test]
async fn o36_relays_that_die_or_stand_still_postgres() {
    relays(Kind::PostgresStore).await;
}

/// As on PostgreSQL.
#[tokio::test]
async fn o36_relays_that_die_or_stand_still_tokio_postgres() {
    relays(Kind::TokioPostgres).await;
}

/// As on PostgreSQL.
#[tokio::test]
async fn o36_relays_that_die_or_stand_still_sqlite() {
    relays(Kind::SqliteStore).await;
}

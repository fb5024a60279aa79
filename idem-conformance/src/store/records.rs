//! How long records are kept, and the stand-ins for a record that is not there.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    Decision, ErrorClass, Retention, Store, StoreError,
    cleanup::{Backlog, Cleaner, Cleanup, CleanupReport, CleanupSettings, Expiring, LastCleanup, Removal, Removed},
    store::{Bookkeeping, Claimed, Recorded, UnitOfWork},
};
use tokio::sync::Notify;

use super::{
    fixture::{Fixture, Kind, claim, decide, msg, options, process, redeliver, write},
    gate::{Gate, within},
    subject::{Arrangement, StoreUnderTest},
};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Removes at most so many rows of a kind that were kept so long, and answers how many are gone.
pub(super) async fn clean<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    kind: Expiring,
    kept: Duration,
    rows_max: u32,
) -> u64 {
    let removal = Removal { kind, kept, rows_max, timeout: Duration::from_secs(30) };
    match within("cleaning up", fixture.store.cleaner().remove(&removal)).await {
        Ok(Removed::Rows(rows)) => rows,
        other => panic!("no cleanup of {kind}: {other:?}"),
    }
}

pub(super) async fn clean_records<T: StoreUnderTest>(fixture: &Fixture<'_, T>, rows_max: u32) -> u64 {
    clean(fixture, Expiring::Records, Duration::ZERO, rows_max).await
}

async fn record_of<T: StoreUnderTest>(subject: &T, retention: Retention) -> Recorded {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).retention(retention).build().unwrap();
    process(&consumer, [msg("order-1", "paid")]).await;
    let again = decide(&consumer, [msg("order-1", "paid")]).await.remove(0);
    let Decision::Duplicate(recorded, _) = again else { panic!("{again:?}") };
    recorded
}

/// C2: a record says until when it is kept: at least the retention from its commit, by the database's clock, and at
/// most a few minutes more.
pub async fn a_record_is_kept_at_least_for_its_retention<T: StoreUnderTest>(subject: &T) {
    let recorded = record_of(subject, Retention::For(HOUR)).await;
    let kept = recorded.expires_at.unwrap().duration_since(recorded.processed_at).unwrap();
    assert!(kept >= HOUR && kept <= HOUR + Duration::from_secs(180), "it is kept for {kept:?}");
}

/// A retention of for ever has no end.
pub async fn a_record_may_be_kept_for_ever<T: StoreUnderTest>(subject: &T) {
    assert_eq!(record_of(subject, Retention::Forever).await.expires_at, None);
}

/// The longest retention that a consumer takes is no trouble for the database's calendar.
pub async fn a_record_may_be_kept_for_ten_years<T: StoreUnderTest>(subject: &T) {
    let recorded = record_of(subject, Retention::For(3650 * DAY)).await;
    assert!(recorded.expires_at.is_some_and(|at| at > recorded.processed_at + 3649 * DAY), "{recorded:?}");
}

/// Retention is a lower bound: an expired record counts until cleanup removes it.
pub async fn an_expired_record_counts_until_it_is_removed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).retention(Retention::For(HOUR)).build().unwrap();
    process(&consumer, [msg("order-1", "paid")]).await;
    if !fixture.arrange(Arrangement::Age(DAY)).await {
        return;
    }
    let kinds = process(&consumer, [msg("order-1", "paid"), msg("order-1", "refunded")]).await;
    assert_eq!(kinds, [Kind::Duplicate, Kind::Conflict]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// C1, C4: cleanup removes what has expired and nothing else; a message whose record it removed runs again as new.
pub async fn cleanup_removes_only_what_has_expired<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let keeping = |retention| fixture.builder("orders", write).retention(retention).build().unwrap();
    let (short, long, forever) =
        (keeping(Retention::For(HOUR)), keeping(Retention::For(30 * DAY)), keeping(Retention::Forever));
    process(&short, [msg("short", "p")]).await;
    process(&long, [msg("long", "p")]).await;
    process(&forever, [msg("forever", "p")]).await;
    assert_eq!(clean_records(&fixture, 1000).await, 0, "nothing has expired yet");
    if !fixture.arrange(Arrangement::Age(DAY)).await {
        return;
    }
    process(&short, [msg("new", "p")]).await;
    assert_eq!(clean_records(&fixture, 1000).await, 1);
    assert_eq!(fixture.recorded().await, ["forever", "long", "new"]);
    let again = ["short", "long", "forever", "new"].map(|key| msg(key, "p"));
    assert_eq!(process(&short, again).await, [Kind::Processed, Kind::Duplicate, Kind::Duplicate, Kind::Duplicate]);
}

/// C4: a step of cleanup removes no more rows than its limit, and the steps come to an end.
pub async fn cleanup_goes_in_bounded_steps<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).retention(Retention::For(HOUR)).build().unwrap();
    process(&consumer, (0..10).map(|number| msg(&format!("order-{number}"), "p"))).await;
    if !fixture.arrange(Arrangement::Age(DAY)).await {
        return;
    }
    let mut removed = Vec::new();
    for _ in 0..20 {
        removed.push(clean_records(&fixture, 4).await);
        if removed.last() == Some(&0) {
            break;
        }
    }
    assert_eq!(removed.last(), Some(&0), "{removed:?}");
    assert!(removed.iter().all(|rows| *rows <= 4) && removed.iter().sum::<u64>() == 10, "{removed:?}");
    assert!(fixture.recorded().await.is_empty());
}

/// C4: operators can see how much a cycle would remove, how far behind cleanup is, and who cleaned last.
pub async fn cleanup_tells_how_far_it_is_and_who_came_last<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).retention(Retention::For(HOUR)).build().unwrap();
    process(&consumer, [msg("order-1", "p"), msg("order-2", "p")]).await;
    let mut cleaner = fixture.store.cleaner();
    assert!(within("may it delete", cleaner.may_delete()).await.unwrap());
    assert_eq!(within("the last", cleaner.last()).await.unwrap(), None);
    assert!(within("the backlog", cleaner.backlog()).await.unwrap().lag.is_zero());
    if !fixture.arrange(Arrangement::Age(DAY)).await {
        return;
    }
    let lag = within("the backlog", cleaner.backlog()).await.unwrap().lag;
    assert!(lag > 22 * HOUR && lag < DAY, "{lag:?}");
    let preview = within("a preview", cleaner.preview(&CleanupSettings::default())).await.unwrap();
    assert_eq!(preview.first(), Some(&(Expiring::Records, 2)));
    assert_eq!(fixture.recorded().await.len(), 2, "a preview removes nothing");
    within("noting a cycle", cleaner.note(&CleanupReport::default())).await.unwrap();
    cleaner.rest().await;
    let last = within("the last", fixture.store.cleaner().last()).await.unwrap();
    assert!(last.is_some_and(|last| !last.who.is_empty() && last.ago < HOUR));
}

/// A cleaner that is told to stop during its first step.
struct StoppedAtOnce(Box<dyn Cleaner>, Arc<Notify>);

#[async_trait]
impl Cleaner for StoppedAtOnce {
    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        let removed = self.0.remove(removal).await;
        self.1.notify_one();
        // Whoever waits for the stop has its turn.
        tokio::task::yield_now().await;
        removed
    }

    async fn preview(&mut self, settings: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        self.0.preview(settings).await
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        self.0.backlog().await
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        self.0.last().await
    }

    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError> {
        self.0.note(report).await
    }
}

/// C15: a cleanup that is stopped in the middle of a cycle ends its step, and writes down what it has removed; that is no cycle
/// that is over. The next one does the rest.
pub async fn a_stopped_cleanup_writes_down_what_it_removed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).retention(Retention::For(HOUR)).build().unwrap();
    process(&consumer, (0..10).map(|number| msg(&format!("order-{number}"), "p"))).await;
    if !fixture.arrange(Arrangement::Age(DAY)).await {
        return;
    }
    let stop = Arc::new(Notify::new());
    let cleaner = StoppedAtOnce(fixture.store.cleaner(), Arc::clone(&stop));
    let settings = CleanupSettings::default().every(Duration::from_secs(1)).rows_max(4);
    let cleanup = Cleanup::new(Box::new(cleaner), settings.step_timeout(Duration::from_secs(30))).unwrap();
    within("a cleanup that is stopped", cleanup.run(stop.notified())).await;
    let lines = async || {
        let lines = fixture.subject.audited().await.into_iter().map(|(action, _)| action);
        lines.filter(|action| action.starts_with("cleanup")).collect::<Vec<_>>()
    };
    assert_eq!((fixture.recorded().await.len(), lines().await), (6, vec!["cleanup-part".to_owned()]));
    assert_eq!(within("the last", fixture.store.cleaner().last()).await.unwrap(), None, "no cycle is over");
    let report = within("a cycle", Cleanup::new(fixture.store.cleaner(), settings).unwrap().cycle()).await.unwrap();
    assert_eq!(report.removed.first(), Some(&(Expiring::Records, 6)));
    assert_eq!(lines().await, ["cleanup-part", "cleanup"]);
    assert!(within("the last", fixture.store.cleaner().last()).await.unwrap().is_some());
}

/// S4: a key whose text was erased is still recognized by its id: a duplicate, or a conflict, and never a collision.
pub async fn an_erased_key_is_still_recorded<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    process(&consumer, [msg("order-1", "paid"), msg("order-2", "paid")]).await;
    if !fixture.arrange(Arrangement::EraseKeys).await {
        return;
    }
    assert_eq!(fixture.recorded().await, ["", ""]);
    let again = [msg("order-1", "paid"), msg("order-2", "refunded"), msg("order-3", "paid")];
    assert_eq!(process(&consumer, again).await, [Kind::Duplicate, Kind::Conflict, Kind::Processed]);
    let again = decide(&consumer, [msg("order-1", "paid")]).await.remove(0);
    assert!(matches!(&again, Decision::Duplicate(recorded, _) if recorded.key.as_str() == "order-1"), "{again:?}");
}

/// C3: a record that cleanup removes between the claim and the read of its winner: the key is claimed again and
/// its message runs, rather than pass for a duplicate of nothing.
pub async fn a_winner_that_vanishes_before_it_is_read_is_claimed_again<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).retention(Retention::For(HOUR)).build().unwrap();
    process(&consumer, [msg("order-1", "paid")]).await;
    if !fixture.arrange(Arrangement::Age(DAY)).await {
        return;
    }
    if !fixture.waits_per_key() {
        // The claim holds the database's only write lock, so that no cleanup can come in between.
        assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Duplicate]);
        return;
    }
    let gate = Gate::new();
    fixture.spy.gate_reads(gate.clone());
    let cleaned = async {
        gate.arrived(1).await;
        let removed = clean_records(&fixture, 1000).await;
        gate.open();
        removed
    };
    let call = process(&consumer, [msg("order-1", "paid")]);
    tokio::pin!(call);
    let kinds = tokio::select! {
        kinds = &mut call => {
            // A store that reads the winner in the claim itself leaves no gap.
            assert_eq!(kinds, [Kind::Duplicate]);
            return;
        }
        removed = cleaned => {
            assert_eq!(removed, 1);
            call.await
        }
    };
    assert_eq!(kinds, [Kind::Processed]);
    assert_eq!(fixture.runs.of("order-1"), 2, "its record had expired, so it runs anew");
    assert_eq!(fixture.recorded().await, ["order-1"]);
}

/// B6: where inserts are swallowed, nothing is a duplicate: no handler runs, nothing is settled, and after a few
/// units the consumer stops with the cause. When the cause is gone, everything runs.
pub async fn swallowed_records_are_no_duplicates<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    process(&consumer, [msg("order-0", "paid")]).await;
    if !fixture.arrange(Arrangement::SwallowRecords).await {
        return;
    }
    let mut kinds = Vec::new();
    for number in 1..=5 {
        kinds.extend(process(&consumer, [msg(&format!("order-{number}"), "paid")]).await);
    }
    assert!(!kinds.iter().any(|kind| kind.is_settled()), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&Kind::Failed(ErrorClass::Fatal)), "{kinds:?}");
    assert_eq!(fixture.runs.all(), ["order-0"]);
    fixture.arrange(Arrangement::Restore).await;
    redeliver(&consumer, (1..=5).map(|number| msg(&format!("order-{number}"), "paid")).collect()).await;
    fixture
        .assert_effects(["order-0", "order-1", "order-2", "order-3", "order-4", "order-5"].map(|key| (key, "paid")))
        .await;
}

/// A27: the table is gone during a claim and back later: no message is charged, and the redelivery runs.
pub async fn a_table_that_is_gone_for_a_while_is_infrastructure<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    process(&consumer, [msg("order-0", "paid")]).await;
    if !fixture.arrange(Arrangement::HideRecords).await {
        return;
    }
    let kinds = process(&consumer, [msg("order-1", "paid"), msg("order-2", "paid")]).await;
    assert_eq!(kinds, [Kind::Failed(ErrorClass::Infrastructure); 2]);
    fixture.arrange(Arrangement::Restore).await;
    redeliver(&consumer, ["order-0", "order-1", "order-2"].map(|key| msg(key, "paid")).to_vec()).await;
    fixture.assert_effects(["order-0", "order-1", "order-2"].map(|key| (key, "paid"))).await;
}

/// B21, A12: a schema without the records' unique key, or without what refuses foreign COMMITs, is refused at
/// start-up, and the text says what to do.
pub async fn a_damaged_schema_is_refused_with_its_cure<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    within("verifying", fixture.store.bookkeeping().verify())
        .await
        .unwrap_or_else(|error| panic!("a fresh schema is refused: {error}"));
    for damage in [Arrangement::DropSeal, Arrangement::DropUniqueKey] {
        if !fixture.arrange(damage).await {
            continue;
        }
        let error = within("verifying", fixture.elsewhere().await.store.bookkeeping().verify()).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Fatal, "{damage:?}: {error}");
        assert!(error.to_string().contains(". "), "{damage:?}: problem and cure are two sentences: {error}");
        let consumer = fixture.elsewhere().await.consumer(write);
        let started = within("starting", consumer.start()).await;
        assert!(started.is_err(), "{damage:?}");
    }
}

/// Contract of UnitOfWork 3: one answer a claim, in the order given, of old and new keys mixed.
pub async fn claims_and_reads_answer_in_order<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let keys: Vec<_> = (0..40).map(|number| format!("order-{number:02}")).collect();
    let is_old = |index: usize| index.is_multiple_of(3) || index.is_multiple_of(7);
    let old = keys.iter().enumerate().filter(|(index, _)| is_old(*index));
    process(&fixture.consumer(write), old.map(|(index, key)| msg(key, &format!("p{index}")))).await;
    let claims: Vec<_> = keys.iter().map(|key| claim(&registered, key, "other")).collect();
    let lane = fixture.open().await;
    let mut unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
    let answers = within("claiming", unit.claim(&claims)).await.unwrap();
    let found = within("reading", unit.read(&claims)).await.unwrap();
    assert_eq!((answers.len(), found.len()), (40, 40));
    for (index, (answer, read)) in answers.into_iter().zip(found).enumerate() {
        assert_eq!(answer == Claimed::Inserted, !is_old(index), "{index}: {answer:?}");
        if !is_old(index) {
            continue;
        }
        let expected = idem_core::hash::PayloadHash::of(format!("p{index}").as_bytes());
        let read = read.unwrap_or_else(|| panic!("{index} was recorded"));
        assert_eq!((read.key.as_str(), read.hash), (keys[index].as_str(), expected));
        if let Claimed::Found(found) = answer {
            assert_eq!(found, read);
        }
    }
    within("rolling back", unit.rollback()).await.unwrap();
    assert_eq!(fixture.recorded().await.len(), (0..40).filter(|index| is_old(*index)).count());
}

/// S58, contract of UnitOfWork 10: a unit knows the time of its records before the commit, to the microsecond. An encrypted answer is bound
/// to its record by it.
pub async fn s58_a_unit_knows_the_time_of_its_records<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.store.capabilities().results {
        return;
    }
    let registered = fixture.register().await;
    let mut lane = fixture.open().await;
    for keys in [&["order-1"][..], &["order-2", "order-3", "order-4"]] {
        let claims: Vec<_> = keys.iter().map(|key| claim(&registered, key, "p")).collect();
        let options = options(registered.run).alone(keys.len() == 1);
        let mut unit = within("beginning", fixture.store.begin(lane, options)).await.unwrap();
        assert!(within("claiming", unit.claim(&claims)).await.unwrap().iter().all(|one| *one == Claimed::Inserted));
        let known: Vec<_> = claims.iter().map(|claim| unit.processed_at(claim)).collect();
        assert!(known.iter().all(Option::is_some), "{known:?}");
        let (session, committed) = within("committing", unit.commit()).await;
        committed.unwrap();
        let mut unit = within("beginning", fixture.store.begin(session.unwrap(), options)).await.unwrap();
        within("claiming nothing", unit.claim(&[])).await.unwrap();
        let read = within("reading", unit.read(&claims)).await.unwrap();
        assert_eq!(read.into_iter().map(|read| read.map(|read| read.processed_at)).collect::<Vec<_>>(), known);
        lane = within("rolling back", unit.rollback()).await.unwrap().unwrap();
    }
}

/// One unit may claim in several rounds, and a lane carries one unit after the other; a large claim is still one.
pub async fn units_and_rounds_follow_one_another_on_a_lane<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let mut lane = fixture.open().await;
    for number in 0..6 {
        let mut unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
        for round in 0..2 {
            let claims = [claim(&registered, &format!("order-{number}-{round}"), "p")];
            assert_eq!(within("claiming", unit.claim(&claims)).await.unwrap(), [Claimed::Inserted]);
        }
        unit.check().unwrap();
        let session = if number % 2 == 0 {
            let (session, committed) = within("committing", unit.commit()).await;
            committed.unwrap();
            session
        } else {
            within("rolling back", unit.rollback()).await.unwrap()
        };
        lane = session.unwrap_or_else(|| panic!("a unit that has ended gives the lane back"));
    }
    let committed = ["order-0-0", "order-0-1", "order-2-0", "order-2-1", "order-4-0", "order-4-1"];
    assert_eq!(fixture.recorded().await, committed);
    let mut unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
    let large = if fixture.units_hold_one() { 1 } else { 2000 };
    let claims: Vec<_> = (0..large).map(|number| claim(&registered, &format!("large-{number:04}"), "p")).collect();
    let answers = within("claiming many keys", unit.claim(&claims)).await.unwrap();
    assert!(answers.len() == large && answers.iter().all(|answer| *answer == Claimed::Inserted));
    within("committing", unit.commit()).await.1.unwrap();
    assert_eq!(fixture.recorded().await.len(), 6 + large);
}

/// C7: a failed message has left no record, so that its replay runs; a handled one is a duplicate in every replay.
pub async fn a_failure_leaves_no_record_in_the_way_of_its_replay<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let failing = fixture.consumer(|_, _| vec![super::fixture::Step::Write(""), super::fixture::Step::FailForGood]);
    assert_eq!(process(&failing, [msg("order-1", "paid")]).await, [Kind::Failed(ErrorClass::Permanent)]);
    assert!(fixture.recorded().await.is_empty());
    let repaired = fixture.elsewhere().await.consumer(write);
    assert_eq!(process(&repaired, [msg("order-1", "paid")]).await, [Kind::Processed]);
    assert_eq!(process(&repaired, [msg("order-1", "paid")]).await, [Kind::Duplicate]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// C2: the clock that expiry is decided by is the database's, and it goes forward.
pub async fn the_databases_clock_goes_forward<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let first = fixture.register().await;
    let control = within("reading the controls", fixture.store.bookkeeping().control(first.scope)).await.unwrap();
    let second = fixture.register().await;
    assert!(
        first.now <= control.now && control.now <= second.now,
        "{:?} {:?} {:?}",
        first.now,
        control.now,
        second.now
    );
    assert!(first.now > SystemTime::UNIX_EPOCH + 365 * 50 * DAY, "{:?}", first.now);
}

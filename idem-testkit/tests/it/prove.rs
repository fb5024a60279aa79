//! [`prove`] holds a good handler for good, and says of each bad one what is wrong with it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_core::{
    BoxError, Handler, HandlerError, IdempotencyKey, Message, Store as _, Tx,
    key::{KEY_FIELD, KeyError, key_fn},
    message::OrderingKey,
    scratch::{Scratch, Tables},
    store::{RunId, UnitOfWork as _, UnitOptions},
};
use idem_testkit::{Defect, MemoryScratch, MemoryStore, NotProven, Promise, Proven, message, prove};

fn messages() -> Vec<Message> {
    vec![message("order-1", "250"), message("order-2", "990"), message("order-3", "5"), message("order-4", "250")]
}

async fn proved<H: Handler<MemoryStore>>(
    handler: impl Fn(&MemoryStore) -> H + Send + Sync + 'static,
) -> Result<Proven, NotProven> {
    prove(MemoryScratch, handler).messages(messages()).run().await
}

fn broken(proved: Result<Proven, NotProven>) -> (Promise, String) {
    match proved.unwrap_err() {
        error @ NotProven::Broken { promise, .. } => (promise, error.to_string()),
        other => panic!("{other}"),
    }
}

fn key(message: &Message) -> &str {
    message.key().map(|key| key.as_str()).unwrap_or_default()
}

/// Writes a purchase.
struct Ledger;

impl Handler<MemoryStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let cents: u64 = message.json()?;
        Ok(tx.connection().append("purchases", key(message), cents.to_string()).await?)
    }
}

/// Reads a total and writes another: between the two another transaction may have written.
struct Totals;

impl Handler<MemoryStore> for Totals {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let cents: u64 = message.json()?;
        let mut connection = tx.connection();
        let total = connection.get("totals", "cents").await?.map_or(0, |bytes| number(&bytes));
        Ok(connection.put("totals", "cents", (total + cents).to_string()).await?)
    }
}

/// The key of the header, and this.
fn keyed(message: &Message, more: &[u8]) -> Result<Option<IdempotencyKey>, KeyError> {
    let text = message.headers().text(KEY_FIELD).unwrap_or_default();
    IdempotencyKey::new(&format!("{text}/{}", String::from_utf8_lossy(more))).map(Some)
}

fn number(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

#[tokio::test]
async fn j62_a_handler_that_writes_through_its_transaction_is_proved() {
    let proven = proved(|_| Ledger).await.unwrap();
    let points: BTreeSet<_> = idem_core::failpoint::ALL.iter().copied().chain(["handler_waits"]).collect();
    let of_a_relay = idem_core::failpoint::OF_A_RELAY;
    let spared: Vec<_> = points.difference(&proven.died_at).filter(|point| !of_a_relay.contains(point)).collect();
    let nowhere = [&"appended", &"clean_chunk", &"commit_sent"];
    assert_eq!(spared, nowhere, "the handler publishes nothing, and a store in memory sends no COMMIT: {proven}");
    eprintln!("{proven}");
}

#[tokio::test]
async fn j62_a_lost_update_is_told() {
    let (promise, text) = broken(proved(|_| Totals).await);
    assert_eq!(promise, Promise::WorksBesideItself, "{text}");
    assert!(text.contains("Does your handler read a value and write another that it made of it?"), "{text}");
}

/// A consumer that is set up wrongly: without records, which is reported before anything is proved, with keys that cover the
/// payload, with keys that copies do not share.
#[tokio::test]
async fn j62_a_consumer_that_breaks_the_promise_is_told() {
    let of_type = |message: &Message| message.clone().with_type("audit");
    let typed = || messages().iter().map(of_type).collect::<Vec<_>>();
    let proof = prove(MemoryScratch, |_| Ledger).messages(typed());
    let without_records = proof.consumer(|builder| builder.unprotected_type("audit")).run().await.unwrap_err();
    assert!(without_records.to_string().contains("each message must have a key"), "{without_records}");

    let with_payload = || {
        key_fn("with the payload", |message: &Message| keyed(message, &message.payload().cloned().unwrap_or_default()))
    };
    let proof = prove(MemoryScratch, |_| Ledger).messages(messages());
    let (promise, text) = broken(proof.consumer(move |builder| builder.key_source(with_payload())).run().await);
    assert_eq!(promise, Promise::RefusesConflicts, "{text}");

    let with_origin =
        || key_fn("with the origin", |message: &Message| keyed(message, message.origin().as_str().as_bytes()));
    let proof = prove(MemoryScratch, |_| Ledger).messages(messages());
    let (promise, text) = broken(proof.consumer(move |builder| builder.key_source(with_origin())).run().await);
    assert_eq!(promise, Promise::SurvivesDeath, "{text}");
}

/// Keys that a message shares with the same one as long as each is published once: their second copies have keys of their own.
#[tokio::test]
async fn j62_copies_that_take_effect_are_told() {
    let of_the_round = || {
        key_fn("of the round", |message: &Message| {
            let number = message.origin().as_str().rsplit('/').next().and_then(|number| number.parse().ok());
            let round = number.unwrap_or(0_usize).saturating_sub(1) / messages().len();
            keyed(message, round.to_string().as_bytes())
        })
    };
    let proof = prove(MemoryScratch, |_| Ledger).messages(messages());
    let (promise, text) = broken(proof.consumer(move |builder| builder.key_source(of_the_round())).run().await);
    assert_eq!(promise, Promise::IgnoresDuplicates, "{text}");
}

/// Takes longer for one message than the least deadline that is set where another one hangs. The proof has a runtime of its own, whose clock
/// stands still from the first message on, so that it takes no time of the test's.
struct Slow(Arc<Once>);

impl Handler<MemoryStore> for Slow {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.0.call_once(tokio::time::pause);
        if key(message) == "order-1" {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        Ledger.handle(message, tx).await
    }
}

/// J99: a handler that takes seconds, and keeps its own deadline, is not blamed for a deadline of the proof's.
#[tokio::test]
async fn j99_a_handler_that_takes_seconds_is_proved() {
    let paused = Arc::new(Once::new());
    proved(move |_| Slow(paused.clone())).await.unwrap();
}

async fn in_one_key<H: Handler<MemoryStore>>(
    deadline: Duration,
    handler: impl Fn(&MemoryStore) -> H + Send + Sync + 'static,
) -> Result<Proven, NotProven> {
    let ordered = messages().into_iter().map(|message| message.with_ordering_key(OrderingKey::new("account-7")));
    let proof = prove(MemoryScratch, handler).messages(ordered);
    proof.consumer(move |builder| builder.handler_deadline(deadline)).run().await
}

/// J99: all messages have one ordering key, so no two runs ever meet, and the proof holds each run in vain. It must not hold it for so
/// long that the handler's deadline ends it.
#[tokio::test]
async fn j99_a_handler_with_a_short_deadline_and_one_ordering_key_is_proved() {
    in_one_key(Duration::from_secs(5), |_| Ledger).await.unwrap();
    let (promise, text) = broken(in_one_key(Duration::from_secs(5), |_| Remembers::default()).await);
    assert_eq!(promise, Promise::ForgetsAttempts, "{text}");
    assert!(text.contains("Does your handler keep something in memory"), "{text}");
}

/// Takes longer than its deadline from its twentieth run on, by a clock that stands still.
struct Tires(Arc<(Once, AtomicU32)>);

impl Handler<MemoryStore> for Tires {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.0.0.call_once(tokio::time::pause);
        Ledger.handle(message, tx).await?;
        if self.0.1.fetch_add(1, Ordering::SeqCst) >= 20 {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        Ok(())
    }
}

/// J99: where a deadline has ended a run, the text says so.
#[tokio::test]
async fn j99_a_handler_that_misses_its_deadline_is_told_of_it() {
    let runs = Arc::new((Once::new(), AtomicU32::new(0)));
    let text = in_one_key(Duration::from_secs(5), move |_| Tires(runs.clone())).await.unwrap_err().to_string();
    assert!(text.contains("did not end within its deadline of 5s"), "{text}");
}

/// Writes down which message it has seen before this one, in whatever attempt.
#[derive(Default)]
struct NotesTheLast(Mutex<String>);

impl Handler<MemoryStore> for NotesTheLast {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let last = std::mem::replace(&mut *self.0.lock().unwrap(), key(message).to_owned());
        Ok(tx.connection().append("purchases", key(message), last).await?)
    }
}

/// Where messages have no order of their own, such a row differs with each run, and is compared only where they have one.
#[tokio::test]
async fn j62_what_goes_by_the_order_of_attempts_is_told() {
    let (promise, text) = broken(proved(|_| NotesTheLast::default()).await);
    assert_eq!(promise, Promise::KeepsOrder, "{text}");
}

/// Databases that break their contract.
struct Defective(Defect);

impl Scratch for Defective {
    type Store = MemoryStore;
    type Address = MemoryStore;

    async fn create(&self) -> Result<MemoryStore, BoxError> {
        Ok(MemoryStore::with_defect(self.0))
    }

    fn describe(&self, address: &MemoryStore) -> Option<String> {
        MemoryScratch.describe(address)
    }

    async fn connect(&self, address: &MemoryStore) -> Result<Arc<MemoryStore>, BoxError> {
        MemoryScratch.connect(address).await
    }

    async fn tables(&self, address: &MemoryStore) -> Result<Tables, BoxError> {
        MemoryScratch.tables(address).await
    }

    async fn disturb(&self, address: &MemoryStore) -> Result<(), BoxError> {
        MemoryScratch.disturb(address).await
    }

    async fn spoil(&self, tx: &mut Tx<'_, MemoryStore>) {
        MemoryScratch.spoil(tx).await;
    }

    async fn mend(&self, tx: &mut Tx<'_, MemoryStore>) {
        MemoryScratch.mend(tx).await;
    }

    async fn remove(&self, _: MemoryStore) {}
}

#[tokio::test]
async fn j62_a_store_that_breaks_its_contract_is_not_proved_on() {
    for (defect, promise) in
        [(Defect::PutsEffectsOutside, Promise::RollsBack), (Defect::RecordsOutside, Promise::ForgetsAttempts)]
    {
        let proved = prove(Defective(defect), |_| Ledger).messages(messages()).run().await;
        assert_eq!(broken(proved).0, promise, "{defect:?}");
    }
}

/// Writes over a connection of its own.
struct Elsewhere(MemoryStore);

impl Handler<MemoryStore> for Elsewhere {
    async fn handle(&self, message: &Message, _: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let session = self.0.open().await?;
        let limits = UnitOptions::new(RunId(1), 0, Duration::from_secs(1), Duration::from_secs(1));
        let mut unit = self.0.begin(session, limits).await?;
        unit.claim(&[]).await.map_err(|error| HandlerError::from(error.to_string()))?;
        unit.tx().connection().append("purchases", key(message), "1").await?;
        unit.commit().await.1.map_err(|error| HandlerError::from(error.to_string()))
    }
}

#[tokio::test]
async fn j62_a_write_over_another_connection_is_told_with_its_row() {
    let (promise, text) = broken(proved(|store| Elsewhere(store.clone())).await);
    assert_eq!(promise, Promise::RollsBack);
    let wanted = "your handler wrote through a connection that is not `tx`: row (key=order-1, value=1) of table purchases \
                  remained after the rollback";
    assert!(text.contains(wanted), "{text}");
}

/// Sends a COMMIT of its own.
struct CommitsItself;

impl Handler<MemoryStore> for CommitsItself {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        tx.connection().append("purchases", key(message), "1").await?;
        let _ = tx.connection().raw_commit().await;
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_handler_that_ends_its_transaction_is_told_so() {
    let text = proved(|_| CommitsItself).await.unwrap_err().to_string();
    assert!(text.contains("Your handler ends the transaction that it was given"), "{text}");
}

/// Takes what fails for done.
struct Swallows;

impl Handler<MemoryStore> for Swallows {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let _ = tx.connection().append("purchases", key(message), "1").await;
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_swallowed_error_is_told_with_its_message() {
    let (promise, text) = broken(proved(|_| Swallows).await);
    assert_eq!(promise, Promise::HandsErrorsOn);
    assert!(text.contains("your handler answered Ok for message order-1 although its statements had failed"), "{text}");
}

/// Remembers what it has seen, although that was rolled back.
#[derive(Default)]
struct Remembers(Mutex<BTreeSet<String>>);

impl Handler<MemoryStore> for Remembers {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        if !self.0.lock().unwrap().insert(key(message).to_owned()) {
            return Ok(());
        }
        Ok(tx.connection().append("purchases", key(message), "1").await?)
    }
}

#[tokio::test]
async fn j62_state_that_outlives_an_attempt_is_told() {
    let (promise, text) = broken(proved(|_| Remembers::default()).await);
    assert_eq!(promise, Promise::ForgetsAttempts);
    assert!(text.contains("Does your handler keep something in memory between attempts"), "{text}");
    assert!(text.contains("row (key=order-1, value=1) of table purchases is not there"), "{text}");
}

/// Writes a part of its effect outside, and only once it is late.
struct NotesTheEnd(MemoryStore);

impl Handler<MemoryStore> for NotesTheEnd {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        Ledger.handle(message, tx).await?;
        Elsewhere(self.0.clone()).handle(message, tx).await
    }
}

#[tokio::test]
async fn j62_a_part_that_is_written_elsewhere_is_enough() {
    let (promise, _) = broken(proved(|store| NotesTheEnd(store.clone())).await);
    assert_eq!(promise, Promise::RollsBack);
}

/// Does nothing that can be seen.
struct Idle;

impl Handler<MemoryStore> for Idle {
    async fn handle(&self, _: &Message, _: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[tokio::test]
async fn j62_what_cannot_be_seen_is_not_proved() {
    let text = proved(|_| Idle).await.unwrap_err().to_string();
    assert!(text.contains("the handler changes no table"), "{text}");
    let few = prove(MemoryScratch, |_| Ledger).messages([message("order-1", "1")]).run().await.unwrap_err().to_string();
    assert!(few.contains("at least 3 messages"), "{few}");
    let same = [message("order-1", "1"), message("order-1", "1"), message("order-2", "1")];
    let same = prove(MemoryScratch, |_| Ledger).messages(same).run().await.unwrap_err().to_string();
    assert!(same.contains("not handled"), "{same}");
    let junk = [message("order-1", "one"), message("order-2", "1"), message("order-3", "1")];
    let junk = prove(MemoryScratch, |_| Ledger).messages(junk).run().await.unwrap_err().to_string();
    assert!(junk.contains("the handler does not take message order-1"), "{junk}");
}

//! A store whose consumer publishes, and destinations that follow a script.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    DedupConsumer, Effects, Event, HandlerError, Message, Store as _, Tx,
    consumer::Decided,
    handler_fn,
    outbox::{DestinationLimits, Dispatch, EventError, EventPublisher, EventState, Outbox, OutgoingEvent, StoredEvent},
    relay::{Relay, RelayBuilder},
};
use idem_testkit::{MemoryStore, message};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// Publishes what its payload says: the destination, the ordering key and the event's body.
async fn publish(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    let (destination, ordering_key, body): (String, String, String) = message.json()?;
    let mut event = Event::to(&destination).event_type("Told").body(body);
    if !ordering_key.is_empty() {
        event = event.ordering_key(ordering_key);
    }
    tx.publish(message, event)?;
    Ok(())
}

pub(crate) struct Fixture {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) consumer: DedupConsumer<MemoryStore>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let consumer = DedupConsumer::builder(Arc::clone(&store), "teller")
            .handler(handler_fn(publish))
            .handler_name("teller")
            .lanes(2)
            .effects(Effects::InTransaction)
            .publish_to(["a", "b"])
            .build()
            .unwrap();
        Self { store, consumer }
    }

    /// Commits an event for each: destination, ordering key, body, which must differ.
    pub(crate) async fn commit<'e>(&self, events: impl IntoIterator<Item = (&'e str, String, String)>) {
        let messages: Vec<Message> = events
            .into_iter()
            .map(|(to, ordering_key, body)| {
                let payload = serde_json::to_vec(&(to, ordering_key, &body)).unwrap();
                message(&format!("{to}-{body}"), payload)
            })
            .collect();
        for Decided { decision, .. } in self.consumer.process(messages).await.unwrap() {
            assert!(decision.is_processed(), "{decision:?}");
        }
    }

    /// Commits so many events for a destination, without ordering keys.
    pub(crate) async fn commit_many(&self, to: &str, numbers: std::ops::Range<u32>) {
        self.commit(numbers.map(|number| (to, String::new(), number.to_string()))).await;
    }

    pub(crate) fn outbox(&self) -> Arc<dyn Outbox> {
        self.store.outbox().expect("an outbox")
    }

    pub(crate) fn relay(&self) -> RelayBuilder {
        Relay::builder(self.outbox())
    }

    pub(crate) async fn left(&self, state: EventState) -> Vec<StoredEvent> {
        self.outbox().events(None, Some(state), u32::MAX).await.unwrap()
    }

    /// Waits until the outbox holds no more than so many events.
    pub(crate) async fn drained_to(&self, left: usize) {
        let begun = Instant::now();
        while self.store.events().len() > left {
            sleep(Duration::from_millis(5)).await;
            assert!(begun.elapsed() < Duration::from_secs(600), "{} events are left", self.store.events().len());
        }
    }
}

/// A relay that runs until it is killed or stopped.
pub(crate) fn running(relay: Relay) -> JoinHandle<Result<(), idem_core::relay::RelayError>> {
    tokio::spawn(relay.run(std::future::pending()))
}

/// The reaction of a destination to an event.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// It is kept and not confirmed, for ever.
    Hangs,
    /// It is kept, and no confirmation comes.
    LosesTheAnswer,
    /// It is kept, and confirmed after this time, if the client is looked after before its own limit of eight seconds is over.
    AnswersAfter(Duration),
    NeverFits,
    FailsAndCounts,
    Panics,
}

#[derive(Default)]
struct Kept {
    /// The id and the body of each, in the order of their arrival, and when that was.
    arrived: Vec<(String, String)>,
    at: Vec<Instant>,
    away: bool,
    refused: bool,
    does: BTreeMap<String, Does>,
    calls: u64,
}

/// A destination. Clones are the same.
#[derive(Clone)]
pub(crate) struct Topic {
    kept: Arc<Mutex<Kept>>,
    dispatch: Dispatch,
    takes: Duration,
    bytes_max: Option<u64>,
}

impl Topic {
    pub(crate) fn new() -> Self {
        let dispatch = Dispatch::Batches { events_max: 100 };
        Self { kept: Arc::default(), dispatch, takes: Duration::from_millis(2), bytes_max: None }
    }

    /// One that knows how large a message it takes.
    pub(crate) fn of_bytes(bytes_max: u64) -> Self {
        Self { bytes_max: Some(bytes_max), ..Self::new() }
    }

    pub(crate) fn each(at_once: usize) -> Self {
        Self { dispatch: Dispatch::Each { at_once }, ..Self::new() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }

    pub(crate) fn away(&self, yes: bool) {
        self.kept().away = yes;
    }

    pub(crate) fn refuses(&self, yes: bool) {
        self.kept().refused = yes;
    }

    pub(crate) fn with(self, body: &str, does: Does) -> Self {
        self.kept().does.insert(body.to_owned(), does);
        self
    }

    pub(crate) fn mend(&self, body: &str) {
        self.kept().does.remove(body);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.kept().calls
    }

    /// The bodies, in the order of their arrival.
    pub(crate) fn arrived(&self) -> Vec<String> {
        self.kept().arrived.iter().map(|(_, body)| body.clone()).collect()
    }

    /// The bodies, with the time of their arrival.
    pub(crate) fn arrivals(&self) -> Vec<(String, Instant)> {
        self.arrived().into_iter().zip(self.kept().at.clone()).collect()
    }

    /// The ids, in the order of their arrival.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.kept().arrived.iter().map(|(id, _)| id.clone()).collect()
    }

    /// The events that have arrived, each once.
    pub(crate) fn set(&self) -> BTreeSet<String> {
        self.arrived().into_iter().collect()
    }

    fn keep(&self, arrival: (String, String)) {
        let mut kept = self.kept();
        kept.arrived.push(arrival);
        kept.at.push(Instant::now());
    }

    async fn take(&self, event: &OutgoingEvent) -> Result<(), EventError> {
        let body = String::from_utf8(event.payload.to_vec()).unwrap();
        let does = self.kept().does.get(&body).cloned();
        let arrival = (event.key.as_str().to_owned(), body);
        match does {
            None => {}
            Some(Does::NeverFits) => return Err(EventError::DoesNotFit { problem: "too large".to_owned() }),
            Some(Does::FailsAndCounts) => return Err(EventError::not_sent("not this one")),
            Some(Does::Panics) => panic!("the publisher panics at {}", arrival.1),
            Some(Does::LosesTheAnswer) => {
                self.keep(arrival);
                return Err(EventError::unconfirmed("the answer was lost").uncounted());
            }
            Some(Does::AnswersAfter(time)) => {
                self.keep(arrival);
                return tokio::select! {
                    biased;
                    () = sleep(Duration::from_secs(8)) => Err(EventError::unconfirmed("no answer within 8 s")),
                    () = sleep(time) => Ok(()),
                };
            }
            Some(Does::Hangs) => {
                self.keep(arrival);
                return std::future::pending().await;
            }
        }
        self.keep(arrival);
        Ok(())
    }
}

#[async_trait]
impl EventPublisher for Topic {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let (away, refused) = {
            let mut kept = self.kept();
            kept.calls += 1;
            (kept.away, kept.refused)
        };
        if refused {
            let refused = || EventError::Refused { problem: "no such topic".to_owned(), cure: "Create it".to_owned() };
            return events.iter().map(|_| Err(refused())).collect();
        }
        if away {
            sleep(Duration::from_secs(8)).await;
            return events.iter().map(|_| Err(EventError::unconfirmed("no broker").uncounted())).collect();
        }
        sleep(self.takes).await;
        let mut answers = Vec::new();
        for event in events {
            answers.push(self.take(event).await);
        }
        answers
    }

    fn dispatch(&self) -> Dispatch {
        self.dispatch
    }

    async fn limits(&self) -> Option<DestinationLimits> {
        self.bytes_max.map(|bytes| DestinationLimits::new("topic").message_bytes_max(Some(bytes)))
    }
}

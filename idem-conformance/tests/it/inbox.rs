//! The inbox suite on the store in memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use idem_conformance::inbox::{Commit, InboxUnderTest, SlotChange};
use idem_core::{
    inbox::{Inbox, InboxStore as _, NewInboxRow},
    store::ScopeId,
};
use idem_testkit::MemoryStore;

struct Subject(Arc<MemoryStore>);

impl InboxUnderTest for Subject {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.0.inbox()
    }

    async fn put_late(&self, inbox: ScopeId, row: NewInboxRow) -> Option<Commit> {
        let late = self.0.put_late(inbox, row);
        Some(Box::new(move || Box::pin(async move { late.commit() })))
    }

    async fn change_slots(&self, inbox: ScopeId, change: SlotChange<'_>) {
        match change {
            SlotChange::Wanted => self.0.want_slots(inbox, Duration::from_millis(700)),
            SlotChange::Lost => self.0.lose_slots(inbox),
            SlotChange::Expired(holder) => self.0.expire_slots(inbox, holder),
        }
    }

    async fn holders(&self, inbox: ScopeId) -> Vec<(String, usize)> {
        let mut holders: BTreeMap<String, usize> = BTreeMap::new();
        for holder in self.0.slot_holders(inbox) {
            *holders.entry(holder).or_default() += 1;
        }
        holders.into_iter().collect()
    }
}

async fn fresh() -> Subject {
    Subject(Arc::new(MemoryStore::new()))
}

idem_conformance::inbox_conformance!(fresh);

mod worker {
    use std::{sync::Arc, time::Duration};

    use idem_core::{
        CancellationToken, ConsumerName, DedupConsumer, Effects, HandlerError, Message, Source, Tx, Worker,
        config::RetryPolicy,
        handler_fn,
        inbox::{InboxSource, InboxStore as _, Receiver},
        source::{Received, Settle, Settled},
        worker::Summary,
    };
    use idem_testkit::{
        MemoryStore, durables,
        memory::{Broker, Queue, QueueOptions},
        message,
    };
    use tokio::time::Instant;

    async fn handle(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let payload = message.payload().cloned().unwrap_or_default();
        match &payload[..] {
            b"never" => Err(HandlerError::permanent("it can never succeed")),
            b"fails" => Err(HandlerError::transient("it fails each time")),
            _ => {
                let key = message.key().map(|key| key.as_str().to_owned()).unwrap_or_default();
                Ok(tx.connection().append("effects", &key, payload).await?)
            }
        }
    }

    fn queue() -> Queue {
        let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
        for number in 0..40 {
            let body = match number {
                7 => "never".to_owned(),
                13 => "fails".to_owned(),
                other => other.to_string(),
            };
            queue.publish(message(&format!("key-{number}"), body)).unwrap();
        }
        // Copies, a conflict, and one without a key.
        for (key, body) in [("key-1", "1"), ("key-2", "2"), ("key-3", "another")] {
            queue.publish(message(key, body)).unwrap();
        }
        queue.publish(Message::new("no key")).unwrap();
        queue
    }

    async fn work<B: Source>(store: &Arc<MemoryStore>, source: B) -> Summary {
        let consumer = DedupConsumer::builder(MemoryStore::clone(store), "orders")
            .handler(handler_fn(handle))
            .effects(Effects::InTransaction)
            .build()
            .unwrap();
        let retry = RetryPolicy::new(3, Duration::from_millis(50), Duration::from_millis(100));
        let worker = Worker::builder(consumer, source).until_idle(Duration::from_secs(2)).retry(retry).build().unwrap();
        worker.run(std::future::pending()).await.unwrap()
    }

    /// Effects, dead letters and totals.
    type Outcome = (Vec<(String, idem_core::Bytes)>, Vec<String>, [u64; 4]);

    fn outcome(store: &MemoryStore, summary: &Summary) -> Outcome {
        let mut effects = store.rows("effects");
        effects.sort();
        let letters = store.kept_dead_letters();
        let mut letters: Vec<String> = letters
            .iter()
            .map(|kept| {
                let seen = &kept.row;
                format!("{} {:?} {} attempts, {:?}", seen.origin, seen.reason, seen.attempts, seen.key)
            })
            .collect();
        letters.sort();
        (effects, letters, [summary.processed, summary.duplicates, summary.conflicts, summary.dead_lettered])
    }

    /// Through the inbox a consumer has the effects, the dead letters and the totals that it has directly at the broker.
    #[tokio::test(start_paused = true)]
    async fn n8_an_inbox_changes_no_outcome() {
        let direct = Arc::new(MemoryStore::new());
        let summary = work(&direct, queue().source()).await;
        let expected = outcome(&direct, &summary);
        assert_eq!((expected.0.len(), expected.1.len()), (38, 4), "{expected:?}");

        let store = Arc::new(MemoryStore::new());
        let (queue, stop) = (queue(), CancellationToken::new());
        let name = ConsumerName::new("orders").unwrap();
        let receiver = Receiver::new(queue.source(), store.inbox(), name.clone());
        let receiving = tokio::spawn(receiver.run(stop.clone().cancelled_owned()));
        queue.drained().await;
        stop.cancel();
        assert_eq!(receiving.await.unwrap().unwrap(), 44);
        let summary = work(&store, InboxSource::new(store.inbox(), name.clone())).await;
        assert_eq!(outcome(&store, &summary), expected);
        let open = store.inbox().find(&name).await.unwrap().unwrap();
        assert_eq!(store.inbox().backlog(open.id, &[], 1).await.unwrap().rows, 0);
    }

    /// A removal waits longer the more messages are in flight, so that more of them are removed with it; not once the source stops.
    #[tokio::test(start_paused = true)]
    async fn rows_of_messages_that_end_one_by_one_are_removed_together() {
        let (store, name) = (Arc::new(MemoryStore::new()), ConsumerName::new("orders").unwrap());
        let (inbox, queue) = (store.inbox(), Broker::new().create("orders", QueueOptions::default()).unwrap());
        for number in 0..1_000 {
            queue.publish(message(&format!("key-{number}"), "x")).unwrap();
        }
        let (receiver, stop) =
            (Receiver::new(queue.source(), Arc::clone(&inbox), name.clone()), CancellationToken::new());
        let receiving = tokio::spawn(receiver.run(stop.clone().cancelled_owned()));
        queue.drained().await;
        stop.cancel();
        receiving.await.unwrap().unwrap();

        let source = InboxSource::new(inbox, name);
        source.attach().await.unwrap();
        let mut handles = Vec::new();
        while handles.len() < 1_000 {
            let Received::Deliveries(deliveries) = source.receive(1_000).await.unwrap() else { panic!("no messages") };
            handles.extend(deliveries.into_iter().map(|delivery| delivery.handle));
        }
        for (number, (handle, proof)) in handles.into_iter().zip(durables(1_000).await).enumerate() {
            if number == 900 {
                source.stop();
            }
            let began = Instant::now();
            assert_eq!(source.settle(vec![(handle, Settle::Acknowledge(proof))]).await, [Settled::Settled]);
            let waited = began.elapsed();
            let least = Duration::from_micros(50) * u32::try_from(1_000 - number).unwrap();
            match number {
                900.. => assert_eq!(waited, Duration::ZERO, "{number}"),
                _ => assert!((least..=least + Duration::from_millis(2)).contains(&waited), "{number}: {waited:?}"),
            }
        }
    }

    /// N4, N8: a process dies at each step of receiver and source, and the next one goes on.
    #[cfg(feature = "failpoints")]
    #[tokio::test(start_paused = true)]
    async fn n8_a_process_that_dies_at_any_step_loses_and_doubles_nothing() {
        use std::sync::atomic::{AtomicU32, Ordering};

        use idem_core::failpoint::{Fate, INBOX_READ, INBOX_REMOVED, INBOX_WRITTEN, Life};

        // Attempts that a death cut short are counted.
        let shown = |store: &MemoryStore, summary: &Summary| {
            let (effects, letters, _) = outcome(store, summary);
            let letters: Vec<String> =
                letters.iter().map(|letter| letter.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
            (effects, letters)
        };
        let direct = Arc::new(MemoryStore::new());
        let summary = work(&direct, queue().source()).await;
        let expected = shown(&direct, &summary);
        let steps = [(INBOX_WRITTEN, 0), (INBOX_READ, 0), (INBOX_READ, 1), (INBOX_REMOVED, 0), (INBOX_REMOVED, 1)];
        for (step, passes) in steps {
            let (store, queue, passed) = (Arc::new(MemoryStore::new()), queue(), AtomicU32::new(0));
            let name = ConsumerName::new("orders").unwrap();
            let dies = move |at| at == step && passed.fetch_add(1, Ordering::SeqCst) == passes;
            let life = Life::fated(move |at| if dies(at) { Fate::Die } else { Fate::Pass });
            let receiver = Receiver::new(queue.source(), store.inbox(), name.clone());
            drop(life.spawn(receiver.run(std::future::pending())));
            while store.inbox().find(&name).await.unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (its, source) = (Arc::clone(&store), InboxSource::new(store.inbox(), name.clone()));
            drop(life.spawn(async move { work(&its, source).await }));
            let dead = async {
                while !life.is_over() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), dead)
                .await
                .unwrap_or_else(|_| panic!("it never died at {step}"));

            let stop = CancellationToken::new();
            let receiver = Receiver::new(queue.source(), store.inbox(), name.clone());
            let receiving = tokio::spawn(receiver.run(stop.clone().cancelled_owned()));
            queue.drained().await;
            stop.cancel();
            receiving.await.unwrap().unwrap();
            let summary = work(&store, InboxSource::new(store.inbox(), name.clone())).await;
            assert_eq!(shown(&store, &summary), expected, "{step}, {passes}");
            let open = store.inbox().find(&name).await.unwrap().unwrap();
            assert_eq!(store.inbox().backlog(open.id, &[], 1).await.unwrap().rows, 0);
        }
    }
}

/// Injected bugs turn the case red that is about them.
#[cfg(idem_bugs)]
mod bugs {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use idem_conformance::inbox::cases;
    use idem_core::bugs::{Bug, plant};

    use super::fresh;

    fn is_red(bug: Option<Bug>, case: impl Future<Output = ()>) -> bool {
        plant(bug);
        // Everything runs on this thread, where the bug is.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(case)));
        plant(None);
        ended.is_err()
    }

    #[test]
    fn n2_a_receiver_that_acknowledges_first_is_found() {
        let case = || async { cases::nothing_is_acknowledged_before_its_row(&fresh().await).await };
        assert!(!is_red(None, case()));
        assert!(is_red(Some(Bug::AcknowledgesBeforeInbox), case()));
    }

    #[test]
    fn n14_a_source_that_reads_by_number_is_found() {
        let case = || async { cases::late_commits_are_not_passed_by(&fresh().await).await };
        assert!(!is_red(None, case()));
        assert!(is_red(Some(Bug::ReadsInboxByNumber), case()));
    }
}

//! How calls that share units wait for one another.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use idem_core::{Decision, DedupConsumer, Effects, Handler, HandlerError, Message, Tx};
use idem_testkit::{MemoryStore, message};
use tokio::sync::{Notify, Semaphore};

/// Holds the handlers of messages by their payloads.
#[derive(Clone, Default)]
struct Held {
    begun: Arc<AtomicUsize>,
    beginning: Arc<Notify>,
    first: Arc<Gate>,
    second: Arc<Gate>,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Gate {
    async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

impl Handler<MemoryStore> for Held {
    async fn handle(&self, message: &Message, _: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.beginning.notify_one();
        match message.payload().map(|payload| &**payload) {
            Some(b"first") => self.first.pass().await,
            Some(b"second") => self.second.pass().await,
            _ => {}
        }
        Ok(())
    }
}

impl Held {
    async fn have_begun(&self, count: usize) {
        while self.begun.load(Ordering::SeqCst) < count {
            self.beginning.notified().await;
        }
    }
}

/// J90: a call whose message is in a unit that another one leads waits for it without a turn of the processor.
#[tokio::test]
async fn j90_a_call_that_another_one_leads_does_not_spin() {
    let held = Held::default();
    let builder = DedupConsumer::builder(MemoryStore::new(), "orders").effects(Effects::InTransaction);
    let orders = builder.handler(held.clone()).lanes(2).coalesce_calls(10).build().unwrap();
    orders.start().await.unwrap();
    // Both lanes are taken, so that the two calls behind them stand in the queue before either leads.
    let process = |key: &'static str| {
        let orders = orders.clone();
        tokio::spawn(async move { orders.process([message(key, "first")]).await.unwrap() })
    };
    let busy = [process("x"), process("y")];
    held.have_begun(2).await;
    let polls = Arc::new(AtomicUsize::new(0));
    let call = |key: &'static str, payload: &'static str| {
        let (orders, polls) = (orders.clone(), Arc::clone(&polls));
        tokio::spawn(async move {
            let mut call = pin!(orders.process_one(message(key, payload)));
            let counted = std::future::poll_fn(|context| {
                polls.fetch_add(usize::from(payload == "led"), Ordering::SeqCst);
                call.as_mut().poll(context)
            });
            counted.await.unwrap().decision
        })
    };
    let calls = [call("a", "second"), call("b", "led")];
    while polls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    held.first.0.add_permits(2);
    for done in busy {
        done.await.unwrap();
    }
    // One of the two calls leads a unit of both, whose first handler is held now.
    held.have_begun(3).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(polls.load(Ordering::SeqCst) < 20, "{polls:?} polls while it waits");
    held.second.0.add_permits(1);
    for call in calls {
        assert!(matches!(call.await.unwrap(), Decision::Processed(_)));
    }
}

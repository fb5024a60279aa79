//! What a host that hangs costs those of other hosts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_core::{
    BoxError, DedupConsumer, Effects, Event, HandlerError, Message, Relay, Store as _, Tx, handler_fn,
    outbox::OutgoingEvent,
};
use idem_testkit::{MemoryStore, message};
use idem_webhook::{Endpoint, Secret, WebhookPublisher};
use tokio::time::{Instant, sleep, timeout};

use crate::receiver::{Answer, Receiver};

/// Publishes an event without an ordering key, whose payload is the URL of its endpoint.
async fn publish(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    tx.publish(message, Event::to("merchants").event_type("Paid").body(message.payload().unwrap().clone()))?;
    Ok(())
}

/// O16: thousands of events for a host that hangs, all older than the one for another host, do not keep the relay from it: it is sent as
/// soon as each of them has found no place once. From then on they are tried about as often as places become free.
#[tokio::test(start_paused = true)]
async fn o16_a_hanging_host_with_thousands_of_events_holds_no_other_back() {
    const HANGING: u32 = 5_000;
    let hanging = Receiver::new((0..HANGING).map(|_| Answer::Never)).await;
    let other = Receiver::new([]).await;
    let store = Arc::new(MemoryStore::new());
    let consumer = DedupConsumer::builder_shared(Arc::clone(&store), "teller")
        .handler(handler_fn(publish))
        .handler_name("teller")
        .effects(Effects::InTransaction)
        .publishes_to(["merchants"])
        .build()
        .unwrap();
    // The same server goes by two names, and places are counted by name.
    let to_hanging = format!("http://localhost:{}/", hanging.port);
    let all = (0..HANGING).map(|number| message(&format!("order-{number}"), to_hanging.clone()));
    consumer.process(all).await.unwrap();
    consumer.process(vec![message("last", other.url("/"))]).await.unwrap();

    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let publisher = WebhookPublisher::new(move |event: &OutgoingEvent| {
        let url = String::from_utf8(event.payload.to_vec()).unwrap();
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            // It is looked up in a table, so that a relay gets through some 1,200 events a second.
            sleep(Duration::from_millis(50)).await;
            let secret: Secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse().unwrap();
            Ok::<_, BoxError>(Some(Endpoint::new(url, [secret])))
        }
    });
    let publisher = publisher.unwrap().allow_private_networks().unwrap().allow_plaintext();
    let begun = Instant::now();
    let relay = Relay::builder(store.outbox().unwrap()).to("merchants", publisher).build().unwrap();
    tokio::spawn(relay.run(std::future::pending()));
    timeout(Duration::from_secs(60), other.until(1)).await.unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(8), "it took {took:?}");
    let before = tries.load(Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    let more = tries.load(Ordering::Relaxed) - before;
    assert!(more < HANGING / 2, "{more} more tries in a minute");
}

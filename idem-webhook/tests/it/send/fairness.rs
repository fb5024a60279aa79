//! What a host that hangs costs those of other hosts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_core::{
    BoxError, DedupConsumer, Effects, Event, HandlerError, Message, Store as _, Tenant, Tx, handler_fn,
    outbox::OutgoingEvent, relay::Relay,
};
use idem_testkit::{MemoryStore, message};
use idem_webhook::{
    Secret,
    send::{Endpoint, Endpoints, WebhookPublisher},
};
use tokio::time::{Instant, sleep, timeout};

use super::receiver::{Answer, Receiver};

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
    let consumer = DedupConsumer::builder(Arc::clone(&store), "teller")
        .handler(handler_fn(publish))
        .handler_name("teller")
        .effects(Effects::InTransaction)
        .publish_to(["merchants"])
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

/// Has these messages published by a consumer whose tenant is the header `tenant`.
async fn published(messages: Vec<Message>) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let consumer = DedupConsumer::builder(Arc::clone(&store), "teller")
        .handler(handler_fn(publish))
        .handler_name("teller")
        .tenant_from(|message: &Message| {
            let tenant = message.headers().iter().find(|(name, _)| *name == "tenant").and_then(|(_, value)| value);
            Some(tenant.map_or_else(Tenant::default, |name| Tenant::new(std::str::from_utf8(name).unwrap()).unwrap()))
        })
        .effects(Effects::InTransaction)
        .publish_to(["merchants"])
        .build()
        .unwrap();
    for some in messages.chunks(500) {
        consumer.process(some.to_vec()).await.unwrap();
    }
    store
}

fn endpoint(event: &OutgoingEvent) -> Endpoint {
    let secret: Secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse().unwrap();
    Endpoint::new(String::from_utf8(event.payload.to_vec()).unwrap(), [secret])
}

/// Relays until the receiver has so many posts, in a minute of the relay's clock at most.
async fn relayed(store: &Arc<MemoryStore>, endpoints: impl Endpoints, to: &Receiver, posts: usize) {
    let publisher = WebhookPublisher::new(endpoints).unwrap().allow_private_networks().unwrap().allow_plaintext();
    let relay = Relay::builder(store.outbox().unwrap()).to("merchants", publisher).build().unwrap();
    tokio::spawn(relay.run(std::future::pending()));
    timeout(Duration::from_secs(60), to.until(posts)).await.expect("the events of the good endpoint arrive");
}

/// Forty events for each of 32 hosts that hang, and behind them six for one that does not.
async fn behind_hanging_hosts(hanging: &Receiver, good: &Receiver) -> Arc<MemoryStore> {
    let url = |number: u32| format!("http://127.0.0.{}:{}/", 2 + number % 32, hanging.port);
    let hanging = (0..32 * 40).map(|number| message(&format!("order-{number}"), url(number)));
    let good = (0..6).map(|number| message(&format!("good-{number}"), good.url("/")));
    published(hanging.chain(good).collect()).await
}

/// O113: all hosts that hang are one customer's, as the lookup says, and it has eight calls in flight.
#[tokio::test(start_paused = true)]
async fn o113_a_customer_with_many_hanging_hosts_holds_no_other_back() {
    let hanging = Receiver::new((0..10_000).map(|_| Answer::Never)).await;
    let good = Receiver::new([]).await;
    let store = behind_hanging_hosts(&hanging, &good).await;
    let good_port = format!(":{}/", good.port);
    let endpoints = move |event: &OutgoingEvent| {
        let endpoint = endpoint(event);
        let owner = if endpoint.url.ends_with(&good_port) { "other" } else { "customer-7" };
        async move { Ok::<_, BoxError>(Some(endpoint.owner(owner))) }
    };
    relayed(&store, endpoints, &good, 6).await;
    assert!(!hanging.posts().is_empty());
}

/// O114: nothing says that the hosts belong together. Once they are slow, they have half of the places.
#[tokio::test(start_paused = true)]
async fn o114_many_hanging_hosts_of_many_owners_leave_places_for_others() {
    let hanging = Receiver::new((0..10_000).map(|_| Answer::Never)).await;
    let good = Receiver::new([]).await;
    let store = behind_hanging_hosts(&hanging, &good).await;
    let endpoints = |event: &OutgoingEvent| {
        let endpoint = endpoint(event);
        async move { Ok::<_, BoxError>(Some(endpoint)) }
    };
    relayed(&store, endpoints, &good, 6).await;
    assert!(!hanging.posts().is_empty());
}

/// O115: the lookups of one tenant's endpoints hang.
#[tokio::test(start_paused = true)]
async fn o115_lookups_that_hang_for_a_tenant_hold_no_other_back() {
    let good = Receiver::new([]).await;
    let slow =
        (0..2_000).map(|number| message(&format!("order-{number}"), good.url("/slow")).with_header("tenant", "slow"));
    let quick = (0..6).map(|number| message(&format!("good-{number}"), good.url("/")).with_header("tenant", "quick"));
    let store = published(slow.chain(quick).collect()).await;
    let endpoints = |event: &OutgoingEvent| {
        let (endpoint, hangs) = (endpoint(event), &*event.tenant == "slow");
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(Some(endpoint))
        }
    };
    relayed(&store, endpoints, &good, 6).await;
    assert!(good.posts().iter().all(|post| post.path == "/"));
}

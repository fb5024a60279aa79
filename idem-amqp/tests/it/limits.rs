//! Queues that take a message away once it was delivered too often (G15, G16, G17), and streams (G18,
//! G52).

use std::time::Duration;

use idem_amqp::{AmqpOptions, AmqpSource, DeliveryLimit};
use idem_core::{
    CancellationToken, ConsumerName, DedupConsumer, Effects, Handler, HandlerError, Message, Source, SourceError,
    Store as _, Tenant, Tx, Worker,
    config::RetryPolicy,
    consumer::Pause,
    source::Received,
    store::{Bookkeeping, ControlState},
    worker::{Summary, WorkerError, WorkerView},
};
use idem_testkit::{MemoryStore, source_driver::payloads};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use tokio::task::JoinHandle;

use crate::{
    broker::{Kind, Queue, eventually, is_version_3, management_url},
    member::{Member, attached, join, numbers, refusal, sorted, within},
    own_server::OwnServer,
};

struct Keep;

impl Handler<MemoryStore> for Keep {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let key = message.key().map(ToString::to_string).unwrap_or_default();
        tx.connection().append("effects", &key, Vec::new()).await?;
        Ok(())
    }
}

/// A worker with one attempt a message, so that it may consume a queue with the lowest limit.
struct Running {
    store: MemoryStore,
    view: WorkerView,
    stop: CancellationToken,
    task: JoinHandle<Result<Summary, WorkerError>>,
}

impl Running {
    fn of(source: AmqpSource) -> Self {
        let store = MemoryStore::new();
        let consumer = DedupConsumer::builder(store.clone(), "ledger")
            .handler(Keep)
            .effects(Effects::InTransaction)
            .handler_deadline(Duration::from_secs(5))
            .lanes(2);
        let worker = Worker::builder(consumer.build().unwrap(), source)
            .retry(RetryPolicy::new(1, Duration::from_millis(10), Duration::from_millis(100)))
            .control_every(Duration::from_millis(20))
            .cleanup(None)
            .build()
            .unwrap();
        let (view, stop) = (worker.view(), CancellationToken::new());
        Self { store, view, task: tokio::spawn(worker.run(stop.clone().cancelled_owned())), stop }
    }

    fn effects(&self) -> usize {
        let mut keys: Vec<_> = self.store.rows("effects").into_iter().map(|(key, _)| key).collect();
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all, "an effect is there twice");
        all
    }

    async fn until(&self, effects: usize) {
        eventually("all effects", async || self.effects() == effects).await;
    }

    async fn set(&self, state: ControlState) {
        let scope =
            self.store.bookkeeping().scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
        self.store.bookkeeping().set_control(scope, state, "ann", "a test").await.unwrap();
        eventually("the control", async || self.view.pause().is_some() == (state != ControlState::Running)).await;
    }
}

fn keyed(name: &str) -> Message {
    Message::new(name.to_owned()).with_header("idempotencykey", name.to_owned())
}

async fn publish(queue: &Queue, range: std::ops::Range<usize>) {
    for name in numbers(range) {
        queue.publish(keyed(&name)).await.unwrap();
    }
}

fn limit(limit: i32) -> (&'static str, AMQPValue) {
    ("x-delivery-limit", AMQPValue::LongInt(limit))
}

/// The cause that closes intake, and its end that opens it.
#[derive(Debug, Clone, Copy)]
enum Closed {
    Pause,
    Outage,
}

/// G15: a quorum queue drops a message at its third return, and the broker takes back unsettled messages after ten seconds.
/// A consumer that is paused, or whose database is down, for three times as long loses nothing: the messages not begun went
/// back once, and no more came.
async fn a_closed_intake_loses_nothing(closed: Closed) {
    const WARM: usize = 300;
    const MORE: usize = 60;
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Quorum, &[limit(2)]).await;
    let options = queue.options_for(&queue.name).delivery_limit(DeliveryLimit::Of(2));
    let running = Running::of(options.consumer_timeout(Duration::from_secs(10)).build().unwrap());
    // Enough for all of the prefetch.
    publish(&queue, 0..WARM).await;
    running.until(WARM).await;
    match closed {
        Closed::Pause => running.set(ControlState::Paused).await,
        Closed::Outage => {
            running.store.hide_records(true);
            publish(&queue, WARM..WARM + 1).await;
            eventually("the outage", async || matches!(running.view.pause(), Some(Pause::StoreDown(_)))).await;
        }
    }
    publish(&queue, WARM + 1..WARM + MORE).await;
    // Another consumer on that server, which holds a message and loses its channel for it, serves as the clock.
    let clock = Queue::on(&server.url(), Kind::Classic, &[]).await;
    clock.publish(Message::new("tick")).await.unwrap();
    let member = join(&clock.options()).await;
    for _ in 0..3 {
        member.take_over_revocations(1).await;
        member.lost().await;
    }
    assert!(running.view.pause().is_some() && running.effects() == WARM);
    match closed {
        Closed::Pause => {
            publish(&queue, WARM..WARM + 1).await;
            running.set(ControlState::Running).await;
        }
        Closed::Outage => running.store.hide_records(false),
    }
    running.until(WARM + MORE).await;
    running.stop.cancel();
    let summary = within("the worker's end", running.task).await.unwrap().unwrap();
    assert_eq!(summary.dead_lettered, 0);
    assert_eq!(queue.declared().await.message_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn g15_a_pause_beyond_the_consumer_timeout_loses_nothing_at_a_delivery_limit() {
    a_closed_intake_loses_nothing(Closed::Pause).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g15_an_outage_beyond_the_consumer_timeout_loses_nothing_at_a_delivery_limit() {
    a_closed_intake_loses_nothing(Closed::Outage).await;
}

/// G16: the death of a process counts against each message in hand. So where a limit is not known to be harmless, only one
/// is in hand, until some have gone well.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_prefetch_is_earned_where_the_limit_is_unknown() {
    let queue = Queue::new(Kind::Quorum).await;
    publish(&queue, 0..200).await;
    // A larger prefetch is a new subscription, beside which messages sent to the one before may still come.
    let only = async |member: &Member, of_the_one_before: usize| match tokio::time::timeout(
        Duration::from_millis(300),
        member.source.receive(100),
    )
    .await
    {
        Err(_) => Vec::new(),
        Ok(Ok(Received::Deliveries(more))) if more.len() <= of_the_one_before => more,
        more => panic!("more than was earned: {more:?}"),
    };
    for options in
        [queue.options_for(&queue.name), queue.options_for(&queue.name).delivery_limit(DeliveryLimit::Of(20))]
    {
        let member = join(&options).await;
        let first = member.take_over_revocations(1).await;
        only(&member, 0).await;
        member.acknowledge(first).await;
        for _ in 1..4 {
            let next = member.take_over_revocations(1).await;
            only(&member, 0).await;
            member.acknowledge(next).await;
        }
        for _ in 0..4 {
            let mut eight = member.take_over_revocations(8).await;
            eight.extend(only(&member, 1).await);
            member.acknowledge(eight).await;
        }
        let mut many = member.take_over_revocations(64).await;
        many.extend(only(&member, 8).await);
        // A release earns nothing, and a channel that is made anew has to earn again.
        member.release(many, Duration::ZERO).await;
        queue.proxy.cut().await;
        member.lost().await;
        let again = member.take_over_revocations(1).await;
        only(&member, 0).await;
        drop((again, member));
        queue.proxy.cut().await;
    }
    let member = join(&queue.options()).await;
    assert_eq!(member.take_over_revocations(100).await.len(), 100, "without a limit nothing has to go well first");
}

/// G16: so a process that dies at each start, at any point, costs the messages behind the first nothing.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_crash_loop_counts_for_one_message() {
    let queue = Queue::with(Kind::Quorum, &[limit(5)]).await;
    publish(&queue, 0..100).await;
    for round in 1..=5 {
        let member = join(&queue.options_for(&queue.name)).await;
        let held = member.take_over_revocations(1).await;
        assert_eq!((sorted(&held), held[0].attempt), (numbers(0..1), round));
        drop((held, member));
        eventually("the consumer's end", async || queue.declared().await.consumer_count() == 0).await;
    }
    let member = join(&queue.options()).await;
    let all = member.take_over_revocations(100).await;
    assert_eq!(sorted(&all), numbers(0..100));
    let counted: Vec<u32> = all.iter().map(|delivery| delivery.attempt).filter(|attempt| *attempt > 1).collect();
    assert_eq!(counted, [6], "five crashes, of one message");
}

async fn limit_and_warnings(options: &AmqpOptions) -> Result<(Option<u32>, Vec<String>), SourceError> {
    let attached = attached(options).await?;
    Ok((attached.delivery_limit, attached.warnings))
}

/// G17: the configured limit counts where the management API does not show it, and must be true where it does.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_delivery_limit_is_told_or_warned_of_and_must_be_true() {
    let (plain, limited) = (Queue::new(Kind::Quorum).await, Queue::with(Kind::Quorum, &[limit(7)]).await);
    let options = |queue: &Queue| queue.options_for(&queue.name);
    let (known, warnings) = limit_and_warnings(&options(&plain)).await.unwrap();
    assert_eq!((known, warnings.len()), (None, 1));
    assert!(
        warnings[0].contains("--delivery-limit N|none") && warnings[0].contains("--management-url"),
        "{warnings:?}"
    );
    let told = options(&plain).delivery_limit(DeliveryLimit::Unlimited);
    assert_eq!(limit_and_warnings(&told).await.unwrap(), (None, vec![]));
    let told = options(&plain).delivery_limit(DeliveryLimit::Of(7));
    assert_eq!(limit_and_warnings(&told).await.unwrap(), (Some(7), vec![]));

    let managed = |queue: &Queue| options(queue).management_url(management_url());
    assert_eq!(limit_and_warnings(&managed(&plain)).await.unwrap(), (None, vec![]));
    let error = refusal(&managed(&limited)).await.to_string();
    assert!(error.contains("7 deliveries") && error.contains("--delivery-limit 7"), "{error}");
    if !is_version_3() {
        let error = refusal(&managed(&Queue::with(Kind::Quorum, &[]).await)).await.to_string();
        assert!(error.contains("20 deliveries") && error.contains("--delivery-limit 20"), "{error}");
    }
    // A configured limit is known to the operator, and the attempts are compared with it.
    let told = managed(&limited).delivery_limit(DeliveryLimit::Of(7));
    assert_eq!(limit_and_warnings(&told).await.unwrap(), (Some(7), vec![]));
    for (queue, wrong) in
        [(&limited, DeliveryLimit::Unlimited), (&limited, DeliveryLimit::Of(9)), (&plain, DeliveryLimit::Of(7))]
    {
        let error = refusal(&managed(queue).delivery_limit(wrong)).await;
        assert!(
            matches!(error, SourceError::Refused { .. }) && error.to_string().contains("delivery_limit says"),
            "{error}"
        );
    }
}

/// G18: a stream acknowledges nothing, and each subscription begins at its end: most of it would be skipped in silence. Its
/// deliveries show that it is one, so without the management API it is refused at the first.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_stream_is_refused_at_the_first_delivery() {
    let queue = Queue::new(Kind::Stream).await;
    let member = join(&queue.options()).await;
    for name in numbers(0..3) {
        queue.publish(keyed(&name)).await.unwrap();
    }
    for _ in 0..2 {
        match member.receive(10).await {
            Err(error @ SourceError::Refused { .. }) => {
                let text = error.to_string();
                assert!(text.contains("stream") && text.contains(&queue.name), "{text}");
            }
            other => panic!("instead of a refusal came {other:?}"),
        }
    }
}

/// G52: a producer can write the header by which a stream is known into any message: one message would stop every consumer.
#[tokio::test(flavor = "multi_thread")]
async fn g52_a_message_that_claims_to_come_from_a_stream_is_one_of_its_queue() {
    for kind in [Kind::Classic, Kind::Quorum] {
        let queue = Queue::new(kind).await;
        let mut headers = FieldTable::default();
        headers.insert("x-stream-offset".into(), AMQPValue::LongLongInt(7));
        for name in numbers(0..3) {
            let claiming =
                BasicProperties::default().with_headers(headers.clone()).with_message_id(name.clone().into());
            queue.put(name.as_bytes(), claiming).await;
        }
        let member = join(&queue.options()).await;
        publish(&queue, 3..6).await;
        let held = member.take(6).await;
        assert_eq!(payloads(&held), numbers(0..6), "from a {kind:?} queue");
        // The queue is asked again on another channel, and the messages of the first one came back.
        queue.proxy.cut().await;
        assert_eq!(sorted(&member.take_over_revocations(6).await), numbers(0..6), "once more, from a {kind:?} queue");
    }
}

/// G51: a consumer of a lower priority is a standby.
#[tokio::test(flavor = "multi_thread")]
async fn g51_while_a_consumer_of_a_higher_priority_has_room_others_get_nothing() {
    let queue = Queue::new(Kind::Classic).await;
    let first = join(&queue.options()).await;
    publish(&queue, 0..20).await;
    // Only then it has room for all that come.
    first.acknowledge(first.take(20).await).await;
    queue.until_prefetch(300).await;
    let standby = join(&queue.options().consumer_priority(-1)).await;
    publish(&queue, 20..120).await;
    let held = first.take(100).await;
    assert_eq!(payloads(&held), numbers(20..120));
    first.acknowledge(held).await;
    first.close().await;
    publish(&queue, 120..121).await;
    assert_eq!(payloads(&standby.take(1).await), numbers(120..121));
}

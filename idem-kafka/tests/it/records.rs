//! Records as messages (D7, E11, E14, J10).

use std::sync::atomic::{AtomicUsize, Ordering};

use idem_core::{
    Message,
    message::{Headers, OrderingKey},
};
use idem_kafka::{KafkaOptions, LaneBy, Reset};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::{
    cluster::{BROKERS, PATIENCE, Topic, fast},
    member::{join, payloads},
    wire,
};

#[tokio::test(flavor = "multi_thread")]
async fn e11_a_tombstone_and_an_empty_payload_are_two_messages() {
    let topic = Topic::new(1).await;
    topic.publish(Message::tombstone().with_record_key("a")).await.unwrap();
    topic.publish(Message::new("").with_record_key("a")).await.unwrap();
    let held = join(topic.options()).await.take(2).await;
    assert_eq!((held[0].message.payload(), held[1].message.payload().map(|payload| payload.len())), (None, Some(0)));
}

async fn ordering_keys(lane_by: LaneBy) -> Vec<OrderingKey> {
    let topic = Topic::new(1).await;
    for key in [Some("a"), Some("b"), Some("a"), None, None, Some("")] {
        let message = Message::new("x");
        let message = if let Some(key) = key { message.with_record_key(key) } else { message };
        topic.publish(message).await.unwrap();
    }
    topic.add_partition().await;
    topic.put(1, "without a key").await;
    let held = join(topic.options().lane_by(lane_by)).await.take(7).await;
    let (elsewhere, mut here): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|delivery| delivery.message.payload().unwrap() != "x");
    here.extend(elsewhere);
    here.into_iter().map(|delivery| delivery.message.ordering_key().unwrap().clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn d7_e14_lanes_by_key_order_a_key_within_its_partition() {
    let keys = ordering_keys(LaneBy::Key).await;
    let [a, b, a_again, none, none_again, empty, elsewhere] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!((a, none), (a_again, none_again));
    let mut different = vec![a, b, none, empty, elsewhere];
    different.dedup();
    different.sort_by_key(|key| key.as_bytes());
    different.dedup();
    assert_eq!(different.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn d7_e14_lanes_by_partition_order_the_whole_partition() {
    let keys = ordering_keys(LaneBy::Partition).await;
    assert!(keys[..6].iter().all(|key| *key == keys[0]));
    assert_ne!(keys[6], keys[0]);
}

/// E19: a record with header names that are not UTF-8 takes no consumer with it, prints nothing for any of them, and is
/// marked as one that cannot be read: the key that stands behind such a name is not taken.
#[tokio::test(flavor = "multi_thread")]
async fn e19_header_names_that_are_not_utf8_make_a_message_malformed_and_no_noise() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let topic = Topic::new(1).await;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(usize::from(std::thread::current().name() == Some("idem-kafka")), Ordering::Relaxed);
        hook(panic);
    }));
    let mut headers = vec![(&b"trace"[..], &b"1"[..])];
    headers.extend((0..5_000).map(|_| (&b"\xff\xfe"[..], &b"?"[..])));
    headers.push((b"idempotencykey", b"order-1"));
    tokio::task::block_in_place(|| wire::produce_with_headers(&topic.name, &headers));
    topic.put(0, "next").await;
    let member = join(topic.options()).await;
    let held = member.take(2).await;
    assert_eq!(payloads(&held), ["x", "next"]);
    let (broken, next) = (&held[0].message, &held[1].message);
    assert_eq!(broken.problem(), Some("it has a header whose name is not UTF-8"));
    assert_eq!(next.problem(), None);
    let kept: Vec<_> = broken.headers().iter().collect();
    assert_eq!(kept, [("trace", Some(&b"1"[..]))], "what can be read is kept");
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "each would be a line, or a page with a backtrace");
    member.acknowledge(held).await;
    member.idle().await;
}

/// A45: where no key stands, the origin takes its place in the idempotency key for a provider. A topic that is created again
/// has the same origins for other records, and the provider must not take the second charge for the first.
#[tokio::test(flavor = "multi_thread")]
async fn a45_a_record_of_a_topic_that_was_created_again_has_another_derived_key() {
    let topic = Topic::new(1).await;
    let mut charges = Vec::new();
    for (life, payload) in ["first", "second"].into_iter().enumerate() {
        if life > 0 {
            topic.delete().await;
            topic.create(1, &[]).await;
        }
        topic.put(0, payload).await;
        let mut of_life = Vec::new();
        // Another group is delivered the same record again.
        for group in ["one", "two"] {
            let group = format!("{}-{group}-{life}", topic.group);
            let options = fast(KafkaOptions::new(&*BROKERS, &topic.name, &group)).reset(Reset::Earliest);
            let held = join(options).await.take(1).await;
            assert_eq!(payloads(&held), [payload]);
            assert_eq!(held[0].message.origin().as_str(), format!("{}/0/0", topic.name));
            of_life.push(held[0].message.derived_key("charge"));
        }
        assert_eq!(of_life[0], of_life[1], "the same on every delivery");
        charges.push(of_life[0]);
    }
    assert_ne!(charges[0], charges[1]);
}

/// E20, S10: headers of any shape that text allows arrive as they were sent: repeated, empty, without a value, with any
/// bytes as values. The seed is printed where it fails.
#[tokio::test(flavor = "multi_thread")]
async fn e20_hostile_headers_arrive_as_they_were_sent() {
    let seed = idem_testkit::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let topic = Topic::new(1).await;
    let names = ["", "idempotencykey", "IdempotencyKey", "é", "\u{202e}x", "a\nb", "idem-reason", &"n".repeat(3_000)];
    let mut sent = Vec::new();
    for _ in 0..50 {
        let mut headers = Headers::default();
        for _ in 0..random.usize(0..12) {
            let value = (0..random.usize(0..40)).map(|_| random.u8(..)).collect::<Vec<u8>>();
            headers.push(names[random.usize(..names.len())], random.bool().then(|| value.into()));
        }
        topic.publish(Message::new("x").with_headers(headers.clone())).await.unwrap();
        sent.push(headers);
    }
    let held = join(topic.options()).await.take(50).await;
    let came: Vec<_> = held.into_iter().map(|delivery| delivery.message.headers().clone()).collect();
    assert_eq!(came, sent, "seed {seed}");
}

/// E20: a hundred thousand headers, which are 200 kB on the wire, count for the megabytes that they take here.
#[tokio::test(flavor = "multi_thread")]
async fn e20_as_many_headers_as_the_client_library_reads_arrive() {
    let topic = Topic::new(1).await;
    let headers: Vec<_> = (0..100_000).map(|_| (&b""[..], &b""[..])).collect();
    tokio::task::block_in_place(|| wire::produce_with_headers(&topic.name, &headers));
    let held = join(topic.options()).await.take(1).await;
    let message = &held[0].message;
    assert_eq!((message.headers().len(), message.problem()), (100_000, None));
    assert!(message.bytes() > 100_000 * 48, "they count for what they take: {}", message.bytes());
}

/// S50: with any bytes in the names and values of headers, the record arrives with its payload, the
/// headers up to the first whose name is no text, and a mark where there is one; and so does the good one behind all of them.
#[tokio::test(flavor = "multi_thread")]
async fn s50_headers_of_any_bytes_make_a_message_and_hold_up_nothing() {
    let seed = idem_testkit::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let topic = Topic::new(1).await;
    let mut sent: Vec<Vec<(Vec<u8>, Vec<u8>)>> = Vec::new();
    for _ in 0..60 {
        let count = [0, 1, 5, 40, 2_000][random.usize(..5)];
        let bytes = |random: &mut fastrand::Rng| -> Vec<u8> {
            let length = [0, 1, 14, 300][random.usize(..4)];
            let is_text = random.u8(..20) > 0;
            (0..length).map(|_| if is_text { random.u8(0..0x80) } else { random.u8(..) }).collect()
        };
        let headers = (0..count).map(|_| (bytes(&mut random), bytes(&mut random)));
        sent.push(headers.collect());
    }
    let (name, wired) = (topic.name.clone(), sent.clone());
    tokio::task::block_in_place(|| {
        for headers in &wired {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
            wire::produce_with_headers(&name, &headers);
        }
    });
    topic.put(0, "next").await;
    let member = join(topic.options()).await;
    let held = member.take(sent.len() + 1).await;
    for (delivery, sent) in held.iter().zip(&sent) {
        let message = &delivery.message;
        assert_eq!(message.payload().unwrap(), "x", "seed {seed}");
        // For the client library a name ends at its first zero byte.
        let text = |name: &'_ [u8]| String::from_utf8(name.split(|byte| *byte == 0).next()?.to_vec()).ok();
        let expected: Vec<_> = sent.iter().map_while(|(name, value)| Some((text(name)?, Some(&**value)))).collect();
        let read: Vec<_> = message.headers().iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(read, expected, "seed {seed}");
        let problem = (expected.len() < sent.len()).then_some("it has a header whose name is not UTF-8");
        assert_eq!(message.problem(), problem, "seed {seed}");
        let _ = idem_core::key::default_key_source().key(message);
    }
    assert_eq!(held[sent.len()].message.payload().unwrap(), "next");
    member.acknowledge(held).await;
    member.idle().await;
}

/// B-M3: each of the codecs that Kafka has, also zstd, which the client library has to be built with.
#[tokio::test(flavor = "multi_thread")]
async fn e21_records_are_read_however_they_are_compressed() {
    let topic = Topic::new(1).await;
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    for codec in codecs {
        let mut config = crate::cluster::config();
        let producer: FutureProducer = config.set("compression.type", codec).create().unwrap();
        let payload = codec.repeat(1000);
        let record = FutureRecord::<str, str>::to(&topic.name).payload(&payload);
        producer.send(record, PATIENCE).await.unwrap();
    }
    let held = join(topic.options()).await.take(codecs.len()).await;
    assert_eq!(payloads(&held), codecs.map(|codec| codec.repeat(1000)));
}

//! Messages that the broker takes and the client library cannot read (G14).

use idem_core::{Message, internal::UNREADABLE_HEADERS};
use lapin::{
    options::{ExchangeDeclareOptions, QueueBindOptions},
    types::FieldTable,
};

use crate::{
    broker::{Kind, Queue, unique, url},
    member::{assert_all_settled, join},
    raw,
};

/// Frames of 128 KiB hold this many arrays in each other.
const DEEPEST: usize = 26_000;

/// G14: a header of 10 kB, an array in an array 20,000 deep, overflowed the stack of the client library's thread and ended
/// the process, at each start again. The message arrives, marked as unreadable and with its properties as bytes, and so
/// does the good one behind it.
#[tokio::test(flavor = "multi_thread")]
async fn g14_headers_that_nobody_can_read_end_no_process_and_hold_up_nothing() {
    for kind in [Kind::Classic, Kind::Quorum] {
        let queue = Queue::new(kind).await;
        let key = queue.name.as_bytes();
        // Sorted and all different, because RabbitMQ 4 keeps one header of a name.
        let names: Vec<Vec<u8>> =
            (0..5_000).map(|n| [raw::short(format!("{n:04}").as_bytes()), vec![b'V']].concat()).collect();
        let hostile = [
            raw::headers(&raw::nested(2_000)),
            raw::headers(&raw::nested(20_000)),
            raw::headers(&raw::nested(DEEPEST)),
            raw::headers(&names.concat()),
        ];
        for properties in &hostile {
            raw::publish("", key, properties.clone(), b"hostile").await;
        }
        queue.publish(Message::new("good").with_header("trace", "1")).await.unwrap();
        raw::publish("", key, raw::headers(&raw::nested(63)), b"deep").await;
        let member = join(&queue.options()).await;
        let held = member.take_over_revocations(hostile.len() + 2).await;
        for (delivery, properties) in held.iter().zip(&hostile) {
            assert_eq!(delivery.message.payload().unwrap().as_ref(), b"hostile");
            let headers: Vec<_> = delivery.message.headers().iter().collect();
            assert_eq!(headers.len(), 1, "{headers:?}");
            assert_eq!(headers[0].0, UNREADABLE_HEADERS);
            // A quorum queue adds a header of its own to those of the first delivery only when it comes again.
            assert!(headers[0].1 == Some(properties.as_slice()), "{kind:?}: other bytes than were sent");
        }
        let good = &held[hostile.len()].message;
        assert_eq!((good.payload().unwrap().as_ref(), good.headers().text("trace")), (&b"good"[..], Some("1")));
        let deep = &held[hostile.len() + 1].message;
        assert_eq!(deep.headers().iter().collect::<Vec<_>>(), [("x", None)], "as deep as may be");
        member.acknowledge(held).await;
        assert_all_settled(member, &queue).await;
    }
}

/// The library gives up its connection at text that is no UTF-8, which to the broker is as good as any, and the message
/// would end the next connection as well.
#[tokio::test(flavor = "multi_thread")]
async fn g14_text_that_is_no_utf8_ends_no_connection() {
    let queue = Queue::new(Kind::Classic).await;
    let key = queue.name.as_bytes();
    let content_type = |text: &[u8]| [&(1_u16 << 15).to_be_bytes()[..], &raw::short(text)].concat();
    raw::publish("", key, raw::headers(b"\x02\xff\xfeV"), b"name").await;
    raw::publish("", key, content_type(b"a\xff"), b"type").await;
    let exchange = unique("idem-fanout");
    let connection = lapin::Connection::connect(&url(), lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let gone = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
    let declared =
        channel.exchange_declare(exchange.as_str().into(), lapin::ExchangeKind::Fanout, gone, FieldTable::default());
    declared.await.unwrap();
    let (name, options, none) = (queue.name.as_str().into(), QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(name, exchange.as_str().into(), "".into(), options, none).await.unwrap();
    raw::publish(&exchange, b"a\xffb", raw::headers(b""), b"key").await;
    let member = join(&queue.options()).await;
    let held = member.take_over_revocations(3).await;
    let unreadable = |at: usize| held[at].message.headers().iter().any(|(name, _)| name == UNREADABLE_HEADERS);
    assert!(unreadable(0) && unreadable(1) && !unreadable(2));
    assert!(held[2].message.origin().as_str().starts_with(&format!("{exchange}/a\u{fffd}b/")), "{:?}", held[2].message);
    // It is still the first channel.
    member.acknowledge(held).await;
    assert_all_settled(member, &queue).await;
}

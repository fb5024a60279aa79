//! The refusals and the warnings of a start (G6, G7).

use std::time::Duration;

use idem_amqp::{AmqpOptions, DeliveryLimit};
use idem_core::{Message, Source, SourceError, source::Settle};
use idem_testkit::{durables, proxy::Proxy};
use lapin::types::{AMQPValue, LongString};
use reqwest::Method;

use crate::{
    broker::{Kind, Queue, eventually, host, http, management, management_url, unique, url},
    member::{assert_all_settled, attached, join, refusal, within},
};

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

async fn refused(options: &AmqpOptions, words: &[&str]) {
    let error = refusal(options).await;
    let text = error.to_string();
    assert!(matches!(error, SourceError::Refused { .. }), "{error:?}");
    assert!(words.iter().all(|word| text.contains(word)) && !text.contains("hunter2"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_lets_nobody_in_is_refused_with_what_to_check() {
    let host = host(&url());
    refused(&AmqpOptions::new(format!("amqp://guest:hunter2@{host}/%2f"), "q"), &["user \"guest\"", "password"]).await;
    refused(&AmqpOptions::new(format!("amqp://guest:guest@{host}/no-such"), "q"), &["vhost \"no-such\""]).await;
}

/// G31: the host of the URL is away, and the cluster is not.
#[tokio::test(flavor = "multi_thread")]
async fn g31_another_host_of_the_cluster_is_tried() {
    let queue = Queue::new(Kind::Classic).await;
    queue.publish(Message::new("a")).await.unwrap();
    let nobody = AmqpOptions::new("amqp://guest:guest@127.0.0.1:1/%2f", &queue.name);
    assert!(matches!(refusal(&nobody).await, SourceError::Unavailable { .. }));
    let (first, second) = (Proxy::to(&host(&url())).await.unwrap(), Proxy::to(&host(&url())).await.unwrap());
    let options = nobody.host(first.address()).host(second.address()).delivery_limit(DeliveryLimit::Unlimited);
    let member = join(&options).await;
    drop(member.take_over_revocations(1).await);
    first.refuse(true);
    first.cut().await;
    member.lost().await;
    let held = member.take_over_revocations(1).await;
    member.acknowledge(held).await;
    // A host that refuses the login speaks for all hosts.
    refused(
        &AmqpOptions::new(format!("amqp://guest:hunter2@{}/%2f", host(&url())), "q").host("127.0.0.1:1"),
        &["password"],
    )
    .await;
}

/// G35: operators tell connections and consumers apart by their names.
#[tokio::test(flavor = "multi_thread")]
async fn g35_connections_and_consumers_have_the_name_that_they_are_given() {
    let queue = Queue::new(Kind::Classic).await;
    let name = unique("ledger");
    let _member = join(&queue.options().connection_name(&name)).await;
    let named = async |path: &str| management(Method::GET, path).await.text().await.unwrap().contains(&name);
    eventually("the connection by its name", async || named("connections").await).await;
    eventually("the consumer by its tag", async || named("consumers").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_missing_are_refused_by_the_queues_name() {
    let queue = Queue::new(Kind::Classic).await;
    let user = unique("idem-user");
    let put = async |path: &str, body: &'static str| {
        let url = format!("{}/api/{path}", management_url());
        let request = http().put(url).basic_auth("guest", Some("guest")).body(body);
        assert!(request.send().await.unwrap().status().is_success(), "{path}");
    };
    put(&format!("users/{user}"), r#"{"password":"hunter2","tags":""}"#).await;
    put(&format!("permissions/%2f/{user}"), r#"{"configure":"","write":".*","read":""}"#).await;
    let options = AmqpOptions::new(format!("amqp://{user}:hunter2@{}/%2f", host(&url())), &queue.name);
    refused(&options, &[&queue.name, &user, "set_permissions"]).await;
    assert!(management(Method::DELETE, &format!("users/{user}")).await.status().is_success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_reached_may_come_later() {
    let queue = Queue::new(Kind::Classic).await;
    queue.proxy.refuse(true);
    let source = queue.options().build().unwrap();
    let error = within("attaching", source.attach()).await.unwrap_err();
    assert!(matches!(error, SourceError::Unavailable { .. }), "{error:?}");
    queue.proxy.refuse(false);
    within("attaching", source.attach()).await.unwrap();
}

/// A passive declare cannot show what drops messages; the management API can.
#[tokio::test(flavor = "multi_thread")]
async fn g6_g7_queues_that_drop_messages_are_refused_where_the_management_api_tells() {
    let limit = ("x-delivery-limit", AMQPValue::LongInt(3));
    let drops = Queue::with(Kind::Quorum, std::slice::from_ref(&limit)).await;
    let managed = |queue: &Queue| queue.options_for(&queue.name).management_url(management_url());
    refused(&managed(&drops), &[&drops.name, "3 deliveries", "dead-letter exchange"]).await;
    let unknown = attached(&drops.options_for(&drops.name)).await.unwrap();
    assert!(unknown.warnings.iter().any(|warning| warning.contains("unknown")), "{unknown:?}");
    assert_eq!(unknown.delivery_limit, None);

    let safe = Queue::with(Kind::Quorum, &[limit, ("x-dead-letter-exchange", text("amq.fanout"))]).await;
    let known = attached(&managed(&safe)).await.unwrap();
    assert_eq!(known.delivery_limit, Some(3));
    assert!(known.warnings.iter().any(|warning| warning.contains("at-least-once")), "{known:?}");
    let plain = Queue::new(Kind::Classic).await;
    let known = attached(&managed(&plain)).await.unwrap();
    assert_eq!((known.warnings.len(), known.hold_max), (0, Some(Duration::from_secs(27 * 60))), "{known:?}");
}

/// S9: `0.0.0.0` is no address of this machine alone, and reaches it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn s9_attaching_warns_of_each_way_in_plaintext_to_another_machine() {
    let queue = Queue::new(Kind::Classic).await;
    let far = |url: String| url.replace("127.0.0.1", "0.0.0.0");
    let options = AmqpOptions::new(far(url()), &queue.name).management_url(far(management_url()));
    let warnings = attached(&options).await.unwrap().warnings;
    for way in ["amqp", "http"] {
        let cure = format!("is in plaintext: write {way}s://");
        assert!(warnings.iter().any(|warning| warning.contains(&cure)), "{warnings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_management_api_that_does_not_answer_is_a_warning() {
    let queue = Queue::new(Kind::Classic).await;
    for (url, word) in [("http://127.0.0.1:1", "unknown"), ("http://guest:hunter2@", "401")] {
        let url = if url.ends_with('@') { management_url().replace("http://", url) } else { url.to_owned() };
        let attached = attached(&queue.options().management_url(url)).await.unwrap();
        assert!(attached.warnings[0].contains(word) && !attached.warnings[0].contains("hunter2"), "{attached:?}");
    }
}

/// The broker's own dead-lettering is never asked for: it may lose messages.
#[tokio::test(flavor = "multi_thread")]
async fn g7_nothing_is_rejected_to_the_brokers_dead_letter_exchange() {
    let dead = Queue::new(Kind::Classic).await;
    let arguments = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(&dead.name))];
    let queue = Queue::with(Kind::Classic, &arguments).await;
    for number in 0..3 {
        queue.publish(Message::new(number.to_string())).await.unwrap();
    }
    let member = join(&queue.options()).await;
    let mut held = member.take_over_revocations(3).await;
    let mut proofs = durables(2).await;
    let settlements = vec![
        (held.pop().unwrap().handle, Settle::Acknowledge(proofs.pop().unwrap())),
        (held.pop().unwrap().handle, Settle::DeadLetter(proofs.pop().unwrap())),
        (held.pop().unwrap().handle, Settle::Release { after: Duration::from_secs(60) }),
    ];
    member.source.settle(settlements).await;
    let back = member.take_over_revocations(1).await;
    member.acknowledge(back).await;
    assert_all_settled(member, &queue).await;
    assert_eq!(dead.declared().await.message_count(), 0);
}

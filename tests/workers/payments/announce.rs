//! Events of transactions on Kafka.

use std::collections::BTreeSet;

use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use serde_json::Value;

use super::{
    client::Request,
    fixture::{Books, Fixture, until},
    topic::{Topic, brokers},
};

fn header(record: &OwnedMessage, name: &str) -> String {
    let headers = record.headers().expect("headers");
    let header = headers.iter().find(|header| header.key == name).unwrap_or_else(|| panic!("no {name}"));
    String::from_utf8(header.value.expect("a value").to_vec()).expect("text")
}

/// W62: an announced transaction is published once a key, under an id that is derived of the key, also where the process is
/// killed with unsent events, and repeats and refusals publish nothing.
#[tokio::test(flavor = "multi_thread")]
async fn w62_a_transaction_is_told_once_a_key() {
    let fixture = Fixture::new("http").await;
    let topic = Topic::create(&brokers(), &fixture.name, 1).await;
    let announcing = ["--announce", &topic.name, "--brokers", &topic.brokers, "--limit", "10000"];
    let silent = fixture.start(&[&announcing[..], &["--relay", "off"]].concat()).await;
    for number in 0..10 {
        let request = Request::pay(&format!("order-{number}"), "00001", 100 + number);
        assert_eq!(request.answer(&silent.address).await.status, 201);
    }
    silent.process.kill().await;
    let api = fixture.start(&announcing).await;
    for number in 0..20 {
        let request = Request::pay(&format!("order-{number}"), "00001", 100 + number);
        assert_eq!(request.answer(&api.address).await.status, 201);
    }
    assert_eq!(Request::pay("order-0", "00001", 100).tenant("globex").answer(&api.address).await.status, 201);
    assert_eq!(Request::pay("zero", "00001", 0).answer(&api.address).await.status, 422);
    assert_eq!(Request::pay("much", "00001", 10_001).answer(&api.address).await.status, 402);
    until("the events", async || topic.ends().await[&0] >= 21).await;
    let ended = api.stop().await;
    assert!(ended.count("published") >= 21, "{}", ended.log);

    let records = topic.records().await;
    let ids: BTreeSet<String> = records.iter().map(|record| header(record, "idempotencykey")).collect();
    assert_eq!(ids.len(), 21, "one a key, and the tenants' are apart");
    for record in &records {
        let body: Value = serde_json::from_slice(record.payload().expect("a payload")).expect("JSON");
        let purchase = body["purchase"].as_str().expect("a key").to_owned();
        assert_eq!(record.key(), Some(&b"00001"[..]));
        assert_eq!((&body["customer"], body["cds"].is_i64()), (&Value::from("00001"), true));
        assert_eq!(body["day"].as_str().map(str::len), Some(10), "{body}");
        assert!(body["cents"].as_i64().is_some_and(|cents| cents >= 100), "{body}");
        assert_eq!([header(record, "idemcause"), header(record, "idemcausedby")], [&*purchase; 2]);
        assert_eq!(header(record, "ce_type"), "PurchaseRecorded");
    }
    assert_eq!(fixture.books().await.transactions, 21);
    let cents = (0..20).map(|number| 100 + number).sum::<i64>() + 100;
    assert_eq!(fixture.books().await, Books { declines: 1, ..Books::of(21, cents) });
    fixture.remove().await;
}

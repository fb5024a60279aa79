//! The producer of the demonstration: creates a queue and sends the first of the real purchases, with the mistakes that
//! producers make. `produce QUEUE PURCHASES` prints the queue's URL first.

#![allow(clippy::print_stdout, reason = "the script that calls it reads it")]

use std::error::Error;

use aws_config::BehaviorVersion;
use aws_sdk_sqs::{Client, types::SendMessageBatchRequestEntry as Entry};
use futures_util::{StreamExt, TryStreamExt, stream};
use ledger::demo::records;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [queue, purchases] = &arguments[..] else { return Err("usage: produce QUEUE PURCHASES".into()) };
    let client = Client::new(&aws_config::load_defaults(BehaviorVersion::latest()).await);
    let created = client.create_queue().queue_name(queue).send().await?;
    let url = created.queue_url().ok_or("the new queue has no URL")?;
    println!("{url}");
    let records = records(purchases.parse()?)?;
    let batches = records.chunks(10).map(|batch| {
        let send = client.send_message_batch().queue_url(url);
        let entry =
            |(number, payload): (usize, &String)| Entry::builder().id(number.to_string()).message_body(payload).build();
        let entries: Result<Vec<_>, _> = batch.iter().map(|record| &record.payload).enumerate().map(entry).collect();
        async { Ok::<_, Box<dyn Error>>(send.set_entries(Some(entries?)).send().await?) }
    });
    let batches: Vec<_> = batches.collect();
    stream::iter(batches)
        .buffered(4)
        .try_for_each(async |sent| match sent.failed.first() {
            Some(failed) => Err(format!("not sent: {failed:?}").into()),
            None => Ok(()),
        })
        .await
}

//! The producer of the demonstration: creates a queue and sends the first of the real purchases, with the mistakes that
//! producers make; or the other amounts under keys that were used, because a queue without an order may deliver those first,
//! and then they would count. `produce-sqs QUEUE PURCHASES purchases|conflicts` prints the queue's URL first.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "the script that calls it reads it")]

use std::{error::Error, process::ExitCode};

use aws_config::BehaviorVersion;
use aws_sdk_sqs::{Client, types::SendMessageBatchRequestEntry as Entry};
use aws_smithy_http_client::{Builder, tls};
use futures_util::{StreamExt, TryStreamExt, stream};
use ledger::demo::records;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("produce-sqs: {error}");
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [queue, purchases, what] = &arguments[..] else {
        return Err("usage: produce-sqs QUEUE PURCHASES purchases|conflicts".into());
    };
    let tls = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let http = Builder::new().tls_provider(tls).build_https();
    let client = Client::new(&aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await);
    let created = client.create_queue().queue_name(queue).send().await?;
    let url = created.queue_url().ok_or("the new queue has no URL")?;
    println!("{url}");
    let mut records = records(purchases.parse()?)?;
    records.retain(|record| record.is_conflict == (what == "conflicts"));
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

//! The producer of the demonstration: declares a queue and sends 69,659 real purchases, with the mistakes that producers
//! make. `produce-amqp URL QUEUE MESSAGES_A_SECOND purchases`, and later, because RabbitMQ keeps no order between workers,
//! the same with `conflicts`.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a person looks at it")]

use std::{error::Error, process::ExitCode, time::Duration};

use futures_util::future::try_join_all;
use lapin::{
    BasicProperties, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use ledger::demo::{PURCHASES, records};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("produce-amqp: {error}");
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, queue, rate, what] = &arguments[..] else {
        return Err("usage: produce-amqp URL QUEUE MESSAGES_A_SECOND purchases|conflicts".into());
    };
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let queue = ShortString::try_new(queue.as_str()).map_err(|error| error.to_string())?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1)); // RabbitMQ 3 refuses it
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.clone(), durable, arguments).await?;
    let mut records = records(PURCHASES)?;
    records.retain(|record| record.is_conflict == (what == "conflicts"));
    let rate: usize = rate.parse()?;
    println!("sending {} messages to {queue}", records.len());
    let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let numbered: Vec<_> = records.iter().enumerate().collect();
    for some in numbered.chunks((rate / 10).max(1)) {
        tick.tick().await;
        let mut confirms = Vec::new();
        for (number, record) in some {
            // The id distinguishes two messages that are equal in everything else, which matters to dead letters alone.
            let id = ShortString::try_new(format!("{what}-{number}")).map_err(|error| error.to_string())?;
            let persistent = BasicProperties::default().with_delivery_mode(2).with_message_id(id);
            let payload = record.payload.as_bytes();
            confirms.push(channel.basic_publish("".into(), queue.clone(), mandatory, payload, persistent).await?);
        }
        let confirmed = try_join_all(confirms).await?;
        if confirmed.iter().any(|confirmation| *confirmation != Confirmation::Ack(None)) {
            return Err("the broker did not take every message".into());
        }
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}

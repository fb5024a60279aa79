//! `charge` charges five orders with a provider that honours the key and with one that does not.
//! `charge SOCKET PROVIDER FILE` is the worker alone, for the test that kills it.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a program that shows its results in a terminal")]

use std::{path::Path, process::ExitCode};

use charge::{
    provider::{Keys, Provider},
    worker,
};
use idem_core::BoxError;
use idem_testkit::{
    memory::{Broker, QueueOptions, RemoteSource},
    message,
};

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("charge: {error}");
    ExitCode::FAILURE
}

async fn run() -> Result<(), BoxError> {
    #[cfg(feature = "failpoints")]
    idem_testkit::failpoints::arm_from_env()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            println!("5 orders; the provider charges, and does not answer the first call for an order\n");
            let honoured = charges(Keys::Honoured).await?;
            println!("the provider honours the key: {honoured} charges");
            let ignored = charges(Keys::Ignored).await?;
            println!("the provider ignores the key: {ignored} charges");
        }
        [socket, provider, file] => {
            let source = RemoteSource::connect(socket, "orders").await;
            worker::consume(source, provider.parse()?, Path::new(file)).await?;
        }
        _ => return Err("usage: charge [SOCKET PROVIDER FILE]".into()),
    }
    Ok(())
}

/// How many charges five orders make.
async fn charges(keys: Keys) -> Result<usize, BoxError> {
    let file = std::env::temp_dir().join(format!("idem-charge-{}-{keys:?}.db", std::process::id()));
    let provider = Provider::start(keys).await?;
    let queue = Broker::new().create("orders", QueueOptions::default())?;
    for number in 1..=5 {
        queue.publish(message(&format!("order-{number}"), format!(r#"{{"order":"{number}","cents":1177}}"#)))?;
    }
    worker::consume(queue.source(), provider.address, &file).await?;
    std::fs::remove_file(&file)?;
    Ok(provider.charges().values().sum())
}

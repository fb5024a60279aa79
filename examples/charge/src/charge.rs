//! The handler. Copy it, and call your provider with your HTTP client.

use std::{net::SocketAddr, time::Duration};

use idem_core::{Handler, HandlerError, Message, Tx};
use idem_sqlx::SqliteStore;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use uuid::Uuid;

/// How long the provider may take. Shorter than the handler's deadline, so that the handler itself reports the
/// failure.
const PATIENCE: Duration = Duration::from_millis(300);

/// The charge that a message orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its number.
    pub order: String,
    /// The price.
    pub cents: i64,
}

/// Charges each order, and notes the provider's number of the charge.
#[derive(Debug)]
pub struct Charge {
    /// Where the provider is.
    pub provider: SocketAddr,
}

impl Handler<SqliteStore> for Charge {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let order: Order = message.json()?;
        // The same on every attempt and in every process, so a provider that honours it charges once.
        let key = message.derived_key("charge");
        let charge = timeout(PATIENCE, self.call(key, &order)).await??; // no answer: transient, so it is tried again
        sqlx::query("INSERT INTO charges (order_number, charge) VALUES (?, ?)")
            .bind(order.order)
            .bind(charge)
            .execute(tx.connection())
            .await?;
        Ok(())
    }
}

impl Charge {
    /// Asks for the charge, and answers its number.
    async fn call(&self, key: Uuid, order: &Order) -> Result<String, HandlerError> {
        let payload = serde_json::to_string(order)?;
        let request = format!(
            "POST /charges HTTP/1.1\r\nhost: provider\r\nconnection: close\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{payload}",
            payload.len()
        );
        let mut provider = TcpStream::connect(self.provider).await?;
        provider.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        provider.read_to_string(&mut answer).await?;
        let (head, charge) = answer.split_once("\r\n\r\n").unwrap_or_default();
        match head.split(' ').nth(1) {
            Some("200") => Ok(charge.to_owned()),
            // It will say the same next time.
            Some("402") => Err(HandlerError::permanent("the card was declined")),
            Some("422") => Err(HandlerError::permanent("the provider knows this key with another order")),
            _ => Err(HandlerError::transient("the provider failed")),
        }
    }
}

//! Connecting to the brokers of a cluster, and the one question about a queue.

use std::{io, sync::atomic::Ordering, time::Duration};

use lapin::{
    Channel, ConnectionProperties,
    options::QueueDeclareOptions,
    tcp::{OwnedIdentity, OwnedTLSConfig},
    types::{FieldTable, ShortString},
    uri::AMQPUri,
};
use tokio::time::timeout;

use crate::{error::is_refused, options::Settings, wire::Wire};

/// How long connecting and subscribing may take together.
pub(crate) const OPENED: Duration = Duration::from_secs(10);

/// Connects to the first host that answers. One that refuses speaks for all, as they are one cluster.
pub(crate) async fn connect(settings: &Settings) -> lapin::Result<Wire> {
    let (first, count) = (settings.turn.load(Ordering::Relaxed), settings.uris.len());
    let each = OPENED / u32::try_from(count + 1).unwrap_or(u32::MAX);
    let mut turn = 0;
    loop {
        let at = (first + turn) % count;
        let uri = &settings.uris[at];
        turn += 1;
        let connected = match timeout(each, connect_to(settings, uri)).await {
            Ok(connected) => connected,
            Err(late) => Err(io::Error::from(late).into()),
        };
        match connected {
            Err(error) if turn < count && !is_refused(settings, &error) => {
                let (host, error) = (&uri.authority.host, &error as &dyn std::error::Error);
                tracing::debug!(host, error, "this host cannot be reached; the next is tried");
            }
            connected => {
                settings.turn.store(at, Ordering::Relaxed);
                return connected;
            }
        }
    }
}

async fn connect_to(settings: &Settings, uri: &AMQPUri) -> lapin::Result<Wire> {
    let properties = ConnectionProperties::default().with_connection_name(settings.connection_name.as_str().into());
    let identity = settings.client_certificate.as_ref().map(|identity| OwnedIdentity::PKCS8 {
        pem: identity.certificate.clone().into_bytes(),
        key: identity.key.clone().into_bytes(),
    });
    let tls = OwnedTLSConfig { identity, cert_chain: settings.authorities.clone() };
    Wire::connect(uri.clone(), properties, tls).await
}

/// How many messages wait in the queue. The queue is never created.
pub(crate) async fn ready(channel: &Channel, queue: &ShortString) -> lapin::Result<u32> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare(queue.clone(), passive, FieldTable::default()).await?;
    Ok(queue.message_count())
}

//! [`Wire`]: a connection that is cut soon after it is dropped.
//!
//! The client library says goodbye when its connection is dropped, waits for the answer for as long as it takes, and goes on
//! sending heartbeats meanwhile. To a broker that has lost an answer such a connection is alive: it keeps the messages
//! delivered on it, which are never settled. The library has no call that cuts it. But all of a connection runs on one tokio
//! runtime, with which its socket ends, so each has one of its own, of one thread.

use std::{io, time::Duration};

use lapin::{Connection, ConnectionProperties, tcp::OwnedTLSConfig, uri::AMQPUri};
use tokio::runtime::{Builder, Runtime};

use crate::guard;

/// How long the broker has for its answer once a connection is dropped.
const GOODBYE: Duration = Duration::from_secs(1);

/// A connection with its runtime.
pub(crate) struct Wire {
    pub(crate) connection: Connection,
    // Dropped behind the connection.
    _driver: Driver,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// Those of the library, and where there can be no further thread.
    pub(crate) async fn connect(
        uri: AMQPUri,
        properties: ConnectionProperties,
        tls: OwnedTLSConfig,
    ) -> lapin::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("idem-amqp").enable_all().build()?;
        let connecting = runtime.spawn(guard::connect(uri, properties, tls));
        let driver = Driver(Some(runtime));
        let connection = connecting.await.map_err(io::Error::other)??;
        Ok(Self { connection, _driver: driver })
    }
}

/// Ends a while after it is dropped.
struct Driver(Option<Runtime>);

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        // On itself, because the runtime of the task that drops this may end before.
        runtime.handle().clone().spawn(async move {
            tokio::time::sleep(GOODBYE).await;
            runtime.shutdown_background();
        });
    }
}

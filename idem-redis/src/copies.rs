//! Copies in Redis.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use idem_core::{BoxError, ConfigError, copies::Copies};
use redis::{
    Client, Cmd, FromRedisValue, IntoConnectionInfo as _, Value,
    aio::{ConnectionManager, ConnectionManagerConfig},
    cmd,
    io::tcp::TcpSettings,
};

/// How long a connection may take, and an answer before its command is given up.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// The longest pause before a connection is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Copies of records in one Redis, or a server that speaks its protocol, such as Valkey.
///
/// Clones share a connection, which is made at the first command and made again when it breaks.
#[derive(Clone)]
pub struct RedisCopies {
    connection: ConnectionManager,
    patience: Duration,
}

impl fmt::Debug for RedisCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The connection may show its password.
        f.debug_struct("RedisCopies").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl RedisCopies {
    /// Copies at `redis://[USER:PASSWORD@]HOST[:PORT][/NUMBER]`, or `rediss://` with TLS. Nothing is sent yet, and a server that cannot be
    /// reached is not an error.
    ///
    /// # Errors
    /// [`ConfigError`] where the URL has another form.
    ///
    /// # Panics
    /// Outside of a runtime of tokio.
    pub fn connect(url: &str) -> Result<Self, ConfigError> {
        // Never the URL itself, nor what its parser says: it may have a password.
        let refused =
            |_| ConfigError::new("redis URL", "of another form", "it must be redis://HOST, or rediss:// with TLS");
        if url.starts_with("rediss:") || url.starts_with("valkeys:") {
            // Where an application has chosen another one, that stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let place = url.into_connection_info().map_err(refused)?;
        let place = place.set_tcp_settings(settings());
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(CONNECT_WITHIN))
            .set_max_delay(PAUSE_MAX)
            .set_number_of_retries(1);
        let client = Client::open(place).map_err(refused)?;
        let connection = ConnectionManager::new_lazy_with_config(client, config).map_err(refused)?;
        Ok(Self { connection, patience: Duration::from_millis(50) })
    }

    /// How long a command may take before the store is asked instead. Defaults to 50 ms.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, BoxError> {
        Ok(command.query_async(&mut self.connection.clone()).await?)
    }
}

fn settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    // A server that is gone without a word breaks the connection, which is then made again.
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    settings
}

#[async_trait]
impl Copies for RedisCopies {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        let entry: Option<Vec<u8>> = self.ask(cmd("GET").arg(key)).await?;
        Ok(entry.map(Bytes::from))
    }

    async fn put(&self, key: &str, entry: Bytes, keep: Duration, replace: bool) -> Result<(), BoxError> {
        // Redis refuses an entry that is kept for no time.
        let keep = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut set = cmd("SET");
        set.arg(key).arg(&entry[..]).arg("PX").arg(keep);
        if !replace {
            set.arg("NX");
        }
        self.ask::<Value>(&set).await.map(drop)
    }

    async fn remove(&self, key: &str) -> Result<(), BoxError> {
        self.ask::<Value>(cmd("DEL").arg(key)).await.map(drop)
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

//! A TCP proxy that a test puts between a client and its server, to break, stop and slow down what passes.

pub mod dynamodb;
pub mod postgres;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use fastrand::Rng;
use idem_core::CancellationToken;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// How long a [storm](Proxy::storm) leaves connections alone between two faults, and how long one of them lasts.
const CALM_MS: u64 = 2_000;
const FAULT_MS: u64 = 1_000;

/// Listens on a port of its own, and connects each client to the server. Everything ends with it.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    server: watch::Sender<String>,
    weather: watch::Sender<Weather>,
    standing: watch::Sender<Standing>,
    ended: CancellationToken,
}

/// How many connections stand, by how often was cut before they began.
type Standing = BTreeMap<u64, usize>;

/// One of them.
struct Stands {
    cuts: u64,
    standing: watch::Sender<Standing>,
}

impl Stands {
    fn new(cuts: u64, standing: watch::Sender<Standing>) -> Self {
        standing.send_modify(|standing| *standing.entry(cuts).or_default() += 1);
        Self { cuts, standing }
    }
}

impl Drop for Stands {
    fn drop(&mut self) {
        self.standing.send_modify(|standing| {
            if let Some(count) = standing.get_mut(&self.cuts) {
                *count -= 1;
            }
            standing.retain(|_, count| *count > 0);
        });
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    frozen: bool,
    refusing: bool,
    delay: Duration,
    cuts: u64,
}

impl Proxy {
    /// A proxy in front of `server`, which is `host:port`.
    ///
    /// # Errors
    /// Where no port can be had.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn to(server: &str) -> io::Result<Self> {
        Self::between(Ipv4Addr::LOCALHOST.into(), server).await
    }

    /// The same at another address of this machine.
    ///
    /// # Errors
    /// Where no port can be had there.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn between(address: IpAddr, server: &str) -> io::Result<Self> {
        let listener = TcpListener::bind((address, 0)).await?;
        let address = listener.local_addr()?.to_string();
        let (weather, standing) = (watch::Sender::new(Weather::default()), watch::Sender::new(Standing::new()));
        let ended = CancellationToken::new();
        let server = watch::Sender::new(server.to_owned());
        let listening = listen(listener, server.subscribe(), weather.clone(), standing.clone());
        let until = ended.clone();
        tokio::spawn(async move { until.run_until_cancelled(listening).await });
        Ok(Self { address, server, weather, standing, ended })
    }

    /// Where clients connect, as `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connects new clients to another server from now on, as a failover does; those that are connected stay until they are
    /// [cut](Self::cut).
    pub fn switch_to(&self, server: &str) {
        self.server.send_replace(server.to_owned());
    }

    /// Breaks every connection, and returns when they are broken. New ones are let through.
    ///
    /// # Cancel safety
    /// Cancel safe: they break all the same.
    pub async fn cut(&self) {
        self.weather.send_modify(|weather| weather.cuts += 1);
        let cuts = self.weather.borrow().cuts;
        // The sender lives in `self`, so this cannot fail.
        let _ = self.standing.subscribe().wait_for(|standing| standing.keys().all(|born| *born >= cuts)).await;
    }

    /// Lets nothing pass from now on, in either direction. Neither side learns of it.
    pub fn freeze(&self) {
        self.weather.send_modify(|weather| weather.frozen = true);
    }

    /// Lets everything pass again, what was held back first.
    pub fn thaw(&self) {
        self.weather.send_modify(|weather| weather.frozen = false);
    }

    /// Closes new connections at once while this is on, as a server that is down.
    pub fn refuse(&self, on: bool) {
        self.weather.send_modify(|weather| weather.refusing = on);
    }

    /// Holds up each piece of data for this long.
    pub fn delay(&self, by: Duration) {
        self.weather.send_modify(|weather| weather.delay = by);
    }

    /// Cuts, freezes and delays at random, with calm in between, until it is dropped. Answers never.
    ///
    /// # Cancel safety
    /// Dropped during a fault, the fault lasts: [`Proxy::calm`] ends it.
    pub async fn storm(&self, mut rng: Rng) {
        loop {
            tokio::time::sleep(Duration::from_millis(rng.u64(..CALM_MS))).await;
            match rng.u8(..3) {
                0 => self.cut().await,
                1 => self.freeze(),
                _ => self.delay(Duration::from_millis(rng.u64(1..50))),
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(..FAULT_MS))).await;
            self.calm();
        }
    }

    /// Ends all faults of connections that still stand.
    pub fn calm(&self) {
        self.thaw();
        self.delay(Duration::ZERO);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.cancel();
        self.weather.send_modify(|weather| weather.cuts += 1);
    }
}

async fn listen(
    listener: TcpListener,
    server: watch::Receiver<String>,
    weather: watch::Sender<Weather>,
    standing: watch::Sender<Standing>,
) {
    while let Ok((client, _)) = listener.accept().await {
        let (server, weather) = (server.borrow().clone(), weather.subscribe());
        let Weather { cuts, refusing, .. } = *weather.borrow();
        if refusing {
            continue;
        }
        let stands = Stands::new(cuts, standing.clone());
        tokio::spawn(async move {
            let _stands = stands;
            let mut until_cut = weather.clone();
            tokio::select! {
                _ = until_cut.wait_for(|weather| weather.cuts != cuts) => {}
                // A server that is away, and one that closes, are for the client to notice.
                _ = connect(client, &server, weather) => {}
            }
        });
    }
}

async fn connect(client: TcpStream, server: &str, weather: watch::Receiver<Weather>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let mut client = client;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    let mut thawed = weather.clone();
    let from_server = pass(from_server, to_client, weather.clone());
    // The first end of one direction ends both.
    tokio::select! {
        ended = pass(from_client, to_server, weather) => ended,
        ended = async {
            let ended = from_server.await;
            // While nothing passes, a client does not learn of it that its server has closed.
            let _ = thawed.wait_for(|weather| !weather.frozen).await;
            ended
        } => ended,
    }
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut weather: watch::Receiver<Weather>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let delay = weather.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if weather.wait_for(|weather| !weather.frozen).await.is_err() {
            return Ok(());
        }
        to.write_all(&buffer[..count]).await?;
    }
}

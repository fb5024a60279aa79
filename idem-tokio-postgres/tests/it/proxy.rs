//! A proxy that understands the frontend's messages: it cuts the connection around a COMMIT, adds a delay, and counts
//! how often the client has to wait.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_tokio_postgres::tokio_postgres::{Config, config::SslMode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::Instant,
};

use crate::fixture::{Fixture, url};

/// Where the connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The server never gets the COMMIT (A6).
    Before,
    /// The server has answered the COMMIT, and the answer is lost (A5).
    After,
}

/// What the proxy does, and what it has seen.
#[derive(Debug)]
struct Plan {
    cut: Cut,
    cuts_left: AtomicUsize,
    delay: Duration,
    round_trips: AtomicUsize,
    /// The texts that the client had the server parse.
    parsed: Mutex<Vec<String>>,
    /// Whether the server's answers have gone to the client since the client has last sent anything.
    has_answered: AtomicBool,
}

/// A proxy to the server that the tests share.
pub(crate) struct Proxy {
    port: u16,
    plan: Arc<Plan>,
}

impl Proxy {
    /// Cuts the next `times` COMMITs.
    pub(crate) async fn cutting(cut: Cut, times: usize) -> Self {
        Self::new(cut, times, Duration::ZERO).await
    }

    /// Holds every answer back for this long.
    pub(crate) async fn delaying(delay: Duration) -> Self {
        Self::new(Cut::Before, 0, delay).await
    }

    async fn new(cut: Cut, times: usize, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::new(Plan {
            cut,
            cuts_left: AtomicUsize::new(times),
            delay,
            round_trips: AtomicUsize::new(0),
            parsed: Mutex::default(),
            has_answered: AtomicBool::new(true),
        });
        let config: Config = url().parse().unwrap();
        let idem_tokio_postgres::tokio_postgres::config::Host::Tcp(host) = config.get_hosts()[0].clone() else {
            panic!("the tests' server is reached over TCP")
        };
        let server = format!("{host}:{}", config.get_ports()[0]);
        let shared = Arc::clone(&plan);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                client.set_nodelay(true).unwrap();
                tokio::spawn(serve(client, server, Arc::clone(&shared)));
            }
        });
        Self { port, plan }
    }

    /// How to reach the fixture's schema through it.
    pub(crate) fn config(&self, fixture: &Fixture) -> Config {
        let server: Config = url().parse().unwrap();
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).ssl_mode(SslMode::Disable);
        config.user(server.get_user().unwrap()).dbname(server.get_dbname().unwrap());
        config.options(format!("-c search_path={}", fixture.schema));
        config
    }

    /// How often the client has sent something after the server had answered, since this was asked last.
    pub(crate) fn round_trips(&self) -> usize {
        self.plan.round_trips.swap(0, Ordering::SeqCst)
    }

    /// How often the client had the server parse a text that begins like this.
    pub(crate) fn parsed(&self, beginning: &str) -> usize {
        self.plan.parsed.lock().unwrap().iter().filter(|text| text.starts_with(beginning)).count()
    }

    /// How many cuts have not happened yet.
    pub(crate) fn left(&self) -> usize {
        self.plan.cuts_left.load(Ordering::SeqCst)
    }
}

async fn serve(client: TcpStream, server: TcpStream, plan: Arc<Plan>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Told by the frontend's side once the answer to a COMMIT must not pass.
    let (mute, muted) = tokio::sync::oneshot::channel();
    // Whichever side ends first closes both connections.
    tokio::select! {
        () = forward(from_client, to_server, &plan, mute) => {}
        () = answer(from_server, to_client, &plan, muted) => {}
    }
}

async fn answer(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    plan: &Plan,
    mut muted: tokio::sync::oneshot::Receiver<()>,
) {
    let (queue, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async {
        let mut buffer = vec![0; 65_536];
        let mut is_muted = false;
        while let Ok(read @ 1..) = server.read(&mut buffer).await {
            is_muted = is_muted || muted.try_recv().is_ok();
            if is_muted || queue.send((Instant::now() + plan.delay, buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some((at, bytes)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            plan.has_answered.store(true, Ordering::SeqCst);
            if client.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

async fn forward(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    plan: &Plan,
    mute: tokio::sync::oneshot::Sender<()>,
) {
    let mut mute = Some(mute);
    let mut is_first = true;
    loop {
        // The first message has no type.
        let mut head = vec![0; if is_first { 4 } else { 5 }];
        if client.read_exact(&mut head).await.is_err() {
            return;
        }
        if plan.has_answered.swap(false, Ordering::SeqCst) {
            plan.round_trips.fetch_add(1, Ordering::SeqCst);
        }
        let length = u32::from_be_bytes(head[head.len() - 4..].try_into().unwrap()) as usize;
        let mut body = vec![0; length - 4];
        if client.read_exact(&mut body).await.is_err() {
            return;
        }
        if !is_first && head[0] == b'P' {
            // The statement's name, its text, the types of its parameters.
            let text = body.split(|byte| *byte == 0).nth(1).unwrap_or_default();
            plan.parsed.lock().unwrap().push(String::from_utf8_lossy(text).into_owned());
        }
        let is_commit = !is_first && head[0] == b'Q' && body.starts_with(b"COMMIT");
        is_first = false;
        let take = |left: usize| left.checked_sub(1);
        if is_commit && plan.cuts_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            match (plan.cut, mute.take()) {
                (Cut::Before, _) | (Cut::After, None) => return,
                (Cut::After, Some(mute)) => drop(mute.send(())),
            }
        }
        if server.write_all(&[head, body].concat()).await.is_err() {
            return;
        }
    }
}

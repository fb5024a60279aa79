//! A proxy in front of PostgreSQL that understands what clients send: it cuts connections around a COMMIT, holds answers back,
//! and counts how often a client has to wait. A client's TLS would hide all of that from it.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use idem_core::CancellationToken;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot, watch},
};

/// Between two messages that a client sends without an answer lie a few polls of its tasks, and a look at the sockets with each.
const RESTS: usize = 200;

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server never gets the COMMIT (A6).
    Before,
    /// The server has answered the COMMIT, and the answer is lost (A5).
    After,
}

/// Listens on a port of its own, and connects each client to the server. Everything ends with it.
#[derive(Debug)]
pub struct PostgresProxy {
    port: u16,
    plan: Arc<Plan>,
    ended: CancellationToken,
}

/// The proxy's orders, and its counts.
#[derive(Debug)]
struct Plan {
    cut: Cut,
    cuts_left: AtomicUsize,
    /// A setting with which no connection may begin.
    refused: Option<&'static str>,
    /// How often an answer lets everything else in the runtime go first.
    rests: usize,
    round_trips: AtomicUsize,
    /// The texts that clients had the server parse.
    parsed: Mutex<Vec<String>>,
    /// After how many round trips answers are held back.
    held_after: watch::Sender<Option<usize>>,
    /// Whether one is.
    holds: watch::Sender<bool>,
    /// Whether the server's answers have gone to the client since the client has last sent anything.
    has_answered: AtomicBool,
}

impl PostgresProxy {
    /// In front of `server`, which is `host:port`: cuts the connections of the next `times` COMMITs.
    ///
    /// # Errors
    /// Where no port can be had.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn cutting(server: &str, cut: Cut, times: usize) -> io::Result<Self> {
        Self::new(server, cut, times, None, 0).await
    }

    /// In front of `server`, which is `host:port`: refuses each connection that is to begin with this setting, as a server does
    /// whose system does not offer it.
    ///
    /// # Errors
    /// Where no port can be had.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn refusing(server: &str, setting: &'static str) -> io::Result<Self> {
        Self::new(server, Cut::Before, 0, Some(setting), 0).await
    }

    /// In front of `server`, which is `host:port`: holds every answer back until nothing in this runtime has anything left to do, so
    /// that clients in it have sent all that they send without an answer. Only for a runtime of one thread, in which that takes no
    /// longer however busy the machine is.
    ///
    /// # Errors
    /// Where no port can be had.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn patient(server: &str) -> io::Result<Self> {
        Self::new(server, Cut::Before, 0, None, RESTS).await
    }

    async fn new(
        server: &str,
        cut: Cut,
        times: usize,
        refused: Option<&'static str>,
        rests: usize,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let plan = Arc::new(Plan {
            cut,
            cuts_left: AtomicUsize::new(times),
            refused,
            rests,
            round_trips: AtomicUsize::new(0),
            parsed: Mutex::default(),
            held_after: watch::Sender::new(None),
            holds: watch::Sender::new(false),
            has_answered: AtomicBool::new(true),
        });
        let ended = CancellationToken::new();
        let (server, shared, until) = (server.to_owned(), Arc::clone(&plan), ended.clone());
        tokio::spawn(async move {
            while let Some(Ok((client, _))) = until.run_until_cancelled(listener.accept()).await {
                let (server, plan, until) = (server.clone(), Arc::clone(&shared), until.clone());
                // A server that is away, and one that closes, are for the client to notice.
                tokio::spawn(async move { until.run_until_cancelled(serve(client, &server, &plan)).await });
            }
        });
        Ok(Self { port, plan, ended })
    }

    /// Where clients connect, on `127.0.0.1`.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How often a client has sent something after the server had answered, since this was asked last.
    pub fn round_trips(&self) -> usize {
        self.plan.round_trips.swap(0, Ordering::SeqCst)
    }

    /// Holds answers back once clients had so many round trips from now on. What clients send goes on to the server.
    pub fn hold_after(&self, round_trips: usize) {
        self.round_trips();
        self.plan.holds.send_replace(false);
        self.plan.held_after.send_replace(Some(round_trips));
    }

    /// Waits until an answer is held back.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn holds(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.plan.holds.subscribe().wait_for(|holds| *holds).await;
    }

    /// Lets answers pass again, those that were held back first.
    pub fn let_go(&self) {
        self.plan.held_after.send_replace(None);
    }

    /// How often a client had the server parse a text that begins like this.
    #[must_use]
    pub fn parsed(&self, beginning: &str) -> usize {
        let parsed = self.plan.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        parsed.iter().filter(|text| text.starts_with(beginning)).count()
    }

    /// How many cuts have not happened yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.plan.cuts_left.load(Ordering::SeqCst)
    }
}

impl Drop for PostgresProxy {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

async fn serve(mut client: TcpStream, server: &str, plan: &Plan) -> io::Result<()> {
    if let Some(setting) = plan.refused {
        let mut first = vec![0; 4 << 10];
        // A message that begins a connection is short and comes in one piece, as far as clients on this machine go.
        let length = client.peek(&mut first).await?;
        if first[..length].windows(setting.len()).any(|text| text == setting.as_bytes()) {
            return client.write_all(&refusal(setting)).await;
        }
    }
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Reported by the frontend's side once the answer to a COMMIT must not pass.
    let (mute, muted) = oneshot::channel();
    // Whichever side ends first closes both connections.
    tokio::select! {
        ended = forward(from_client, to_server, plan, mute) => ended,
        ended = answer(from_server, to_client, plan, muted) => ended,
    }
}

/// A server's answer to a setting that it cannot take.
fn refusal(setting: &str) -> Vec<u8> {
    let fields = format!("SFATAL\0VFATAL\0C22023\0M{setting} cannot be set here\0\0");
    let length = u32::try_from(fields.len() + 4).unwrap_or(u32::MAX);
    [b"E".as_slice(), &length.to_be_bytes(), fields.as_bytes()].concat()
}

/// Passes on what the client sends.
async fn forward(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    plan: &Plan,
    mute: oneshot::Sender<()>,
) -> io::Result<()> {
    let mut mute = Some(mute);
    let mut is_first = true;
    loop {
        // The first message has no type.
        let kind = if is_first { None } else { Some(client.read_u8().await?) };
        is_first = false;
        let length = client.read_u32().await?;
        if plan.has_answered.swap(false, Ordering::SeqCst) {
            plan.round_trips.fetch_add(1, Ordering::SeqCst);
        }
        // A length counts itself.
        let mut body = vec![0; (length as usize).saturating_sub(4)];
        client.read_exact(&mut body).await?;
        if kind == Some(b'P') {
            // The statement's name, its text, the types of its parameters.
            let text = body.split(|byte| *byte == 0).nth(1).unwrap_or_default();
            let mut parsed = plan.parsed.lock().unwrap_or_else(PoisonError::into_inner);
            parsed.push(String::from_utf8_lossy(text).into_owned());
        }
        // Alone or behind the seal: the text ends with a zero.
        let is_commit = kind == Some(b'Q') && (body.starts_with(b"COMMIT") || body.ends_with(b"COMMIT\0"));
        let take = |left: usize| left.checked_sub(1);
        if is_commit && plan.cuts_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            match (plan.cut, mute.take()) {
                (Cut::Before, _) | (Cut::After, None) => return Ok(()),
                (Cut::After, Some(mute)) => drop(mute.send(())),
            }
        }
        let head = kind.into_iter().chain(length.to_be_bytes()).collect::<Vec<u8>>();
        server.write_all(&[head, body].concat()).await?;
    }
}

/// Passes on what the server answers, once the clients have come to rest.
async fn answer(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    plan: &Plan,
    mut muted: oneshot::Receiver<()>,
) -> io::Result<()> {
    let (queue, mut due) = mpsc::unbounded_channel::<Vec<u8>>();
    let read = async {
        let mut buffer = vec![0; 64 << 10];
        let mut is_muted = false;
        loop {
            let count = server.read(&mut buffer).await?;
            is_muted = is_muted || muted.try_recv().is_ok();
            if count == 0 || is_muted || queue.send(buffer[..count].to_vec()).is_err() {
                return Ok(());
            }
        }
    };
    let write = async {
        while let Some(bytes) = due.recv().await {
            for _ in 0..plan.rests {
                tokio::task::yield_now().await;
            }
            let is_free =
                |limit: &Option<usize>| limit.is_none_or(|limit| plan.round_trips.load(Ordering::SeqCst) <= limit);
            let mut held_after = plan.held_after.subscribe();
            if !is_free(&held_after.borrow_and_update()) {
                plan.holds.send_replace(true);
                let _ = held_after.wait_for(is_free).await;
            }
            plan.has_answered.store(true, Ordering::SeqCst);
            client.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = read => ended,
        ended = write => ended,
    }
}

//! A proxy that understands the frontend's messages and cuts the connection around a COMMIT.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Where the connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The server never gets the COMMIT (A6).
    Before,
    /// The server has answered the COMMIT, and the answer is lost (A5).
    After,
}

/// A proxy to the server, whose next COMMITs are cut.
pub(super) struct Proxy {
    pub(super) port: u16,
    left: Arc<AtomicUsize>,
    round_trips: Arc<AtomicUsize>,
}

impl Proxy {
    /// Cuts the next `times` COMMITs.
    pub(super) async fn new(server: String, cut: Cut, times: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let left = Arc::new(AtomicUsize::new(times));
        let round_trips = Arc::new(AtomicUsize::new(0));
        let counters = (Arc::clone(&left), Arc::clone(&round_trips));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(serve(client, server, cut, counters.clone()));
            }
        });
        Self { port, left, round_trips }
    }

    /// How often the client has waited for the server since this was asked last.
    pub(super) fn round_trips(&self) -> usize {
        self.round_trips.swap(0, Ordering::SeqCst)
    }

    /// How many cuts have not happened yet.
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }
}

/// The cuts that are left, and the round trips so far.
type Counters = (Arc<AtomicUsize>, Arc<AtomicUsize>);

async fn serve(client: TcpStream, server: TcpStream, cut: Cut, counters: Counters) {
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    // Told by the frontend's side once the answer to a COMMIT must not pass.
    let (mute, mut muted) = tokio::sync::oneshot::channel();
    let backend = async move {
        let mut buffer = vec![0; 65_536];
        let mut is_muted = false;
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            is_muted = is_muted || muted.try_recv().is_ok();
            if is_muted || to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    // Whichever side ends first closes both connections.
    tokio::select! {
        () = forward(from_client, to_server, cut, counters, mute) => {}
        () = backend => {}
    }
}

async fn forward(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    cut: Cut,
    (left, round_trips): Counters,
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
        let length = u32::from_be_bytes(head[head.len() - 4..].try_into().unwrap()) as usize;
        let mut body = vec![0; length - 4];
        if client.read_exact(&mut body).await.is_err() {
            return;
        }
        let is_commit = !is_first && head[0] == b'Q' && body.starts_with(b"COMMIT");
        // Each of the two is answered by one ReadyForQuery, for which the client waits.
        if !is_first && matches!(head[0], b'Q' | b'S') {
            round_trips.fetch_add(1, Ordering::SeqCst);
        }
        is_first = false;
        let take = |left: usize| left.checked_sub(1);
        if is_commit && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            match (cut, mute.take()) {
                (Cut::Before, _) | (Cut::After, None) => return,
                (Cut::After, Some(mute)) => drop(mute.send(())),
            }
        }
        if server.write_all(&[head, body].concat()).await.is_err() {
            return;
        }
    }
}

//! A broker that hears some things and not others: a door to the real one, which keeps methods from it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::Instant,
};

/// The length of a frame's header, and the kind of frame that is a method.
const HEAD: usize = 7;
const METHOD: u8 = 1;

const CANCEL: [u8; 4] = [0, 60, 0, 30];
const CHANNEL_CLOSE: [u8; 4] = [0, 20, 0, 40];
const CONNECTION_CLOSE: [u8; 4] = [0, 10, 0, 50];

/// Of the first connection that cancels a subscription the broker hears neither that, nor that channel or connection are to
/// be closed. Everything else passes, heartbeats too, and so does every other connection.
pub(crate) struct Deaf {
    /// `host:port`
    pub(crate) address: String,
    ended: mpsc::UnboundedReceiver<Duration>,
}

impl Deaf {
    pub(crate) async fn to(server: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (ends, ended) = mpsc::unbounded_channel();
        let (server, is_taken) = (server.to_owned(), Arc::new(AtomicBool::new(false)));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = TcpStream::connect(&server).await.unwrap().into_split();
                tokio::spawn(pass_all(from_server, to_client));
                let (is_taken, ends) = (Arc::clone(&is_taken), ends.clone());
                tokio::spawn(async move {
                    if let Some(cancelled) = pass_some(from_client, to_server, &is_taken).await {
                        let _ = ends.send(cancelled.elapsed());
                    }
                });
            }
        });
        Self { address, ended }
    }

    /// How long the client kept its socket once it had cancelled a subscription and got no answer.
    pub(crate) async fn ended_after(&mut self) -> Duration {
        self.ended.recv().await.unwrap()
    }
}

async fn pass_all(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

/// Answers at the end of the connection since when the broker was deaf on it, if it was.
async fn pass_some(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_taken: &AtomicBool) -> Option<Instant> {
    let mut deaf_since = None;
    let mut protocol = [0; 8];
    from.read_exact(&mut protocol).await.ok()?;
    to.write_all(&protocol).await.ok()?;
    while let Some((kind, frame)) = frame(&mut from).await {
        let is = |method: [u8; 4]| kind == METHOD && frame[HEAD..].starts_with(&method);
        if is(CANCEL) && !is_taken.swap(true, Ordering::Relaxed) {
            deaf_since = Some(Instant::now());
        }
        if !(deaf_since.is_some() && [CANCEL, CHANNEL_CLOSE, CONNECTION_CLOSE].into_iter().any(is))
            && to.write_all(&frame).await.is_err()
        {
            break;
        }
    }
    deaf_since
}

/// The next frame and its kind, until there is none.
async fn frame(from: &mut OwnedReadHalf) -> Option<(u8, Vec<u8>)> {
    let mut frame = vec![0; HEAD];
    from.read_exact(&mut frame).await.ok()?;
    let payload = u32::from_be_bytes([frame[3], frame[4], frame[5], frame[6]]) as usize;
    frame.resize(HEAD + payload + 1, 0);
    from.read_exact(&mut frame[HEAD..]).await.ok()?;
    Some((frame[0], frame))
}

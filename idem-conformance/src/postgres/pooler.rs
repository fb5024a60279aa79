//! Poolers as PgBouncer is with some of its settings: one drops settings of a session without a word (`ignore_startup_parameters =
//! options`), the other gives one session's settings to several server processes (`track_extra_parameters`).

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    sync::mpsc,
};

const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();

/// Stands before this server, and answers its own address. It lives as long as the test's runtime.
pub async fn dropping_options(server: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(passing(client, server.clone()));
        }
    });
    address
}

async fn passing(mut client: TcpStream, server: String) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let mut start = start_of(&mut client).await?;
    while start == SSL_REQUEST {
        client.write_all(b"N").await?;
        start = start_of(&mut client).await?;
    }
    // The version, then names and values with a zero behind each, then a zero.
    let (version, settings) = start.split_at(4);
    let words: Vec<&[u8]> = settings.split(|byte| *byte == 0).collect();
    let kept = words.chunks_exact(2).filter(|pair| !pair[0].is_empty() && pair[0] != b"options");
    let kept: Vec<u8> = kept.flat_map(|pair| [pair[0], b"\0", pair[1], b"\0"].concat()).collect();
    server.write_u32(u32::try_from(4 + 4 + kept.len() + 1).unwrap_or(u32::MAX)).await?;
    server.write_all(&[version, &kept, b"\0"].concat()).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(|_| ())
}

async fn start_of(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = client.read_u32().await?;
    let mut start = vec![0; (length as usize).saturating_sub(4)];
    client.read_exact(&mut start).await?;
    Ok(start)
}

/// Stands before this server, and answers its own port: two sessions with the settings of the client, of which one serves it until it is
/// to move, and the other after the transaction at hand. So does PgBouncer in transaction mode with what `track_extra_parameters` names.
pub async fn between_transactions(server: String) -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (port, moved) = (listener.local_addr().expect("an address").port(), Arc::new(AtomicBool::new(false)));
    let moving = Arc::clone(&moved);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(pooled(client, server.clone(), Arc::clone(&moving)));
        }
    });
    (port, moved)
}

const CLIENT: usize = 2;

async fn pooled(mut client: TcpStream, server: String, moved: Arc<AtomicBool>) -> io::Result<()> {
    let start = start_of(&mut client).await?;
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut servers = Vec::new();
    for from in 0..CLIENT {
        let (read, mut write) = TcpStream::connect(&server).await?.into_split();
        write.write_u32(u32::try_from(start.len() + 4).unwrap_or(u32::MAX)).await?;
        write.write_all(&start).await?;
        servers.push(write);
        tokio::spawn(pass(from, read, sender.clone()));
    }
    let (read, mut client) = client.into_split();
    tokio::spawn(pass(CLIENT, read, sender));
    // Answers that are ready for the next query and have not come yet.
    let (mut current, mut awaited, mut is_idle) = (0, 1, false);
    while let Some((from, message)) = messages.recv().await {
        if message.is_empty() {
            break;
        }
        if from == CLIENT {
            if is_idle {
                current = usize::from(moved.load(Ordering::SeqCst));
            }
            is_idle = false;
            awaited += i32::from(matches!(message[0], b'Q' | b'S'));
            servers[current].write_all(&message).await?;
        } else if from == current {
            if message[0] == b'Z' {
                awaited -= 1;
                is_idle = awaited == 0 && message[5] == b'I';
            }
            client.write_all(&message).await?;
        }
    }
    Ok(())
}

/// Sends on each message, and an empty one at the end.
async fn pass(from: usize, mut read: OwnedReadHalf, to: mpsc::UnboundedSender<(usize, Vec<u8>)>) -> io::Result<()> {
    loop {
        let next = async {
            let mut message = vec![0; 5];
            read.read_exact(&mut message).await?;
            let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]) as usize;
            message.resize(1 + length, 0);
            read.read_exact(&mut message[5..]).await?;
            io::Result::Ok(message)
        };
        let message = next.await.unwrap_or_default();
        let is_over = message.is_empty();
        if to.send((from, message)).is_err() || is_over {
            return Ok(());
        }
    }
}

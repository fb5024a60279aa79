//! A pooler that drops settings of a session without a word, as PgBouncer does with `ignore_startup_parameters = options`.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
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

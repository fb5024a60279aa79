//! A network between client and server: each answer is held back, so that each round trip takes that much longer.

use std::{
    error::Error,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use idem_tokio_postgres::tokio_postgres::{Config, NoTls, config::Host};

/// How to reach the server through a proxy that holds each of its answers back for `delay`. It has threads of its own,
/// because the runtime's timer rounds up to whole milliseconds and one more.
pub(super) fn proxy(url: &str, delay: Duration) -> Result<Config, Box<dyn Error>> {
    let server: Config = url.parse()?;
    let Some(Host::Tcp(host)) = server.get_hosts().first() else { return Err("the server is reached over TCP".into()) };
    let address = format!("{host}:{}", server.get_ports().first().copied().unwrap_or(5432));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut config = Config::new();
    config.host("127.0.0.1").port(listener.local_addr()?.port());
    config.user(server.get_user().unwrap_or("idem")).dbname(server.get_dbname().unwrap_or("idem"));
    // They end with their connections, and the process ends the listener.
    thread::spawn(move || {
        for client in listener.incoming() {
            let _ = client.and_then(|client| pass(client, TcpStream::connect(&address)?, delay));
        }
    });
    Ok(config)
}

fn pass(client: TcpStream, server: TcpStream, delay: Duration) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = (client.try_clone()?, client);
    let (mut from_server, mut to_server) = (server.try_clone()?, server);
    let (queue, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Both)
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok(read @ 1..) = from_server.read(&mut buffer) {
            let _ = queue.send((Instant::now() + delay, buffer[..read].to_vec()));
        }
    });
    thread::spawn(move || {
        while let Ok((at, bytes)) = due.recv() {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to_client.write_all(&bytes).is_err() {
                break;
            }
        }
        to_client.shutdown(Shutdown::Both)
    });
    Ok(())
}

/// The time of one round trip through the proxy, in milliseconds: the median of a hundred.
pub(super) async fn round_trip(config: &Config) -> Result<f64, Box<dyn Error>> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let statement = client.prepare("SELECT 1").await?;
    let mut times = Vec::new();
    for _ in 0..100 {
        let started = Instant::now();
        client.query_one(&statement, &[]).await?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[50])
}

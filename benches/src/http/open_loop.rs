//! Requests at a fixed rate, answered or not. wrk sends the next one when the last is answered, and oha, which
//! can do otherwise, has no way to send another key with each request.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::load::CONNECTIONS;

/// One connection, which is kept.
pub(super) struct Client(BufReader<TcpStream>);

impl Client {
    pub(super) fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a debit of this customer, and answers the status once the whole answer is there.
    pub(super) fn send(&mut self, key: &str, customer: &str) -> io::Result<u16> {
        let body = format!(r#"{{"customer":"{customer}","cents":1177}}"#);
        let request = format!(
            "POST /transactions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer shop\r\nIdempotency-Key: {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let unreadable = || io::Error::new(io::ErrorKind::InvalidData, format!("no answer of HTTP/1.1: {line:?}"));
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(unreadable)?;
        let mut length = 0;
        loop {
            line.clear();
            self.0.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().map_err(io::Error::other)?;
                }
                Some(_) => {}
                None => break,
            }
        }
        self.0.read_exact(&mut vec![0; length])?;
        Ok(status)
    }
}

/// Sends at this rate for the time, and answers how long each request took from when it was due, sorted. Those of the warm-up
/// count for nothing. Threads, because the runtime's timer rounds up to whole milliseconds.
pub(super) fn run(port: u16, prefix: &str, rate: f64, warm_up: Duration, time: Duration) -> io::Result<Vec<Duration>> {
    let (next, started) = (AtomicU32::new(0), Instant::now());
    let one = || -> io::Result<Vec<Duration>> {
        let (mut client, mut took) = (Client::connect(port)?, Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let after = Duration::from_secs_f64(f64::from(number) / rate);
            if after > warm_up + time {
                return Ok(took);
            }
            let due = started + after;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let customer = format!("{:05}", u64::from(number) * 7_919 % 10_000);
            let status = client.send(&format!("{prefix}-{number}"), &customer)?;
            if status != 201 {
                return Err(io::Error::other(format!("answered with {status}")));
            }
            if after > warm_up {
                took.push(due.elapsed());
            }
        }
    };
    let mut all = thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(one)).collect();
        clients.into_iter().try_fold(Vec::new(), |mut all, client| {
            all.extend(client.join().map_err(|_| io::Error::other("a client has panicked"))??);
            Ok::<_, io::Error>(all)
        })
    })?;
    all.sort_unstable();
    Ok(all)
}

//! A client of HTTP/1.1 that shows every byte and can stop anywhere.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// How long an answer may take before a client gives it up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// A payment of the tenant `acme`.
    pub(crate) fn pay(key: &str, customer: &str, cents: i64) -> Self {
        let body = serde_json::json!({ "customer": customer, "cents": cents });
        Self::post(key, &body.to_string())
    }

    /// Any body, of the tenant `acme`.
    pub(crate) fn post(key: &str, body: &str) -> Self {
        let request = Self::new("POST", "/transactions").header("content-type", "application/json").body(body);
        request.header("idempotency-key", key).tenant("acme")
    }

    /// Whether it has this header, written in any case.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name))
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }

    /// Sets it, in place of another.
    pub(crate) fn tenant(self, token: &str) -> Self {
        self.without("authorization").header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn body(mut self, body: &str) -> Self {
        self.body = body.as_bytes().to_vec();
        self
    }

    /// As it goes over the wire.
    pub(crate) fn bytes(&self, host: &str) -> Vec<u8> {
        let Self { method, path, headers, body } = self;
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-length: {}\r\n", body.len());
        }
        [head.as_bytes(), b"\r\n", body].concat()
    }

    /// Sends it, and reads the whole answer.
    pub(crate) async fn send(&self, address: &str) -> io::Result<Answer> {
        let exchange = async {
            let mut stream = TcpStream::connect(address).await?;
            // A service may refuse a body before it has come whole, and close: its answer is there all the same.
            let sent = stream.write_all(&self.bytes(address)).await;
            let mut bytes = Vec::new();
            let read = stream.read_to_end(&mut bytes).await.map(drop);
            let failed = || sent.and(read).err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
            Answer::read(&bytes).ok_or_else(failed)
        };
        timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// The same where an answer must come.
    pub(crate) async fn answer(&self, address: &str) -> Answer {
        self.send(address).await.unwrap_or_else(|error| panic!("{} {}: {error}", self.method, self.path))
    }

    /// Sends part of it, or all and waits for some of the answer, and is gone.
    pub(crate) async fn break_off(&self, address: &str, at: Cut) {
        drop(self.begin(address, at).await);
    }

    /// The same, and is gone once this is dropped.
    pub(crate) async fn begin(&self, address: &str, at: Cut) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let bytes = self.bytes(address);
        let sent = match at {
            Cut::InTheHead => 20,
            Cut::InTheBody => bytes.len() - 5,
            Cut::BeforeTheAnswer | Cut::InTheAnswer => bytes.len(),
        };
        let _ = stream.write_all(&bytes[..sent]).await;
        if at == Cut::InTheAnswer {
            let _ = timeout(PATIENCE, stream.read(&mut [0; 10])).await;
        }
        Some(stream)
    }
}

/// Where a client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    InTheHead,
    InTheBody,
    BeforeTheAnswer,
    InTheAnswer,
}

impl Cut {
    pub(crate) const ALL: [Self; 4] = [Self::InTheHead, Self::InTheBody, Self::BeforeTheAnswer, Self::InTheAnswer];
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The answer that comes on a connection until its server ends it; `None` where it ends without a whole one.
    pub(crate) async fn of(mut stream: impl AsyncRead + Unpin) -> Option<Self> {
        let mut bytes = Vec::new();
        // A server that refuses what has not come whole may end the connection by a reset, behind its answer.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the server ends the connection");
        Self::read(&bytes)
    }

    /// `None` where it is not whole.
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let headers: Vec<_> = lines.filter_map(header).collect();
        let answer = Self { status, headers, body: bytes[end + 4..].to_vec() };
        let length: usize = answer.header("content-length").map_or(Ok(0), str::parse).ok()?;
        (answer.body.len() == length).then_some(answer)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The parts that a repeat must have too, byte for byte: everything but the mark of a repeat, the moment, and until when
    /// the key is known at least, which the first answer does not know exactly.
    pub(crate) fn told(&self) -> (u16, Vec<(String, String)>, String) {
        let own = ["idempotent-replayed", "idempotency-processed-at", "last-modified", "date", "idempotency-expires"];
        let mut headers: Vec<_> =
            self.headers.iter().filter(|(name, _)| !own.contains(&name.as_str())).cloned().collect();
        headers.sort();
        (self.status, headers, self.text())
    }
}

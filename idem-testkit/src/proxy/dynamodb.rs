//! A proxy in front of a server that speaks DynamoDB's protocol. It loses requests and answers, brings requests late, and answers what a
//! server on one machine never does: conflicts, throttling, transactions that are still in progress.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::CancellationToken;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DynamoFault {
    /// It never arrives, and its connection breaks.
    Lost,
    /// It is done, and its connection breaks before the answer.
    AnswerLost,
    /// Its connection breaks, and it arrives this much later.
    Late(Duration),
    /// It takes this much longer.
    Slow(Duration),
    /// It is refused with this code, such as `ThrottlingException`; one that ends with `Error` is a fault of the server.
    Refused(&'static str),
    /// It is a transaction, which is cancelled for this reason of the action at this place.
    Cancelled(usize, &'static str),
}

/// Stands before the server until it is dropped.
#[derive(Debug)]
pub struct DynamoProxy {
    endpoint: String,
    shared: Arc<Shared>,
    ended: CancellationToken,
}

#[derive(Debug)]
struct Shared {
    /// Host and port.
    server: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    injected: HashMap<String, VecDeque<DynamoFault>>,
    requests: HashMap<String, u64>,
    /// What every request meets.
    standing: Option<DynamoFault>,
    /// Whether writes of the same item at once conflict, and the items that are being written.
    conflicts: bool,
    written: HashSet<String>,
    met: u64,
    /// The capacity units of all answers, once it is asked for.
    units: Option<f64>,
}

impl Drop for DynamoProxy {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl DynamoProxy {
    /// A proxy in front of the server with this URL, on a port of its own.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(server: &str) -> io::Result<Self> {
        let server = server.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared { server, state: Mutex::default() });
        let ended = CancellationToken::new();
        let serving = serve(listener, Arc::clone(&shared), ended.clone());
        tokio::spawn(ended.clone().run_until_cancelled_owned(serving));
        Ok(Self { endpoint, shared, ended })
    }

    /// Its URL, for the client.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Has the next request of `operation`, such as `UpdateItem`, meet `fault`. Several calls queue up.
    pub fn inject(&self, operation: &str, fault: DynamoFault) {
        self.shared.lock().injected.entry(operation.to_owned()).or_default().push_back(fault);
    }

    /// How many injected faults wait for their operation.
    #[must_use]
    pub fn left(&self) -> usize {
        self.shared.lock().injected.values().map(VecDeque::len).sum()
    }

    /// Has every request from now on meet `fault`; `None` ends it.
    pub fn always(&self, fault: Option<DynamoFault>) {
        self.shared.lock().standing = fault;
    }

    /// Has a write conflict with a transaction that writes the same item at the same time, as DynamoDB does it.
    pub fn conflicts(&self, yes: bool) {
        self.shared.lock().conflicts = yes;
    }

    /// How many writes have conflicted.
    #[must_use]
    pub fn conflicts_met(&self) -> u64 {
        self.shared.lock().met
    }

    /// The capacity units that DynamoDB says to have consumed since the last call. Before the first call it is not asked for them.
    #[must_use]
    pub fn units(&self) -> f64 {
        self.shared.lock().units.replace(0.0).unwrap_or_default()
    }

    /// How many requests of `operation` have come.
    #[must_use]
    pub fn requests(&self, operation: &str) -> u64 {
        self.shared.lock().requests.get(operation).copied().unwrap_or_default()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, ended: CancellationToken) {
    while let Ok((stream, _)) = listener.accept().await {
        let conversation = converse(stream, Arc::clone(&shared));
        tokio::spawn(ended.clone().run_until_cancelled_owned(conversation));
    }
}

/// One message of HTTP, as it came.
struct Raw {
    head: Vec<u8>,
    operation: String,
    body: Vec<u8>,
}

impl Raw {
    /// Has the answer say what the request consumed.
    fn ask_for_units(&mut self) {
        let before = self.body.len();
        let Some(rest) = self.body.strip_prefix(b"{") else { return };
        self.body = [&br#"{"ReturnConsumedCapacity":"TOTAL","#[..], rest].concat();
        let head = String::from_utf8_lossy(&self.head);
        let length = |length: usize| format!("content-length: {length}\r\n");
        self.head = head.replace(&length(before), &length(self.body.len())).into_bytes();
    }

    /// What an answer says that its request has consumed, in every table.
    fn units(&self) -> f64 {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let of = |consumed: &Value| consumed["CapacityUnits"].as_f64().unwrap_or_default();
        let consumed = &body["ConsumedCapacity"];
        consumed.as_array().map_or_else(|| of(consumed), |tables| tables.iter().map(of).sum())
    }
}

/// One connection, until its client has enough or a fault breaks it.
async fn converse(client: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let mut client = BufReader::new(client);
    let mut server = None;
    while let Some(mut request) = read(&mut client).await? {
        let fault = {
            let mut state = shared.lock();
            *state.requests.entry(request.operation.clone()).or_default() += 1;
            if state.units.is_some() {
                request.ask_for_units();
            }
            let injected = state.injected.get_mut(&request.operation).and_then(VecDeque::pop_front);
            injected.or_else(|| state.standing.clone())
        };
        match fault {
            Some(DynamoFault::Lost) => return Ok(()),
            Some(DynamoFault::AnswerLost) => {
                forward(&mut server, &shared, &request).await?;
                return Ok(());
            }
            Some(DynamoFault::Late(after)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    let _ = forward(&mut None, &shared, &request).await;
                });
                return Ok(());
            }
            Some(DynamoFault::Refused(code)) => {
                client.write_all(&refusal(code, &json!([]))).await?;
                continue;
            }
            Some(DynamoFault::Cancelled(at, code)) => {
                client.write_all(&cancellation(&request, &[at], code)).await?;
                continue;
            }
            Some(DynamoFault::Slow(time)) => tokio::time::sleep(time).await,
            None => {}
        }
        let answer = match write_alone(&shared, &request) {
            Ok(_written) => forward(&mut server, &shared, &request).await?,
            Err(conflict) => conflict,
        };
        client.write_all(&answer).await?;
    }
    Ok(())
}

/// The items that a request writes, until it is answered.
struct Written {
    shared: Arc<Shared>,
    items: Vec<String>,
}

impl Drop for Written {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.written.retain(|item| !self.items.contains(item));
    }
}

/// Whether no other request writes the same items now; otherwise the answer of DynamoDB.
fn write_alone(shared: &Arc<Shared>, request: &Raw) -> Result<Written, Vec<u8>> {
    let mut state = shared.lock();
    let items = if state.conflicts { items(request) } else { Vec::new() };
    let taken: Vec<usize> = (0..items.len()).filter(|at| state.written.contains(&items[*at])).collect();
    if taken.is_empty() {
        state.written.extend(items.iter().cloned());
        return Ok(Written { shared: Arc::clone(shared), items });
    }
    state.met += 1;
    Err(match request.operation.as_str() {
        "TransactWriteItems" => cancellation(request, &taken, "TransactionConflict"),
        _ => refusal("TransactionConflictException", &json!([])),
    })
}

/// The places of the items that a request writes.
fn items(request: &Raw) -> Vec<String> {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let place = |write: &Value| {
        let key = if write["Key"].is_object() { &write["Key"] } else { &write["Item"] };
        format!("{} {} {}", write["TableName"], key["pk"], key["sk"])
    };
    match request.operation.as_str() {
        "TransactWriteItems" => {
            actions(&body).iter().filter_map(Value::as_object).flat_map(|it| it.values().map(place)).collect()
        }
        "UpdateItem" | "PutItem" | "DeleteItem" => vec![place(&body)],
        _ => Vec::new(),
    }
}

fn actions(body: &Value) -> Vec<Value> {
    body["TransactItems"].as_array().cloned().unwrap_or_default()
}

fn cancellation(request: &Raw, at: &[usize], code: &str) -> Vec<u8> {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let reason = |place: usize| json!({ "Code": if at.contains(&place) { code } else { "None" } });
    let reasons: Vec<Value> = (0..actions(&body).len()).map(reason).collect();
    refusal("TransactionCanceledException", &Value::from(reasons))
}

fn refusal(code: &str, reasons: &Value) -> Vec<u8> {
    let status = if code.ends_with("Error") { "500 Internal Server Error" } else { "400 Bad Request" };
    let mut body =
        json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "The proxy says so." });
    if reasons.as_array().is_some_and(|reasons| !reasons.is_empty()) {
        body["CancellationReasons"] = reasons.clone();
    }
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends a request to the server and answers its answer.
async fn forward(server: &mut Option<BufReader<TcpStream>>, shared: &Shared, request: &Raw) -> io::Result<Vec<u8>> {
    let connection = match server {
        Some(connection) => connection,
        None => server.insert(BufReader::new(TcpStream::connect(&shared.server).await?)),
    };
    connection.write_all(&request.head).await?;
    connection.write_all(&request.body).await?;
    match read(connection).await? {
        Some(answer) => {
            if let Some(units) = &mut shared.lock().units {
                *units += answer.units();
            }
            Ok([answer.head, answer.body].concat())
        }
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads a request or an answer with a length; `None` where the connection was closed.
async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Raw>> {
    let (mut head, mut operation, mut length) = (Vec::new(), String::new(), 0);
    loop {
        let begun = head.len();
        if stream.read_until(b'\n', &mut head).await? == 0 {
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&head[begun..]).trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match &*name.to_ascii_lowercase() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "x-amz-target" => operation = value.rsplit('.').next().unwrap_or_default().trim().to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Raw { head, operation, body }))
}

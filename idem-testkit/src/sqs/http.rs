//! As much of HTTP/1.1 as the SDKs speak: a request with a length, its answer, the next one.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};

use super::{
    Shared,
    api::{Done, act},
    queue::Refusal,
};

/// How often a receive that waits looks again.
const LOOK_EVERY: Duration = Duration::from_millis(10);

struct Request {
    action: String,
    input: Value,
}

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(converse(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

/// One connection, until its client has enough.
async fn converse(stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await? {
        let answered = tokio::select! {
            answered = answer(&shared, &request) => answered,
            () = closed(&mut stream) => None,
        };
        let Some((status, headers, body)) = answered else { return Ok(()) };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/x-amz-json-1.0\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
    }
    Ok(())
}

/// Ends when the client goes away, which takes nothing more then.
async fn closed(stream: &mut BufReader<TcpStream>) {
    if stream.fill_buf().await.is_ok_and(|bytes| !bytes.is_empty()) {
        // The next request, which waits for its turn.
        std::future::pending::<()>().await;
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let (mut length, mut action) = (0, String::new());
    let mut lines = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        lines += 1;
        let line = line.trim_end();
        if line.is_empty() && lines > 1 {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match &*name.to_ascii_lowercase() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "x-amz-target" => action = value.trim().trim_start_matches("AmazonSQS.").to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request { action, input: serde_json::from_slice(&body).unwrap_or_default() }))
}

/// Status, further headers, body.
type Answer = (&'static str, String, String);

/// `None` where the connection is closed instead.
async fn answer(shared: &Shared, request: &Request) -> Option<Answer> {
    let Request { action, input } = request;
    while shared.lock().hangs {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    if let Some(code) = shared.lock().refusing {
        return Some(refusal(code, "You may not."));
    }
    let (fails, unanswered) = {
        let mut state = shared.lock();
        *state.requests.entry(action.clone()).or_default() += 1;
        (is_next(&mut state.failing, action), is_next(&mut state.unanswered, action))
    };
    if fails {
        let body = json!({ "__type": "InternalFailure", "message": "Try again." });
        return Some(("500 Internal Server Error", String::new(), body.to_string()));
    }
    let _receiving = (action == "ReceiveMessage").then(|| Receiving::new(shared));
    let since = Instant::now();
    let done = loop {
        match act(shared, action, input) {
            Done::Answer(answer) => break answer,
            Done::Wait(time) if since.elapsed() >= time => break Ok(json!({})),
            Done::Wait(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
        while shared.lock().hangs {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    if unanswered {
        return None;
    }
    Some(match done {
        Ok(body) => ("200 OK", String::new(), body.to_string()),
        Err(Refusal { code, text }) => refusal(code, &text),
    })
}

/// Whether this is one of those that a test counted.
fn is_next(counted: &mut HashMap<String, u32>, action: &str) -> bool {
    counted.get_mut(action).is_some_and(|count| {
        let is_next = *count > 0;
        *count = count.saturating_sub(1);
        is_next
    })
}

/// Counts a receive, until it is dropped.
struct Receiving<'a>(&'a Shared);

impl<'a> Receiving<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.lock().receiving += 1;
        Self(shared)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.lock().receiving -= 1;
    }
}

fn refusal(code: &str, text: &str) -> Answer {
    // Under which name the older protocol had it, which SDKs prefer.
    let query = if code == "QueueDoesNotExist" { "AWS.SimpleQueueService.NonExistentQueue" } else { code };
    let body = json!({ "__type": format!("com.amazonaws.sqs#{code}"), "message": text });
    ("400 Bad Request", format!("x-amzn-query-error: {query};Sender\r\n"), body.to_string())
}

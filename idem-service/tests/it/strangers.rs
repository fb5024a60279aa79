//! A service over HTTP, and clients that open connections and leave them at that.

use std::{ffi::OsString, process::Stdio, time::Duration};

use idem_service::{
    HttpService,
    axum::{Router, body::Bytes, routing::post},
    idem_http::{IdempotentTx, TxError},
    idem_sqlx::PostgresStore,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    admin::Admin,
    postgres::Database,
    process::{self, Worker},
    unread::{free_port, full_pipe},
    worker::ARGUMENTS,
};

/// The service, in a process that a test has started.
#[test]
fn service_process() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<OsString> =
        serde_json::from_str::<Vec<String>>(&arguments).unwrap().into_iter().map(Into::into).collect();
    let routes = |opened: idem_service::Opened<PostgresStore>| {
        let notes = Router::new().route("/notes", post(note).route_layer(opened.idempotency.layer()));
        // Of the application's own, which has no limit of time.
        Ok(notes.route("/uploads", post(async |_: Bytes| "taken")))
    };
    let service = HttpService::<PostgresStore>::new("notes", routes)
        .tables("CREATE TABLE IF NOT EXISTS notes (text text)")
        .idempotency(|idempotency| idempotency.single_tenant());
    std::process::exit(service.run_with(arguments).code().into());
}

async fn note(mut tx: IdempotentTx<PostgresStore>, text: String) -> Result<String, TxError> {
    let insert = sqlx::query_scalar("INSERT INTO notes (text) VALUES ($1) RETURNING text").bind(text);
    Ok(insert.fetch_one(&mut *tx).await?)
}

/// The status of a note under this key, on a connection of its own.
async fn send(address: &str, key: &str) -> u16 {
    let asked = tokio::time::timeout(Duration::from_secs(60), async {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let length = key.len();
        let request = format!(
            "POST /notes HTTP/1.1\r\nhost: a\r\nidempotency-key: \"{key}\"\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{key}"
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
    });
    asked.await.expect("an answer")
}

/// W173: clients that open more connections than the process may have descriptors, and send half a head, or a head and no body, keep
/// neither probes nor requests out.
#[tokio::test]
async fn w173_half_open_connections_keep_nobody_out() {
    let database = Database::fresh().await;
    let arguments = format!(
        "--database-url {} --migrate --create-tables --listen 127.0.0.1:0 --admin 0 --plain-hashes --cleanup-every off",
        database.url()
    );
    let mut running = Worker::bare(&arguments).of("strangers::service_process").with_descriptors(256).start();
    let admin = Admin::of(&mut running).await;
    let line = running.line("serving requests").await;
    let address = line.split_once("address=").expect("the line has the address").1.trim().to_owned();
    let heads = ["POST /uploads HTTP/1.1\r\nhost: a\r\n", "POST /uploads HTTP/1.1\r\ncontent-length: 9\r\n\r\n"];
    let mut held = Vec::new();
    for number in 0..10 {
        for head in heads.iter().cycle().take(60) {
            let mut connection = TcpStream::connect(&address).await.unwrap();
            // One that the service has closed already is replaced by the next one.
            let _ = connection.write_all(head.as_bytes()).await;
            held.push(connection);
        }
        assert_eq!(send(&address, &format!("note-{number}")).await, 200);
        assert_eq!(admin.get("/healthz").await, (200, "ok\n".to_owned()));
    }
    let (_, text) = admin.get("/metrics").await;
    let closed =
        text.lines().find_map(|line| line.strip_prefix("idem_http_connections_closed_total{consumer=\"notes\"} "));
    assert!(closed.is_some_and(|count| count.parse::<u32>().unwrap() > 400), "{closed:?} of 600, and 112 are open");
    assert_eq!(noted(&database).await, 10);
    drop(held);
    running.signal("TERM").await;
    running.ended().await.with(0);
    database.remove().await;
}

/// J92: a service whose log nothing reads answers requests and probes, and ends at a signal in time with 0.
#[tokio::test]
async fn j92_a_service_whose_log_nothing_reads_answers_and_ends() {
    let database = Database::fresh().await;
    let [port, admin] = [(); 2].map(|()| free_port());
    let arguments = format!(
        "--database-url {} --migrate --create-tables --listen {port} --admin {admin} --plain-hashes --cleanup-every off",
        database.url()
    );
    let (_log, to_log) = full_pipe();
    let mut command = Worker::bare(&arguments).of("strangers::service_process").variable("RUST_LOG", "trace").command();
    let mut child = command.stdout(Stdio::null()).stderr(to_log).spawn().unwrap();
    let (admin, address) = (Admin::at(admin), format!("127.0.0.1:{port}"));
    admin.until("/readyz", |code, _| code == 200).await;
    for number in 0..20 {
        assert_eq!(send(&address, &format!("note-{number}")).await, 200);
    }
    assert_eq!(admin.get("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(noted(&database).await, 20);
    process::send(&child, "TERM").await;
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait()).await.expect("it ends");
    assert_eq!(ended.unwrap().code(), Some(0));
    database.remove().await;
}

async fn noted(database: &Database) -> i64 {
    let notes = sqlx::query_scalar("SELECT count(DISTINCT text) FROM notes");
    notes.fetch_one(&mut database.connect().await).await.unwrap()
}

//! A worker of an application that has more than handlers: a store, settings, state, hooks and routes of its own.

use std::{
    ffi::OsString,
    sync::{Arc, LazyLock},
};

use idem_core::{BoxError, Effects, Message, Tenant, Tx, config::OnConflict, handler_fn};
use idem_service::{Database, DatabaseSettings, Service, axum};
use idem_testkit::MemoryStore;

use crate::{
    admin::Admin,
    place::Place,
    process::Worker,
    worker::{ARGUMENTS, Memory},
};

/// The store's rows, for a hook that reads them once the worker has ended.
static STORE: LazyLock<MemoryStore> = LazyLock::new(MemoryStore::new);

struct InMemory;

impl Database for InMemory {
    type Store = MemoryStore;

    const CLIENT: &'static str = "memory";
    const SCHEMES: &'static [&'static str] = &["memory"];

    async fn open(_: DatabaseSettings<'_>) -> Result<MemoryStore, BoxError> {
        Ok(STORE.clone())
    }

    async fn prepare(_: &MemoryStore, settings: DatabaseSettings<'_>, tables: &str) -> Result<(), BoxError> {
        tracing::info!(migrate = settings.migrate(), tables, "the database is prepared");
        Ok(())
    }
}

/// The application's own settings.
#[derive(Debug, clap::Args)]
struct Own {
    /// How customers are greeted
    #[arg(long, env = "OWN_GREETING", value_name = "TEXT")]
    greeting: String,
}

/// Made of the settings, and waited for.
async fn greeter(own: Own) -> Result<Arc<String>, BoxError> {
    tokio::task::yield_now().await;
    if own.greeting.is_empty() { Err("--greeting is empty".into()) } else { Ok(Arc::new(own.greeting)) }
}

/// Runs the worker in a process that a test has started, and never returns there.
#[test]
fn open_process() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("a list of texts");
    let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
    let service = async |own: Own| {
        let greeting = greeter(own).await?;
        let (told, shown) = (Arc::clone(&greeting), Arc::clone(&greeting));
        let handler = handler_fn(async move |message: &Message, tx: &mut Tx<'_, MemoryStore>| {
            let tenant = message.tenant().map(ToString::to_string).unwrap_or_default();
            tx.connection().append("greetings", &tenant, greeting.as_bytes().to_vec()).await?;
            Ok(())
        });
        // A second call adds to the first.
        let service = Service::new("greeter", Effects::InTransaction, handler)
            .tables("CREATE TABLE greetings")
            .consumer(|consumer| {
                consumer.tenant_from(|message| Tenant::new(message.headers().text("tenant").unwrap_or("nobody")).ok())
            })
            .consumer(|consumer| consumer.handler_name("greeter"));
        let route = axum::routing::get(async move || shown.to_string());
        Ok(service
            .worker(|settings| settings.on_conflict = OnConflict::Acknowledge)
            .admin_routes(axum::Router::new().route("/greeting", route))
            .on_start(async move || {
                tracing::info!(greeting = %told, "the application begins");
                if told.as_str() == "never" { Err("the application does not want to".into()) } else { Ok(()) }
            })
            .on_stop(async || {
                let mut rows: Vec<String> = STORE.rows("greetings").into_iter().map(|(tenant, _)| tenant).collect();
                rows.sort();
                tracing::info!(?rows, "the application ends");
            }))
    };
    let service = Service::<Memory, InMemory>::from_args(service).version("7");
    std::process::exit(service.run_with(arguments).code().into());
}

fn worker(place: &Place, arguments: &str) -> Worker {
    let start = format!("--database-url memory: --socket {} --consumer greeter", place.socket());
    Worker::bare(&format!("{start} {arguments}")).of("open::open_process")
}

#[tokio::test]
async fn the_version_is_the_applications_beside_idems() {
    let ended = Worker::bare("--version").of("open::open_process").run().await.with(0);
    let idem = env!("CARGO_PKG_VERSION");
    assert_eq!(ended.output.trim_end(), format!("worker 7 (idem {idem})"));
    let ended = Worker::bare("--version").run().await.with(0);
    assert_eq!(ended.output.trim_end(), format!("worker (idem {idem})"));
}

#[tokio::test]
async fn an_application_brings_store_settings_state_hooks_and_routes() {
    let place = Place::new().await;
    let of = |tenant: &str, payload: &str| {
        Message::new(payload.to_owned()).with_header("idempotencykey", "1").with_header("tenant", tenant.to_owned())
    };
    // The same key with another payload: a conflict, which the application has acknowledged.
    for message in [of("a", "x"), of("b", "x"), of("a", "y")] {
        place.orders.publish(message).unwrap();
    }
    let mut running = worker(&place, "--admin 0 --migrate --create-tables").variable("OWN_GREETING", "hello").start();
    let line = running.line("the database is prepared").await;
    assert!(line.contains("migrate=true") && line.contains("CREATE TABLE greetings"), "{line}");
    assert!(running.line("the application begins").await.contains("hello"));
    running.signal("TERM").await;
    let ended = running.ended().await.with(0);
    assert!(ended.log.contains("the application ends"), "{}", ended.log);
    // Messages in flight were finished; those not begun come in the next run, which has an empty store of its own.
    let mut running = worker(&place, "--admin 0 --greeting hello").start();
    let admin = Admin::of(&mut running).await;
    assert_eq!(admin.get("/greeting").await, (200, "hello".to_owned()));
    assert_eq!(admin.get("/healthz").await.0, 200);
    place.orders.drained().await;
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

#[tokio::test]
async fn what_builders_can_do_an_application_can() {
    let place = Place::new().await;
    let of = |tenant: &str, payload: &str| {
        Message::new(payload.to_owned()).with_header("idempotencykey", "1").with_header("tenant", tenant.to_owned())
    };
    for message in [of("a", "x"), of("b", "x"), of("a", "y")] {
        place.orders.publish(message).unwrap();
    }
    let ended = worker(&place, "--greeting hello --until-idle 100ms").run().await.with(0);
    let summary = ended.summary();
    assert_eq!(
        (&summary["processed"], &summary["conflicts"], &summary["dead_lettered"]),
        (&2.into(), &1.into(), &0.into())
    );
    assert!(ended.log.contains(r#"rows=["a", "b"]"#), "{}", ended.log);
    // A conflict is logged with its hashes and its origin, and nothing of it as Rust would print it.
    let lines = ended.log.lines().filter(|line| line.contains("conflict")).collect::<Vec<_>>();
    assert!(
        !lines.is_empty() && lines.iter().all(|line| !line.contains("Hash(") && !line.contains("Origin(")),
        "{lines:?}"
    );
    place.remove();
}

#[tokio::test]
async fn own_settings_are_flags_variables_and_of_the_file() {
    let place = Place::new().await;
    let help = worker(&place, "--help").run().await.with(0).output;
    assert!(
        help.contains("Application") && help.contains("--greeting <TEXT>") && help.contains("OWN_GREETING"),
        "{help}"
    );
    let missing = worker(&place, "").run().await.with(2);
    assert!(missing.why().starts_with("--greeting (or the variable OWN_GREETING) must be given"), "{}", missing.why());
    let path = place.folder.join("worker.toml");
    std::fs::write(&path, "greeting = \"of the file\"\n").unwrap();
    let file = format!("--until-idle 50ms --config {}", path.display());
    let ended = worker(&place, &file).run().await.with(0);
    assert!(ended.log.contains("greeting=of the file"), "{}", ended.log);
    place.remove();
}

#[tokio::test]
async fn what_the_application_refuses_ends_the_worker() {
    let place = Place::new().await;
    for (arguments, why) in
        [("--greeting=", "--greeting is empty"), ("--greeting never", "the application does not want to")]
    {
        let ended = worker(&place, arguments).run().await.with(2);
        assert!(ended.why().starts_with(why), "{}", ended.why());
        assert!(!ended.log.contains("the application ends"), "{}", ended.log);
    }
    let elsewhere = format!("--database-url postgres://h/d --socket {} --consumer c --greeting x", place.socket());
    let ended = Worker::bare(&elsewhere).of("open::open_process").run().await.with(2);
    assert!(ended.why().starts_with("--database-url must begin with memory://"), "{}", ended.why());
    place.remove();
}

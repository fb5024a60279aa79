//! A consumer in a process of its own, which tests kill. It takes a [`Plan`] as its one argument and failpoints from
//! the environment, writes its log to standard error, and drains on SIGTERM.

use std::{
    collections::HashSet,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use idem_core::{
    CancellationToken, Concurrency, DedupConsumer, Effects, Event, Handler, HandlerError, Message, Store, Tx, Worker,
    cleanup::CleanupSettings,
    config::RetryPolicy,
    failpoint::{self, Action},
    handler::{BatchAnswer, BatchHandler},
};
use idem_sqlx::{PostgresStore, SqliteStore};
use idem_testkit::{
    failpoints::{self, Armed},
    memory::{RemotePublisher, RemoteSource},
};
use idem_tests::{
    asker::{self, Noting},
    plan::{Act, BAD_PLAN, Handling, NOT_REACHED, Payment, Plan, StorePlan, WORKER_FAILED},
    told::FilePublisher,
};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const RECORD_EFFECT: &str = "INSERT INTO effects (message_key, sequence, account, cents) VALUES ($1, $2, $3, $4)";
const CREDIT_ACCOUNT: &str = "INSERT INTO balances (account, cents) VALUES ($1, $2) \
                              ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents";

const NOTE: &str = "INSERT INTO idem.notes (message_key) VALUES ($1)";

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,idem_core=debug"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let told = || -> Result<(Plan, Vec<Armed>), BoxError> {
        let argument = std::env::args().nth(1).ok_or("the plan is missing: give it as JSON in one argument")?;
        Ok((serde_json::from_str(&argument)?, failpoints::arm_from_env()?))
    };
    let (plan, armed) = match told() {
        Ok(told) => told,
        Err(error) => {
            tracing::error!(error, "this cannot be done");
            return ExitCode::from(BAD_PLAN);
        }
    };
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(BoxError::from)
        .and_then(|runtime| runtime.block_on(consume(plan, &armed)));
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_REACHED),
        Err(error) => {
            tracing::error!(error, "the worker ended with an error");
            ExitCode::from(WORKER_FAILED)
        }
    }
}

/// Runs the worker to its end. Answers whether every failpoint was reached.
async fn consume(plan: Plan, armed: &[Armed]) -> Result<bool, BoxError> {
    match plan.store.clone() {
        StorePlan::PostgresStore { url } => {
            if plan.newer {
                // As a release does that knows the migration: it refuses a schema without it.
                PgConnection::connect(&url).await?.execute("SELECT FROM idem.notes LIMIT 0").await?;
            }
            begin(PostgresStore::connect(&url).await?, plan).await?;
        }
        StorePlan::TokioPostgres { url, .. } => {
            begin(idem_tokio_postgres::PostgresStore::connect(&url).await?, plan).await?
        }
        StorePlan::SqliteStore { path } => begin(SqliteStore::open(path).await?, plan).await?,
    }
    let mut reached = true;
    for Armed { point, skip, action, .. } in armed {
        reached &= !matches!(action, Action::Error) || !still_armed(point, *skip).await;
    }
    Ok(reached)
}

/// Whether a failpoint that was armed for one pass has not had it: then it is still to come.
async fn still_armed(point: &'static str, skip: u64) -> bool {
    for _ in 0..=skip {
        if failpoint::hit(point).await.is_err() {
            return true;
        }
    }
    false
}

async fn begin<S: Noting>(store: S, plan: Plan) -> Result<(), BoxError>
where
    Payments: Handler<S>,
{
    match &plan.asks {
        Some(asking) => asker::ask(store, asking).await,
        None => run(store, plan).await,
    }
}

async fn run<S: Store>(store: S, plan: Plan) -> Result<(), BoxError>
where
    Payments: Handler<S>,
{
    let source = RemoteSource::connect(&plan.socket, &plan.queue).await;
    let publisher = RemotePublisher::new(&plan.socket, &plan.dead_letters);
    let effects = if plan.outside { Effects::Outside } else { Effects::InTransaction };
    let handling = match plan.store {
        StorePlan::TokioPostgres { handling, .. } if !plan.outside => handling,
        StorePlan::TokioPostgres { .. } | StorePlan::PostgresStore { .. } | StorePlan::SqliteStore { .. } => {
            Handling::InOrder
        }
    };
    let handler = Payments { plan: plan.clone(), failed: Mutex::default() };
    let consumer = DedupConsumer::builder(store, "payments");
    let (consumer, cache_for) = match handling {
        Handling::InOrder => (consumer.handler(handler), None),
        Handling::Pipelined => (consumer.handler(handler).handlers(Concurrency::pipelined()), None),
        Handling::TogetherWithCache => (consumer.batch_handler(Together(handler)), Some(Duration::from_secs(60))),
    };
    let consumer = consumer
        .effects(effects)
        .handler_deadline(Duration::from_secs(10))
        .busy_timeout(Duration::from_secs(2))
        .lanes(plan.lanes)
        .publish_to(["credits"])
        .build()?;
    let cleanup = plan.cleanup_rows.map(|rows_max| {
        CleanupSettings::default().every(Duration::from_secs(1)).rows_max(rows_max).units_kept(Duration::from_secs(60))
    });
    let mut worker = Worker::builder(consumer, source);
    if let Some(time) = cache_for {
        worker = worker.cache_for(time);
    }
    if let Some(relaying) = plan.relay.clone() {
        let deadline = Duration::from_millis(relaying.deadline_ms);
        worker = worker.relay(|relay| {
            relay.to("credits", FilePublisher(relaying)).settings(|settings| settings.publish_deadline = deadline)
        });
    }
    let worker = worker
        .batch(plan.batch)
        .retry(RetryPolicy::new(plan.attempts, Duration::from_millis(5), Duration::from_millis(50)))
        .publisher(publisher)
        .cleanup(cleanup)
        .control_every(Duration::from_millis(50))
        .until_idle(Duration::from_millis(plan.idle_ms))
        .build()?;
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = shutdown.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    let summary = worker.run(shutdown.cancelled_owned()).await?;
    tracing::info!(?summary, "done");
    Ok(())
}

/// Credits an account, relatively and without any constraint of its own, so that a second run would show.
struct Payments {
    plan: Plan,
    failed: Mutex<HashSet<i64>>,
}

impl Payments {
    /// The rest of the handler, once the effect is written.
    async fn then(&self, payment: &Payment) -> Result<(), HandlerError> {
        if self.plan.handler_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.plan.handler_ms)).await;
        }
        match payment.act {
            Act::Succeed => Ok(()),
            Act::FailOnce => {
                let first = self.failed.lock().unwrap_or_else(PoisonError::into_inner).insert(payment.sequence);
                if first { Err(HandlerError::transient("it fails once")) } else { Ok(()) }
            }
            Act::FailUntilRepaired if self.plan.repaired => Ok(()),
            Act::FailAlways | Act::FailUntilRepaired => Err(HandlerError::permanent("it always fails")),
            Act::Abort => std::process::abort(),
        }
    }
}

/// The same for all messages of a unit, by one call.
struct Together(Payments);

impl<S: Store> BatchHandler<S> for Together
where
    Payments: Handler<S>,
{
    async fn handle_batch(&self, messages: &[&Message], tx: &mut Tx<'_, S>) -> Result<BatchAnswer, HandlerError> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.0.handle(message, tx).await);
        }
        Ok(BatchAnswer::each(answers))
    }
}

/// The event of each payment: one an effect.
fn credited(message: &Message, payment: &Payment) -> Event {
    Event::to("credits").ordering_key(payment.account.to_string()).body(key_of(message).to_owned())
}

fn key_of(message: &Message) -> &str {
    message.key().map_or("", |key| key.as_str())
}

// One implementation for each store, because a generic one would have to spell out every bound of sqlx's `execute`.
macro_rules! credits {
    ($store:ty) => {
        impl Handler<$store> for Payments {
            async fn handle(&self, message: &Message, tx: &mut Tx<'_, $store>) -> Result<(), HandlerError> {
                let payment: Payment = message.json()?;
                sqlx::query(RECORD_EFFECT)
                    .bind(key_of(message))
                    .bind(payment.sequence)
                    .bind(payment.account)
                    .bind(payment.cents)
                    .execute(tx.connection())
                    .await?;
                sqlx::query(CREDIT_ACCOUNT).bind(payment.account).bind(payment.cents).execute(tx.connection()).await?;
                tx.publish(message, credited(message, &payment))?;
                if self.plan.newer {
                    sqlx::query(NOTE).bind(key_of(message)).execute(tx.connection()).await?;
                }
                self.then(&payment).await
            }
        }
    };
}
credits!(PostgresStore);

impl Handler<idem_tokio_postgres::PostgresStore> for Payments {
    async fn handle(
        &self,
        message: &Message,
        tx: &mut Tx<'_, idem_tokio_postgres::PostgresStore>,
    ) -> Result<(), HandlerError> {
        let payment: Payment = message.json()?;
        let Payment { sequence, account, cents, .. } = &payment;
        tx.connection().execute(RECORD_EFFECT, &[&key_of(message), sequence, account, cents]).await?;
        tx.connection().execute(CREDIT_ACCOUNT, &[account, cents]).await?;
        tx.publish(message, credited(message, &payment))?;
        self.then(&payment).await
    }
}
credits!(SqliteStore);

//! A schema of its own for each test, a consumer in it, and the command.

use idem_testkit::Decide as _;
use std::{
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use idem_core::{
    ConsumerName, DedupConsumer, Effects, ErrorClass, Handler, HandlerError, IdempotencyKey, Message, Retention, Store,
    Tenant, Tx,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Reason},
    hash::PayloadHash,
    message::Origin,
    standing::{Condition, Fact},
    store::{Bookkeeping as _, ControlState, HashRuleId, Interned, Registration, RunId, ScopeId},
};
use idem_sql::SchemaName;
use idem_sqlx::{PostgresOptions, PostgresStore};
use serde_json::Value;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool, Row as _, postgres::PgConnectOptions};

/// How long anything may take that a test waits for. It only ends a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The text in every payload here, which may be shown only on request.
pub(crate) const PAYLOAD: &str = "canary-payload";
pub(crate) const PASSWORD: &str = "canary-password";

pub(crate) struct Fixture {
    pub(crate) schema: String,
    pub(crate) store: PostgresStore,
    pub(crate) admin: PgPool,
    pub(crate) url: String,
    /// Messages that the handler refuses for good.
    pub(crate) refused: Arc<Mutex<Vec<String>>>,
}

/// The answer of a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    /// It went well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }

    /// It was refused, and this says why.
    #[track_caller]
    pub(crate) fn refused(self, why: &str) {
        assert_eq!(self.status, 2, "{self:?}");
        assert!(self.err.contains(why), "{self:?}");
        assert!(self.out.is_empty(), "{self:?}");
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// Runs the command with nothing in its environment but these.
pub(crate) fn command(variables: &[(&str, &str)], arguments: &[&str]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idem"));
    command.env_clear().envs(variables.iter().copied()).args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Answer { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

impl Fixture {
    /// A migrated schema.
    pub(crate) async fn new() -> Self {
        let fixture = Self::empty().await;
        fixture.idem("migrate up").ok();
        fixture
    }

    pub(crate) async fn empty() -> Self {
        let server = std::env::var("IDEM_POSTGRES_URL");
        let server = server.unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
        // The server trusts this machine, so that any password will do.
        let url = server.replace("idem@", &format!("idem:{PASSWORD}@"));
        let schema = format!("c_{:016x}", fastrand::u64(..));
        let options: PgConnectOptions = url.parse().unwrap();
        let options = options.disable_statement_logging().options([("search_path", schema.as_str())]);
        let admin = sqlx::postgres::PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
        let store = PostgresOptions::parse(&url).unwrap().schema(SchemaName::new(&schema).unwrap()).build().unwrap();
        Self { schema, store, admin, url, refused: Arc::default() }
    }

    /// The command with these arguments, which hold no blanks.
    pub(crate) fn idem(&self, arguments: &str) -> Answer {
        self.idem_with(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn idem_with(&self, arguments: &[&str]) -> Answer {
        let variables = [("DATABASE_URL", self.url.as_str()), ("IDEM_SCHEMA", &self.schema), ("IDEM_OPERATOR", "ada")];
        command(&variables, arguments)
    }

    /// A consumer whose handler does nothing, or refuses.
    pub(crate) fn consumer(&self) -> DedupConsumer<PostgresStore> {
        let builder = DedupConsumer::builder(self.store.clone(), "orders").effects(Effects::InTransaction);
        builder.handler(Accepting(Arc::clone(&self.refused))).version("1.2.3").build().unwrap()
    }

    /// Delivers these keys, and answers whether each was processed (P) or skipped (D).
    pub(crate) async fn deliver(&self, keys: &[&str]) -> String {
        let messages = keys.iter().map(|key| message(key)).collect();
        let decisions = self.consumer().decisions(messages).await.unwrap();
        decisions.iter().map(|decision| if decision.is_processed() { 'P' } else { 'D' }).collect()
    }

    /// Runs the script of the roles, which are the server's: one test at a time.
    pub(crate) async fn grant_roles(&self) {
        let roles = self.idem("migrate print --roles").ok();
        self.run(&format!("BEGIN; SELECT pg_advisory_xact_lock(4711); {roles}; COMMIT")).await;
    }

    /// The URL of a new login with a worker's rights, and its name.
    pub(crate) async fn worker_login(&self) -> (String, String) {
        self.grant_roles().await;
        let login = format!("{}_worker", self.schema);
        self.run(&format!("CREATE ROLE {login} LOGIN IN ROLE idem_worker")).await;
        (self.url.replace("idem:", &format!("{login}:")), login)
    }

    pub(crate) async fn run(&self, statements: &str) {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&self.admin).await.unwrap();
    }

    /// The first column of a query's result.
    pub(crate) async fn texts(&self, query: &str) -> Vec<String> {
        let rows = sqlx::raw_sql(AssertSqlSafe(query.to_owned())).fetch_all(&self.admin).await.unwrap();
        rows.iter().map(|row| row.try_get_unchecked::<Option<String>, _>(0).unwrap().unwrap_or_default()).collect()
    }

    /// Asks until the database answers this.
    pub(crate) async fn until(&self, query: &str, wanted: &str) {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        let asking = async {
            while self.texts(query).await.first().map(String::as_str) != Some(wanted) {
                pace.tick().await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never {wanted}: {query}"));
    }

    /// The lines of the audit trail: who did what to which key.
    pub(crate) async fn trail(&self) -> Vec<String> {
        self.texts("SELECT concat_ws(' ', who, action, idempotency_key, nullif(details, '')) FROM audit ORDER BY id")
            .await
    }

    pub(crate) async fn drop(self) {
        self.store.disconnect().await;
        self.run(&format!("DROP SCHEMA {} CASCADE", self.schema)).await;
    }
}

pub(crate) fn message(key: &str) -> Message {
    Message::new(format!("{PAYLOAD} {key}")).with_header("idempotencykey", key.to_owned())
}

/// The scope of `orders` without a tenant.
pub(crate) fn orders() -> ScopeId {
    ScopeId(Interned::Scope.numbers(&["orders", ""]).next().unwrap())
}

/// Counts an attempt of `orders`, as a worker does before it.
pub(crate) async fn attempt(store: &impl Store, key: &str, payload: &str) {
    let (key, hash) = (IdempotencyKey::new(key).unwrap(), PayloadHash::of(payload.as_bytes()));
    store.bookkeeping().count_attempt(orders(), &key, hash).await.unwrap();
}

async fn set_aside(store: &impl Store, key: &str, payload: &str) {
    let letter = DeadLetter {
        consumer: ConsumerName::new("orders").unwrap(),
        scope: orders(),
        message: Message::new(payload.to_owned()).with_origin(Origin::new(&format!("q/{key}"))),
        key: Some(IdempotencyKey::new(key).unwrap()),
        hash: Some((PayloadHash::of(payload.as_bytes()), HashRuleId(1))),
        reason: Reason::Permanent,
        attempts: 1,
        error: "there is no such customer".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::Permanent, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    };
    store.bookkeeping().store_dead_letter(&letter).await.unwrap();
}

/// Leaves a count of attempts of each kind, beside one of `succeeded`, which has a record. `left` is to become the count
/// of a release that did not end the counts of messages that it set aside.
pub(crate) async fn leave_counts(store: &impl Store) {
    for key in ["succeeded", "failing", "ended", "aside", "left", "again", "other"] {
        attempt(store, key, "x").await;
    }
    let (ended, hash) = (IdempotencyKey::new("ended").unwrap(), PayloadHash::of(b"x"));
    store.bookkeeping().end_attempts(orders(), &ended, hash).await.unwrap();
    for key in ["aside", "left", "again", "other"] {
        set_aside(store, key, "x").await;
    }
    attempt(store, "again", "x").await;
    attempt(store, "other", "y").await;
}

/// The keys that fail by `stats` and by `stuck`: both the same.
#[track_caller]
pub(crate) fn agree_on_what_fails(stats: &Value, stuck: &Value) {
    let mut keys: Vec<&str> =
        stuck["failing_keys"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["again", "failing", "other"], "{stuck}");
    assert_eq!(stats["consumers"][0]["failing"], keys.len(), "{stats}");
}

/// The conditions that `stuck`, `doctor` and `consumers list` show of stopped consumers, and the hint of `stuck` where else to look if nothing is
/// stuck.
pub(crate) async fn see_what_is_stopped(store: &impl Store, idem: impl Fn(&str) -> Answer) {
    let nothing = || {
        // Sessions of other tests may wait for one another, in the same database.
        let looks = (0..100).map(|_| idem("stuck --json").json());
        let stuck = looks.take_while(|stuck| stuck["conditions"] == serde_json::json!([]));
        let stuck = stuck.into_iter().find(|stuck| stuck["messages"][0].is_string());
        let stuck = stuck.unwrap_or_else(|| panic!("something is stuck: {}", idem("stuck --json").json()));
        let said = stuck["messages"][0].as_str().unwrap();
        assert!(said.contains("no consumer is stopped") && said.contains("idem_waiting"), "{said}");
    };
    nothing();
    idem("consumers pause orders --reason ledger-is-down").ok();
    let shown = |state: &str, what: &str| {
        let (stuck, listed) = (idem("stuck --json").json(), idem("consumers list --json").json());
        let row = &stuck["conditions"][0];
        let texts = ["consumer", "state", "what"].map(|column| row[column].as_str().unwrap());
        assert_eq!(texts, ["orders", state, what], "{stuck}");
        assert!(row["fix"].as_str().unwrap().ends_with(" consumers resume orders"), "{stuck}");
        assert!(row["for"].as_str().unwrap().ends_with(" s"), "{stuck}");
        assert_eq!(stuck["messages"], serde_json::json!([]), "something is stuck");
        assert_eq!(
            (&row["what"], &row["state"]),
            (&listed["conditions"][0]["what"], &listed["conditions"][0]["state"])
        );
        let doctor: Value = serde_json::from_str(&idem("doctor --json").out).unwrap();
        let mut findings = doctor["findings"].as_array().unwrap().iter();
        assert!(
            findings.any(|row| row["finding"].as_str().unwrap().starts_with(&format!("orders: {what}, for "))),
            "{doctor}"
        );
    };
    shown("paused", "paused by ada: ledger-is-down");
    // One tenant of it is worse.
    let (name, acme) = (ConsumerName::new("orders").unwrap(), Tenant::new("acme").unwrap());
    let scope = store.bookkeeping().scope(&name, &acme).await.unwrap();
    store.bookkeeping().set_control(scope, ControlState::Halted, "run 1", "a conflict").await.unwrap();
    shown("halted", "halted by run 1: a conflict");
    assert!(idem("stuck").ok().contains("conditions\nCONSUMER"));
    let stuck = idem("stuck --json").json();
    let fix = stuck["conditions"][0]["fix"].as_str().unwrap();
    idem(fix.split_once("consumers").map(|(_, rest)| format!("consumers{rest}")).unwrap().as_str()).ok();
    nothing();
    // A name that a shell would take apart stands in quotes.
    let name = ConsumerName::new("ada's orders").unwrap();
    let rules = ("k".to_owned(), vec!["h".to_owned()]);
    let registration = Registration::new(name, Tenant::default(), rules.0, rules.1, Retention::For(PATIENCE));
    let registered = store.bookkeeping().register(&registration).await.unwrap();
    store.bookkeeping().set_control(registered.scope, ControlState::Halted, "run 1", "a conflict").await.unwrap();
    let stuck = idem("stuck --json").json();
    let fix = stuck["conditions"][0]["fix"].as_str().unwrap();
    assert!(fix.ends_with(r" consumers resume 'ada'\''s orders'"), "{stuck}");
    store.bookkeeping().set_control(registered.scope, ControlState::Running, "ada", "").await.unwrap();
    see_what_runs_report(store, registered.scope, &registration, idem).await;
}

/// What workers report of themselves, and runs that end again and again.
async fn see_what_runs_report(store: &impl Store, scope: ScopeId, of: &Registration, idem: impl Fn(&str) -> Answer) {
    let books = store.bookkeeping();
    let state = |consumer: &str| {
        let listed = idem("consumers list --json").json();
        let row = listed["consumers"].as_array().unwrap().iter().find(|row| row["consumer"] == consumer).cloned();
        row.unwrap()["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state("ada's orders"), "running", "no worker of it has ever reported");
    let run = books.register(of).await.unwrap().run;
    let open = [Fact::of(Condition::BreakerOpen)];
    books.report(scope, run, &open, false).await.unwrap();
    assert_eq!(state("ada's orders"), "breaker open");
    let stuck = idem("stuck --json").json();
    assert!(stuck["conditions"][0]["what"].as_str().unwrap().starts_with("the breaker is open"), "{stuck}");
    let of_run = |run: RunId| {
        let workers = idem("workers --json").json();
        let row = workers["workers"].as_array().unwrap().iter().find(|row| row["run"] == run.0).cloned().unwrap();
        (
            row["consumer"].as_str().unwrap().to_owned(),
            row["state"].as_str().unwrap().to_owned(),
            row["ended_at"].is_string(),
        )
    };
    assert_eq!(of_run(run), ("ada's orders".to_owned(), "running".to_owned(), false));
    books.report(scope, run, &[], true).await.unwrap();
    assert_eq!(of_run(run), ("ada's orders".to_owned(), "stopped".to_owned(), true));
    assert_eq!(state("ada's orders"), "no worker");
    let failed = [Fact::of(Condition::Failed).detail("the store refused")];
    for _ in 0..3 {
        let run = books.register(of).await.unwrap().run;
        books.report(scope, run, &failed, true).await.unwrap();
        assert_eq!(of_run(run).1, "the store refused");
    }
    assert_eq!(state("ada's orders"), "crash loop");
    let doctor: Value = serde_json::from_str(&idem("doctor --json").out).unwrap();
    let crash =
        doctor["findings"].as_array().unwrap().iter().find(|row| {
            row["finding"].as_str().unwrap().starts_with("ada's orders: 3 runs ended soon after their start")
        });
    assert_eq!(crash.unwrap()["level"], "error", "{doctor}");
}

pub(crate) struct Accepting(pub(crate) Arc<Mutex<Vec<String>>>);

impl<S: Store> Handler<S> for Accepting {
    async fn handle(&self, message: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        let key = message.key().map_or("", |key| key.as_str());
        if self.0.lock().unwrap().iter().any(|refused| refused == key) {
            return Err(HandlerError::permanent("there is no such customer"));
        }
        Ok(())
    }
}

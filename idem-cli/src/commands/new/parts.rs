//! The files of a new worker: templates in which words between two `@` stand for the chosen parts.

use std::path::Path;

use crate::command_line::{BrokerKind, New, StoreKind};

const MANIFEST: &str = include_str!("../../../templates/manifest.toml");
const MAIN_DYNAMODB: &str = include_str!("../../../templates/main.dynamodb.rs");
const MAIN_POSTGRES: &str = include_str!("../../../templates/main.postgres.rs");
const MAIN_SQLITE: &str = include_str!("../../../templates/main.sqlite.rs");
const TESTS_DYNAMODB: &str = include_str!("../../../templates/tests.dynamodb.rs");
const TESTS_POSTGRES: &str = include_str!("../../../templates/tests.postgres.rs");
const TESTS_SQLITE: &str = include_str!("../../../templates/tests.sqlite.rs");
const SETTINGS: &str = include_str!("../../../templates/worker.toml");
const IMAGE: &str = include_str!("../../../templates/Dockerfile");
const CI: &str = include_str!("../../../templates/ci.yaml");
const CI_DYNAMODB: &str = include_str!("../../../templates/ci.dynamodb.yaml");
const CI_POSTGRES: &str = include_str!("../../../templates/ci.postgres.yaml");
const COMPOSE_KAFKA: &str = include_str!("../../../templates/compose.kafka.yaml");
const COMPOSE_RABBITMQ: &str = include_str!("../../../templates/compose.rabbitmq.yaml");
const COMPOSE_SQS: &str = include_str!("../../../templates/compose.sqs.yaml");
const COMPOSE_DYNAMODB: &str = include_str!("../../../templates/compose.dynamodb.yaml");
const COMPOSE_POSTGRES: &str = include_str!("../../../templates/compose.postgres.yaml");
const README: &str = include_str!("../../../templates/README.md");
const GITIGNORE: &str = include_str!("../../../templates/gitignore");
const DOCKERIGNORE: &str = include_str!("../../../templates/dockerignore");
const ALERTS: &str = include_str!("../../../templates/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../templates/dashboard.json");

/// The differences between brokers.
struct Broker {
    feature: &'static str,
    /// The flags' type.
    flags: &'static str,
    name: &'static str,
    crate_name: &'static str,
    /// Debian's packages that the program needs to run.
    packages: &'static str,
    /// The requirements of the build, as a sentence.
    needs: &'static str,
    settings: &'static str,
    /// Variables on this machine, and those that differ among the containers.
    variables: &'static [(&'static str, &'static str, &'static str)],
    compose: &'static str,
    /// The service that the worker waits for in compose.
    after: &'static str,
    publish_how: &'static str,
    publish: &'static str,
}

const KAFKA: Broker = Broker {
    feature: "kafka",
    flags: "Kafka",
    name: "Kafka",
    crate_name: "idem-kafka",
    packages: "ca-certificates libssl3 zlib1g",
    needs: "It needs a C compiler, make and OpenSSL's headers (Debian: `build-essential libssl-dev`).",
    settings: "topic = \"@NAME@\"\ngroup = \"@NAME@\"\nreset = \"earliest\" # where a new group begins; without it, one is refused",
    variables: &[("KAFKA_BROKERS", "localhost:9092", "kafka:19092")],
    compose: COMPOSE_KAFKA,
    after: "      topic: { condition: service_completed_successfully }\n",
    publish_how: "Send a purchase, its record key before the bar",
    publish: r#"echo '1|{"idempotencykey":"order-1","customer":"1","cents":250}' | docker compose exec -T kafka \
    /opt/kafka/bin/kafka-console-producer.sh --bootstrap-server localhost:9092 --topic @NAME@ \
    --property parse.key=true --property key.separator='|'"#,
};

const RABBITMQ: Broker = Broker {
    feature: "amqp",
    flags: "Amqp",
    name: "RabbitMQ",
    crate_name: "idem-amqp",
    packages: "ca-certificates",
    needs: "It needs a C compiler (Debian: `build-essential`).",
    settings: "queue = \"@NAME@\"",
    variables: &[
        ("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f", "amqp://guest:guest@rabbitmq:5672/%2f"),
        ("AMQP_MANAGEMENT_URL", "http://guest:guest@localhost:15672", "http://guest:guest@rabbitmq:15672"),
    ],
    compose: COMPOSE_RABBITMQ,
    after: "      queue: { condition: service_completed_successfully }\n",
    publish_how: "Send a purchase",
    publish: r#"docker compose exec rabbitmq rabbitmqadmin publish routing_key=@NAME@ properties='{"delivery_mode": 2}' \
    payload='{"idempotencykey":"order-1","customer":"1","cents":250}'"#,
};

const SQS: Broker = Broker {
    feature: "sqs",
    flags: "Sqs",
    name: "SQS",
    crate_name: "idem-sqs",
    packages: "ca-certificates",
    needs: "It needs a C compiler (Debian: `build-essential`).",
    settings: "wait = \"5s\" # how long a receive waits for messages, and a stop for the last one",
    variables: &[
        ("SQS_QUEUE_URL", "http://localhost:9324/000000000000/@NAME@", "http://sqs:9324/000000000000/@NAME@"),
        ("AWS_ENDPOINT_URL", "http://localhost:9324", "http://sqs:9324"),
        ("AWS_REGION", "eu-central-1", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "x", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x", "x"),
    ],
    compose: COMPOSE_SQS,
    after: "      sqs: { condition: service_started }\n",
    publish_how: "Send a purchase",
    publish: r#"curl http://localhost:9324/000000000000/@NAME@ -d Action=SendMessage \
    --data-urlencode 'MessageBody={"idempotencykey":"order-1","customer":"1","cents":250}'"#,
};

const SQS_CONFIGS: &str = "
configs:
  queues:
    content: |
      include classpath(\"application.conf\")
      queues { @NAME@ { defaultVisibilityTimeout = 60 seconds } }
";

/// The differences between stores.
struct Store {
    feature: &'static str,
    name: &'static str,
    main: &'static str,
    tests: &'static str,
    compose: &'static str,
    after: &'static str,
    /// Where the data is kept.
    volume: &'static str,
    /// On this machine, as a shell takes it, and among the containers.
    url: [&'static str; 2],
    /// As those of the broker; for one that has them already, its own hold.
    variables: &'static [(&'static str, &'static str, &'static str)],
    /// The further dependency, for the statements.
    sql: &'static str,
    /// The setting that makes the handler's tables.
    tables: &'static str,
    /// The crates of idem that it takes.
    crates: &'static [&'static str],
    /// How the command's crate is built for it.
    command: &'static str,
    ci: &'static str,
}

const POSTGRES: Store = Store {
    feature: "postgres",
    name: "PostgreSQL",
    main: MAIN_POSTGRES,
    tests: TESTS_POSTGRES,
    compose: COMPOSE_POSTGRES,
    after: "      postgres: { condition: service_healthy }\n",
    volume: "",
    url: [
        "postgres://postgres:postgres@localhost:5432/postgres",
        "postgres://postgres:postgres@postgres:5432/postgres",
    ],
    variables: &[],
    sql: SQLX,
    tables: TABLES,
    crates: &["idem-sqlx"],
    command: "",
    ci: CI_POSTGRES,
};

const SQLITE: Store = Store {
    feature: "sqlite",
    name: "SQLite",
    main: MAIN_SQLITE,
    tests: TESTS_SQLITE,
    compose: "",
    after: "",
    // Only root may write to a new volume, unless it is of memory.
    volume: "    tmpfs: [\"/data:uid=65532,gid=65532\"] # gone with the container: give it a volume that the user 65532 may write\n",
    url: ["sqlite:@NAME@.db", "sqlite:/data/@NAME@.db"],
    variables: &[],
    sql: SQLX,
    tables: TABLES,
    crates: &["idem-sqlx"],
    command: "",
    ci: "",
};

const DYNAMODB: Store = Store {
    feature: "dynamodb",
    name: "DynamoDB",
    main: MAIN_DYNAMODB,
    tests: TESTS_DYNAMODB,
    compose: COMPOSE_DYNAMODB,
    after: "      dynamodb: { condition: service_started }\n",
    volume: "",
    url: ["'dynamodb:@NAME@?endpoint=http://localhost:8000'", "dynamodb:@NAME@?endpoint=http://dynamodb:8000"],
    variables: &[
        ("AWS_REGION", "eu-central-1", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "x", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x", "x"),
    ],
    sql: "",
    tables: "",
    crates: &["idem-dynamodb", "idem-redis"],
    command: ", with its feature `dynamodb`",
    ci: CI_DYNAMODB,
};

const SQLX: &str = "sqlx = { version = \"0.9\", default-features = false }\n";
const TABLES: &str = "create-tables = true # the same\n";

/// The files, by their paths in the new folder. `crates` is where idem's own are, unless they come from the registry.
pub(super) fn files(new: &New, crates: Option<&Path>) -> Vec<(&'static str, String)> {
    let broker = match new.broker {
        BrokerKind::Kafka => &KAFKA,
        BrokerKind::Rabbitmq => &RABBITMQ,
        BrokerKind::Sqs => &SQS,
    };
    let store = match new.store {
        StoreKind::Postgres => &POSTGRES,
        StoreKind::Sqlite => &SQLITE,
        StoreKind::Dynamodb => &DYNAMODB,
    };
    let patch = crates.map(|folder| patch(folder, broker, store)).unwrap_or_default();
    let local = crates.map(|_| LOCAL).unwrap_or_default();
    let filled = |template: &str| fill(template, broker, store).replace("@LOCAL@", local).replace("@NAME@", &new.name);
    vec![
        ("Cargo.toml", filled(MANIFEST) + &patch),
        ("src/main.rs", filled(store.main)),
        ("src/tests.rs", filled(store.tests)),
        ("worker.toml", filled(SETTINGS)),
        ("Dockerfile", filled(IMAGE)),
        (".dockerignore", DOCKERIGNORE.to_owned()),
        (".gitignore", GITIGNORE.to_owned()),
        ("compose.yaml", filled(&compose(broker, store))),
        (".github/workflows/ci.yaml", filled(CI)),
        ("deploy/alerts.yaml", ALERTS.to_owned()),
        ("deploy/dashboard.json", DASHBOARD.to_owned()),
        ("README.md", filled(README)),
    ]
}

const LOCAL: &str = "
idem's crates come from a folder of this machine, which the last part of `Cargo.toml` names: neither Docker nor CI has it.
Take that part out to have them from the registry.
";

fn fill(template: &str, broker: &Broker, store: &Store) -> String {
    let exported: String =
        variables(broker, store).map(|(name, here, _)| format!("export {name}={here}\n")).collect::<String>();
    let up = match services(broker, store).as_str() {
        "" => String::new(),
        services => format!("docker compose up --detach {services}\n"),
    };
    let variables = format!("{up}export DATABASE_URL={}\n{exported}", store.url[0]);
    template
        .replace("@FEATURE@", broker.feature)
        .replace("@STORE@", store.feature)
        .replace("@BROKER@", broker.flags)
        .replace("@BROKER_NAME@", broker.name)
        .replace("@STORE_NAME@", store.name)
        .replace("@PACKAGES@", broker.packages)
        .replace("@NEEDS@", broker.needs)
        .replace("@SOURCE@", broker.settings)
        .replace("@DATABASE@", store.ci)
        .replace("@SQL@", store.sql)
        .replace("@TABLES@", store.tables)
        .replace("@COMMAND@", store.command)
        .replace("@PUBLISH_HOW@", broker.publish_how)
        .replace("@PUBLISH@", broker.publish)
        .replace("@VARIABLES@", &variables)
}

/// Each once.
fn variables(
    broker: &Broker,
    store: &Store,
) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    let own = broker.variables;
    own.iter().chain(store.variables.iter().filter(|(name, ..)| own.iter().all(|(of_broker, ..)| of_broker != name)))
}

/// The services that compose starts for a worker outside it.
fn services(broker: &Broker, store: &Store) -> String {
    let named = |after: &str| after.trim_start().split(':').next().unwrap_or_default().to_owned();
    format!("{} {}", named(broker.after), named(store.after)).trim().to_owned()
}

fn compose(broker: &Broker, store: &Store) -> String {
    let variables: String =
        variables(broker, store).map(|(name, _, there)| format!("      {name}: {there}\n")).collect::<String>();
    let head = "# docker compose up --build --detach\nname: @NAME@\n\nservices:\n";
    let worker = format!(
        "  worker:\n    build: .\n    environment:\n      DATABASE_URL: {}\n{variables}      IDEM_ADMIN: 0.0.0.0:9900\n    \
         ports: [\"127.0.0.1:9900:9900\"]\n{}    restart: on-failure\n    depends_on:\n{}{}",
        store.url[1], store.volume, broker.after, store.after
    );
    let configs = if broker.feature == SQS.feature { SQS_CONFIGS } else { "" };
    format!("{head}{}{}{worker}{configs}", broker.compose, store.compose)
}

/// Has cargo take idem's crates from a folder.
fn patch(folder: &Path, broker: &Broker, store: &Store) -> String {
    let own = ["idem-core", "idem-sql", "idem-service", "idem-testkit", broker.crate_name];
    let lines = own.iter().chain(store.crates).map(|name| {
        // A basic string of TOML escapes as Rust does, where a path needs it.
        format!("{name} = {{ path = {:?} }}\n", folder.join(name).to_string_lossy())
    });
    format!("\n[patch.crates-io]\n{}", lines.collect::<String>())
}

//! The suite of every store on PostgreSQL.

use diesel::{
    sql_query,
    sql_types::{Bytea, Text},
};
use diesel_async::{RunQueryDsl as _, SimpleAsyncConnection as _};
use diesel_handler::DieselPostgres;
use idem_core::Tx;
use idem_conformance::postgres::{EFFECTS, PostgresUnderTest};
use idem_tokio_postgres::{
    PostgresStore,
    tokio_postgres::{Config, NoTls, SimpleQueryMessage, config::Host},
};

use super::Fixture;

idem_conformance::postgres_conformance!(fresh);

struct Subject {
    fixture: Fixture,
    store: DieselPostgres,
}

async fn fresh() -> Subject {
    let fixture = Fixture::new().await;
    let subject = Subject { store: fixture.store().await, fixture };
    PostgresUnderTest::run(&subject, EFFECTS).await;
    subject
}

impl PostgresUnderTest for Subject {
    type Store = DieselPostgres;
    type Error = diesel::result::Error;

    fn store(&self) -> &DieselPostgres {
        &self.store
    }

    fn another(&self, port: Option<u16>, settings: &[(&str, &str)]) -> DieselPostgres {
        let here = match port {
            Some(port) => self.fixture.url.replace(&self.server(), &format!("127.0.0.1:{port}")),
            None => self.fixture.url.clone(),
        };
        let settings: String = settings.iter().map(|(name, value)| format!("-c%20{name}%3D{value}%20")).collect();
        let url = format!("{here}?sslmode=disable&options={settings}");
        let outside = PostgresStore::with_options(url.parse().unwrap()).build().unwrap();
        DieselPostgres::new(outside, url)
    }

    fn server(&self) -> String {
        let config: Config = self.fixture.url.parse().unwrap();
        let Host::Tcp(host) = &config.get_hosts()[0] else { panic!("the tests' server is reached over TCP") };
        format!("{host}:{}", config.get_ports()[0])
    }

    async fn write(tx: &mut Tx<'_, DieselPostgres>, key: &str) -> Result<(), diesel::result::Error> {
        let insert = sql_query("INSERT INTO effects (key, payload, note) VALUES ($1, $2, '')");
        insert.bind::<Text, _>(key).bind::<Bytea, _>(Vec::new()).execute(tx.connection()).await.map(|_| ())
    }

    async fn execute(tx: &mut Tx<'_, DieselPostgres>, text: &str) -> Result<(), diesel::result::Error> {
        sql_query(text).execute(tx.connection()).await.map(|_| ())
    }

    async fn send(tx: &mut Tx<'_, DieselPostgres>, text: &str) -> Result<(), diesel::result::Error> {
        tx.connection().batch_execute(text).await
    }

    async fn run(&self, statements: &str) {
        self.fixture.connect().await.batch_execute(statements).await.unwrap();
    }

    async fn texts(&self, query: &str) -> Vec<String> {
        let (client, connection) = idem_tokio_postgres::tokio_postgres::connect(&self.fixture.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let answers = client.simple_query(query).await.unwrap();
        let text = |answer: &SimpleQueryMessage| match answer {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        };
        answers.iter().filter_map(text).collect()
    }

    async fn discard(self) {
        self.fixture.drop().await;
    }
}

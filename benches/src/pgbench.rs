//! The rate of the server itself with the same statements: pgbench, which has no client to speak of.

use std::{error::Error, process::Stdio, time::Duration};

use tokio::process::Command;

use idem_sql::{PostgresStatements, SchemaName, begin_unit};

use crate::{
    http,
    postgres::{RECORDS, Round},
    work::Work,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PgBench {
    pub(crate) clients: usize,
    pub(crate) claims: Claims,
}

/// How each transaction claims a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claims {
    /// There is not even a transaction around the handler's statement.
    Bare,
    Nothing,
    AsTheTextbook,
    /// With the statements and the round trips of a unit of one message, on tables that are there.
    AsIdem,
    /// The same with an answer, by tables that a bench of HTTP makes.
    WithAnswerByHand,
    WithAnswer,
    WithAnswerPipelined,
}

impl Claims {
    /// The statements that begin and end a transaction.
    fn around(self) -> (String, String) {
        let textbook = "INSERT INTO idem_bench.seen (consumer, message_id) VALUES ('bench', gen_random_uuid()::text) ON \
                        CONFLICT DO NOTHING;\n";
        match self {
            Self::Bare => (String::new(), String::new()),
            Self::Nothing => ("BEGIN;\n".to_owned(), "COMMIT;\n".to_owned()),
            Self::AsTheTextbook => (format!("BEGIN;\n{textbook}"), "COMMIT;\n".to_owned()),
            Self::AsIdem => {
                let seal = PostgresStatements::new(&records()).seal;
                let seal = filled(&seal, &["pg_current_xact_id()::text", "'{on,remote_apply}'"]);
                let begin = format!("{};\n{}", began(), claimed("gen_random_uuid()", "gen_random_uuid()"));
                (pipeline(&begin), pipeline(&format!("{seal};\nCOMMIT")))
            }
            Self::WithAnswerByHand => {
                let [claim, keep] = http::textbook();
                (format!("BEGIN;\n{claim};\n"), format!("{keep};\nCOMMIT;\n"))
            }
            Self::WithAnswer => {
                let (claim, seal) = (claimed(KEY_ID, KEY), sealed_with_answer());
                (format!("{}{claim};\n{SAVEPOINT};\n", pipeline(&began())), format!("{seal};\nCOMMIT;\n"))
            }
            Self::WithAnswerPipelined => {
                let begin = format!("{};\n{};\n{SAVEPOINT}", began(), claimed(KEY_ID, KEY));
                (pipeline(&begin), pipeline(&format!("{};\nCOMMIT", sealed_with_answer())))
            }
        }
    }
}

/// The key of a transaction, and its id, by a variable of the script.
pub(crate) const KEY: &str = "(:key)::text";
const KEY_ID: &str = "md5((:key)::text)::uuid";

const SAVEPOINT: &str = "SAVEPOINT idem_work";

fn records() -> SchemaName {
    RECORDS.parse().unwrap_or_default()
}

/// A statement with these values in the places of its parameters.
pub(crate) fn filled(statement: &str, values: &[&str]) -> String {
    let values = values.iter().enumerate().rev();
    values.fold(statement.to_owned(), |text, (at, value)| text.replace(&format!("${}", at + 1), value))
}

/// The begin of a unit. A pipeline is one round trip to pgbench too, though its parts are messages of their own.
fn began() -> String {
    begin_unit(None, None)
}

fn claimed(key_id: &str, key: &str) -> String {
    let hash = "decode(repeat('00', 32), 'hex')";
    let values = ["1", key_id, key, hash, "1", "604800000000", "1", "'0'", "'0'"];
    filled(&PostgresStatements::new(&records()).claim_one, &values)
}

/// In a pipeline pgbench takes nothing from an answer.
fn sealed_with_answer() -> String {
    let (headers, body) =
        (format!("'[[\"location\",\"{}\"]]'", http::LOCATION), format!("convert_to('{}', 'UTF8')", http::BODY));
    let location = format!("'{}'", http::LOCATION);
    let values = [
        "pg_current_xact_id()::text",
        "'{on,remote_apply}'",
        "1",
        KEY_ID,
        "0",
        "201",
        "'application/json'",
        &headers,
        &body,
        "NULL",
        "86400000000",
        &location,
    ];
    filled(&PostgresStatements::new(&records()).seal_result, &values)
}

fn pipeline(statements: &str) -> String {
    format!("\\startpipeline\n{statements};\n\\endpipeline\n")
}

impl PgBench {
    /// Runs pgbench for the time, in whole seconds, with prepared statements and no transaction left out.
    pub(crate) async fn round(self, work: Work, url: &str, time: Duration) -> Result<Round, Box<dyn Error>> {
        self.round_of(&work.script(), url, time).await
    }

    /// The same with these statements.
    pub(crate) async fn round_of(self, work: &str, url: &str, time: Duration) -> Result<Round, Box<dyn Error>> {
        let (begin, end) = self.claims.around();
        let variables = "\\set customer random(0, 9999)\n\\set key random(1, 1000000000000000)\n";
        let script = format!("{variables}{begin}{work}{end}");
        let file = std::env::temp_dir().join(format!("idem-pgbench-{}.sql", std::process::id()));
        std::fs::write(&file, script)?;
        let (program, seconds) = (std::env::var("IDEM_PGBENCH").unwrap_or("pgbench".to_owned()), time.as_secs().max(1));
        let mut pgbench = Command::new(program);
        pgbench.args(["--no-vacuum", "--protocol", "prepared", "--jobs", "2"]);
        pgbench.args(["--client", &self.clients.to_string(), "--time", &seconds.to_string()]);
        pgbench.arg("--file").arg(&file).arg(url).stderr(Stdio::piped()).kill_on_drop(true);
        let output = pgbench.output().await;
        std::fs::remove_file(&file)?;
        let output = output.map_err(|error| format!("pgbench, which comes with PostgreSQL's server: {error}"))?;
        if !output.status.success() {
            return Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let text = String::from_utf8(output.stdout)?;
        let done = |line: &str| line.strip_prefix("number of transactions actually processed: ")?.parse().ok();
        let rate = |line: &str| line.strip_prefix("tps = ")?.split_whitespace().next()?.parse::<f64>().ok();
        let messages: usize = text.lines().find_map(done).ok_or("pgbench names no count")?;
        let rate = text.lines().find_map(rate).ok_or("pgbench names no rate")?;
        Ok(Round { messages, took: Duration::from_secs_f64(messages as f64 / rate), effects: messages })
    }
}

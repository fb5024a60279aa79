//! The rate of the server itself with the same statements: pgbench, which has no client to speak of.

use std::{error::Error, process::Stdio, time::Duration};

use tokio::process::Command;

use idem_schema::{PostgresStatements, UnitLimits, begin_unit};

use crate::{
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
                let second = Duration::from_secs(1);
                let limits = UnitLimits { lock: 5 * second, statement: 5 * second, idle_in_transaction: 35 * second };
                // A pipeline is one round trip to pgbench too, though its parts are messages of their own.
                let begin = begin_unit(limits, None).replace("; ", ";\n");
                let sql = PostgresStatements::new(&RECORDS.parse().unwrap_or_default());
                let values = [
                    ("$1", "1"),
                    ("$2", "gen_random_uuid()"),
                    ("$3", "gen_random_uuid()"),
                    ("$4", "decode(repeat('00', 32), 'hex')"),
                    ("$5", "1"),
                    ("$6", "604800000000"),
                    ("$7", "1"),
                    ("$8", "'0'"),
                    ("$9", "'0'"),
                ];
                let claim =
                    values.iter().fold(sql.claim_one.to_string(), |text, (place, value)| text.replace(place, value));
                // In a pipeline pgbench takes nothing from an answer.
                let seal = sql.seal.replace("$1", "pg_current_xact_id()::text").replace("$2", "'{on,remote_apply}'");
                let pipeline = |statements: String| format!("\\startpipeline\n{statements};\n\\endpipeline\n");
                (pipeline(format!("{begin};\n{claim}")), pipeline(format!("{seal};\nCOMMIT")))
            }
        }
    }
}

impl PgBench {
    /// Runs pgbench for the time, in whole seconds, with prepared statements and no transaction left out.
    pub(crate) async fn round(self, work: Work, url: &str, time: Duration) -> Result<Round, Box<dyn Error>> {
        let (begin, end) = self.claims.around();
        let script = format!("\\set customer random(0, 9999)\n{begin}{}{end}", work.script());
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

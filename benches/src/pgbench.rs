//! What the server itself can do with the same statements: pgbench, which has no client to speak of.

use std::{error::Error, process::Stdio, time::Duration};

use tokio::process::Command;

use crate::{postgres::Round, work::Work};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PgBench {
    pub(crate) clients: usize,
    /// Whether each transaction also claims a key, as the textbook does.
    pub(crate) claims: bool,
}

impl PgBench {
    /// Runs pgbench for the time, in whole seconds, with prepared statements and no transaction left out.
    pub(crate) async fn round(self, work: Work, url: &str, time: Duration) -> Result<Round, Box<dyn Error>> {
        let claim = match self.claims {
            true => {
                "INSERT INTO idem_bench.seen (consumer, message_id) VALUES ('bench', gen_random_uuid()::text) ON CONFLICT DO NOTHING;\n"
            }
            false => "",
        };
        let script = format!("\\set customer random(0, 9999)\nBEGIN;\n{claim}{}COMMIT;\n", work.script());
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

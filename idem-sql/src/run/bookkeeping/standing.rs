//! The state of a consumer's runs: what each reports of itself, and what the tables know beside it.

use idem_core::{
    ConsumerName, StoreError,
    standing::{Condition, Fact, Run, Tables, from_json, inbox_facts, to_json},
    store::{RunId, ScopeId},
};

use crate::run::{
    driver::{BookkeepingDriver, row, storable},
    row::Row,
};

/// Reports the state of a run, and reads the control of its consumer.
pub(super) async fn report(
    driver: &impl BookkeepingDriver,
    scope: ScopeId,
    run: RunId,
    facts: &[Fact],
    has_ended: bool,
) -> Result<Row, StoreError> {
    let facts = storable(&to_json(facts));
    let parameters = [scope.0.into(), run.0.into(), facts.as_str().into(), has_ended.into()];
    row(driver, "reporting the state of this run", &driver.bookkeeping_statements().report, &parameters).await
}

/// What the tables know of a consumer.
pub(super) async fn tables(driver: &impl BookkeepingDriver, consumer: &ConsumerName) -> Result<Tables, StoreError> {
    let (statements, parameters) = (driver.bookkeeping_statements(), [consumer.as_str().into()]);
    let doing = "reading the state of the consumer";
    let known = row(driver, doing, &statements.standing, &parameters).await?;
    let runs = driver.rows(doing, &statements.runs, &parameters).await?;
    let runs = runs.iter().map(run).collect::<Result<_, _>>()?;
    Ok(Tables::new(known.instant("server_now")?, facts(&known)?, runs))
}

fn run(row: &Row) -> Result<Run, StoreError> {
    let process = format!("{}:{}", row.get::<&str>("host")?, row.get::<i32>("process")?);
    let run = Run::new(RunId(row.get("run")?), process, row.instant("started_at")?);
    let (seen_at, ended_at) = (row.instant("seen_at")?, row.optional_instant("ended_at")?);
    Ok(run.report(seen_at, ended_at, from_json(row.get("standing")?)))
}

fn facts(row: &Row) -> Result<Vec<Fact>, StoreError> {
    let count = |column: &str| Ok(u64::try_from(row.get::<i64>(column)?).unwrap_or(0));
    let mut facts = Vec::new();
    let control = match row.get::<&str>("state")? {
        "running" => None,
        "paused" => Some(Condition::Paused),
        _ => Some(Condition::Halted),
    };
    if let Some(control) = control {
        let why = format!("{}: {}", row.get::<&str>("by")?, row.get::<&str>("reason")?);
        facts.push(Fact::of(control).detail(why).since(row.optional_instant("controlled_at")?));
    }
    let (open, conflicts) = (count("open")?, count("conflicts")?);
    if open > 0 {
        let conflicts = if conflicts > 0 { format!("{conflicts} of a conflict") } else { String::new() };
        let fact = Fact::of(Condition::DeadLetters).count(open).detail(conflicts);
        facts.push(fact.since(row.optional_instant("oldest")?).latest(row.optional_instant("newest")?));
    }
    for (condition, name, since) in
        [(Condition::Unkeepable, "held", "held_since"), (Condition::ReplaysWait, "awaited", "awaited_since")]
    {
        let count: u64 = count(name)?;
        if count > 0 {
            facts.push(Fact::of(condition).count(count).since(row.optional_instant(since)?));
        }
    }
    facts.extend(inbox_facts(count("unheld")?, row.optional_instant("received")?));
    Ok(facts)
}

//! The conditions of consumers, in the words of the worker's page: `stuck`, `doctor` and `consumers list` print them.

use idem_core::{
    ConsumerName,
    internal::Roughly,
    standing::{Condition, Row as Known, rows},
    store::Bookkeeping,
};

use crate::{
    exit::Failure,
    report::{Row, Table},
};

/// The consumers' names.
pub(crate) const NAMES: &str = "SELECT DISTINCT name FROM {schema}.consumers ORDER BY name";

/// The state of every consumer.
pub(crate) struct Standing {
    consumers: Vec<Consumer>,
    /// The command for this schema.
    command: String,
}

struct Consumer {
    name: String,
    rows: Vec<Known>,
    /// Whether a worker of it runs; `None` where none has ever reported.
    has_worker: Option<bool>,
}

impl Standing {
    /// Reads it.
    pub(crate) async fn read(store: &impl Bookkeeping, names: &Table, schema: &str) -> Result<Self, Failure> {
        let mut consumers = Vec::new();
        for name in names.rows().iter().map(|row| row.text("name")) {
            let Ok(consumer) = ConsumerName::new(name) else { continue };
            let Some(tables) = store.standing(&consumer).await? else { continue };
            let has_worker = (!tables.runs.is_empty()).then(|| tables.has_worker());
            consumers.push(Consumer {
                rows: rows(name, tables.all(None), tables.now),
                name: name.to_owned(),
                has_worker,
            });
        }
        let is_usual = schema == idem_sql::SchemaName::DEFAULT;
        let command = if is_usual { "idem".to_owned() } else { format!("idem --schema {schema}") };
        Ok(Self { consumers, command })
    }

    fn all(&self) -> impl Iterator<Item = (&str, &Known)> {
        self.consumers.iter().flat_map(|consumer| consumer.rows.iter().map(|row| (&*consumer.name, row)))
    }

    fn fix(&self, row: &Known) -> Option<String> {
        row.fix.as_ref().map(|fix| format!("{} {fix}", self.command))
    }

    /// Whether something keeps messages from being handled.
    pub(crate) fn is_stuck(&self) -> bool {
        self.all().any(|(_, row)| !matches!(row.condition, Condition::DeadLetters | Condition::CleanupFails))
    }

    /// One row a condition.
    pub(crate) fn table(&self) -> Table {
        let row = |(consumer, row): (&str, &Known)| {
            Row::new([
                ("consumer", consumer.into()),
                ("state", row.state.into()),
                ("what", row.what.clone().into()),
                ("for", row.time.map(|time| Roughly(time).to_string()).into()),
                ("more", Some(row.more.clone()).filter(|more| !more.is_empty()).into()),
                ("fix", self.fix(row).into()),
            ])
        };
        self.all().map(row).collect()
    }

    /// The same as findings of `doctor`, which looks at the outbox by itself.
    pub(crate) fn findings(&self) -> Vec<Row> {
        let of_events = |row: &Known| {
            matches!(row.condition, Condition::EventsFailed | Condition::EventsBlocked | Condition::EventsPaused)
        };
        let finding = |(consumer, row): (&str, &Known)| {
            let cure = self.fix(row).map_or_else(
                || format!("Read docs/{}", row.docs),
                |fix| format!("Run {fix}, and read docs/{}", row.docs),
            );
            Row::new([
                // A dead letter of the last minute is nothing that a deployment should stop for.
                ("level", if row.condition == Condition::DeadLetters { "notice" } else { row.level.as_str() }.into()),
                ("finding", format!("{consumer}: {}", row.line()).into()),
                ("cure", cure.into()),
            ])
        };
        self.all().filter(|(_, row)| !of_events(row)).map(finding).collect()
    }

    /// The consumers of `idem consumers list`, each with its state in one word: that of its control, or the first condition that stops it.
    pub(crate) fn with_states(&self, consumers: Table) -> Table {
        let state = |name: &str| {
            let known = self.consumers.iter().find(|consumer| consumer.name == name)?;
            let stopped = known.rows.iter().find(|row| row.condition.stops()).map(|row| row.state);
            stopped.or((known.has_worker == Some(false)).then_some("no worker"))
        };
        let stated = |row: &Row| {
            let state = state(row.text("consumer")).filter(|_| row.text("state") == "running");
            row.members()
                .map(|(name, value)| match state {
                    Some(state) if name == "state" => (name.clone(), state.into()),
                    _ => (name.clone(), value.clone()),
                })
                .collect::<Row>()
        };
        consumers.rows().iter().map(stated).collect()
    }
}

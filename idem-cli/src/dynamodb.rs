//! The commands on a table of DynamoDB; those that make no sense there are refused by name.

mod dead_letters;
mod keys;

use std::time::SystemTime;

use idem_core::{
    ConsumerName, ErrorClass, Store as _, StoreError, store,
    store::{AuditEntry, Bookkeeping as _, ControlState, ScopeId},
};
use idem_dynamodb::{
    DynamoStore, ListedConsumer,
    aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat},
};
use idem_sql::SchemaName;
use serde_json::Value;

use crate::{
    audit,
    command_line::{
        Because, Clean, Consumers, DeadLetters, Doctor, Erase, Forget, Forgotten, Migrate, Outbox, Retention, Show,
        Target, shared::Limit,
    },
    exit::{Exit, Failure},
    operators::{Operators, unusable},
    report::{Report, Row, Table},
};

/// A table.
pub(crate) struct Dynamo<'t> {
    target: &'t Target,
    store: DynamoStore,
}

impl<'t> Dynamo<'t> {
    pub(crate) async fn open(target: &'t Target) -> Result<Self, Failure> {
        if target.schema != SchemaName::default() {
            return Err(Failure::refused(
                "--schema is for SQL databases: on DynamoDB, name another table in --database-url",
            ));
        }
        let store = DynamoStore::connect(target.database_url.as_deref().unwrap_or_default()).await;
        Ok(Self { target, store: store.map_err(|error| Failure::refused(error.to_string()))? })
    }

    /// The scopes of these consumers, of all where none is named. Refuses a consumer that was never started: with a mistyped name, every
    /// command would find nothing to do.
    async fn scopes(&self, consumer: Option<&str>) -> Result<Vec<ListedConsumer>, Failure> {
        let Some(consumer) = consumer else { return self.store.consumers().await.map_err(failed) };
        let name = ConsumerName::new(consumer).map_err(|error| Failure::refused(error.to_string()))?;
        match self.store.scopes(&name).await.map_err(failed)? {
            scopes if scopes.is_empty() => Err(Failure::refused(format!(
                "there is no consumer {consumer:?}; `idem consumers list` shows those that there are"
            ))),
            scopes => Ok(scopes),
        }
    }

    /// Writes a line of the trail, and logs it.
    async fn note(
        &self,
        of: (ScopeId, &str),
        key: Option<idem_core::IdempotencyKey>,
        action: &'static str,
        details: &str,
    ) -> Result<(), Failure> {
        self.log(of.1, key.as_ref().map(idem_core::IdempotencyKey::as_str), action, details);
        let line = AuditEntry::new(self.target.by.clone(), action, of.0, details.to_owned()).key(key);
        self.store.bookkeeping().audit(&line).await.map_err(failed)
    }

    fn log(&self, consumer: &str, key: Option<&str>, action: &str, details: &str) {
        audit::tell(audit::Line { who: &self.target.by, action, consumer, key, details });
    }

    async fn set(&self, consumer: &str, state: ControlState, reason: &str) -> Result<Report, Failure> {
        let action = if state == ControlState::Running { "resume" } else { "pause" };
        // Every tenant's scope, because a worker obeys that of its own tenant.
        for scope in self.scopes(Some(consumer)).await? {
            let set = self.store.bookkeeping().set_control(scope.scope, state, &self.target.by, reason).await;
            set.map_err(failed)?;
            self.note((scope.scope, consumer), None, action, reason).await?;
        }
        Ok(Report::said(match state {
            ControlState::Running => format!("{consumer} runs again: its workers take messages within seconds"),
            ControlState::Paused | ControlState::Halted => {
                format!("{consumer} is paused: its workers stop within seconds, until idem consumers resume {consumer}")
            }
        }))
    }

    async fn list(&self) -> Result<Report, Failure> {
        let row = |of: &ListedConsumer| {
            let some = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
            let retention = match of.retention.as_str() {
                "forever" => "without end".to_owned(),
                seconds => format!("{seconds} s"),
            };
            Row::new([
                ("consumer", of.consumer.as_str().into()),
                ("tenant", of.tenant.as_str().into()),
                ("state", of.control.state.as_str().into()),
                ("by", some(&of.control.by)),
                ("reason", some(&of.control.reason)),
                ("retention", retention.into()),
                ("bound_to", some(&of.bound_to)),
                ("handler", some(&of.handler)),
                ("first_started_at", at(of.first_started_at)),
            ])
        };
        Ok(Report::new().table("consumers", self.scopes(None).await?.iter().map(row).collect()))
    }
}

impl Operators for Dynamo<'_> {
    async fn migrate(&self, command: Migrate) -> Result<Report, Failure> {
        match command {
            Migrate::Up => {
                self.store.migrate().await.map_err(failed)?;
                Ok(Report::said(format!("the table {} is up to date", self.store.table())))
            }
            Migrate::Down(_) | Migrate::Status | Migrate::Print { .. } => Err(absent(
                "migrate",
                "there is one table, which `idem migrate up` makes: delete it with DynamoDB's own tools",
            )),
        }
    }

    async fn doctor(&self, _: &Doctor) -> Result<Report, Failure> {
        let warnings = match self.store.warnings().await {
            Ok(warnings) => warnings,
            Err(error) => return unusable(error),
        };
        let finding = |level: &str, finding: String, cure: &str| {
            Row::new([("level", level.into()), ("finding", finding.into()), ("cure", cure.into())])
        };
        let migrate = "idem migrate up sets the time to live; capacity is set with DynamoDB's own tools";
        let mut findings: Vec<_> = warnings.into_iter().map(|warning| finding("warning", warning, migrate)).collect();
        for of in self.scopes(None).await? {
            if of.control.state != ControlState::Running {
                let (state, by, why) = (of.control.state.as_str(), &of.control.by, &of.control.reason);
                let text = format!("consumer {} is {state} by {by}: {why}", of.consumer);
                findings.push(finding("warning", text, "idem consumers resume, once the reason is gone"));
            }
        }
        if findings.is_empty() {
            return Ok(Report::said("All is well."));
        }
        Ok(Report::new().table("findings", findings.into_iter().collect::<Table>()).exit(Exit::Found))
    }

    async fn consumers(&self, command: Consumers) -> Result<Report, Failure> {
        match command {
            Consumers::List => self.list().await,
            Consumers::Pause(Because { consumer, reason }) => self.set(&consumer, ControlState::Paused, &reason).await,
            Consumers::Resume { consumer } => self.set(&consumer, ControlState::Running, "").await,
            Consumers::Rename { .. } | Consumers::Prune { .. } | Consumers::Rebind { .. } => {
                Err(absent("consumers", "it lists, pauses and resumes consumers; give another consumer another name"))
            }
        }
    }

    async fn show(&self, asked: &Show) -> Result<Report, Failure> {
        keys::show(self, asked).await
    }

    async fn forget(&self, asked: &Forget) -> Result<Report, Failure> {
        keys::forget(self, asked).await
    }

    async fn erase(&self, asked: &Erase) -> Result<Report, Failure> {
        keys::erase(self, asked).await
    }

    async fn dead_letters(&self, command: DeadLetters) -> Result<Report, Failure> {
        dead_letters::run(self, command).await
    }

    async fn forgotten(&self, _: Forgotten) -> Result<Report, Failure> {
        Err(absent("forgotten", "a key that was forgotten cannot be taken back"))
    }

    async fn outbox(&self, _: Outbox) -> Result<Report, Failure> {
        Err(absent("outbox", "this store has no outbox"))
    }

    async fn cleanup(&self, _: &Clean) -> Result<Report, Failure> {
        Err(absent("cleanup", "DynamoDB removes what has expired by the table's time to live"))
    }

    async fn retention(&self, _: Retention) -> Result<Report, Failure> {
        Err(absent(
            "retention",
            "records keep the expiry that they were written with; workers give new ones their --retention",
        ))
    }

    async fn stats(&self) -> Result<Report, Failure> {
        Err(absent(
            "stats",
            "to count records is to read the whole table: DescribeTable has its size, and the metrics the rates",
        ))
    }

    async fn workers(&self, _: &Limit) -> Result<Report, Failure> {
        Err(absent("workers", "look at the workers' metrics"))
    }

    async fn stuck(&self, _: &Limit) -> Result<Report, Failure> {
        Err(absent("stuck", "`idem dead-letters list` has what has failed, and `idem show KEY` the attempts of a key"))
    }
}

fn absent(name: &str, instead: &str) -> Failure {
    Failure::refused(format!("`idem {name}` in this form is not for DynamoDB: {instead}"))
}

fn failed(error: StoreError) -> Failure {
    let exit = match error.class() {
        ErrorClass::Infrastructure | ErrorClass::RunUnitAgain => Exit::Unreachable,
        ErrorClass::Transient | ErrorClass::Permanent | ErrorClass::Fatal => Exit::Refused,
    };
    Failure::new(exit, store::describe::<DynamoStore>(&error))
}

/// A time in UTC, where there is one.
fn at(time: Option<SystemTime>) -> Value {
    let text = time.and_then(|time| DateTime::from(time).fmt(DateTimeFormat::DateTime).ok());
    text.map_or(Value::Null, Value::from)
}

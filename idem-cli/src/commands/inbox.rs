//! The findings of `idem doctor` in the inboxes, on every database.

use std::{sync::Arc, time::Duration};

use idem_core::{ConsumerName, inbox::Inbox, internal::Roughly};

use crate::{
    commands::dead_letters::thousands,
    exit::Failure,
    report::{Row, Table},
};

/// The consumers that have an inbox.
pub(crate) const CONSUMERS: &str = "\
SELECT DISTINCT c.name FROM {schema}.consumers AS c JOIN {schema}.inbox_slots AS s ON s.consumer = c.id ORDER BY c.name";

/// A message that waits for longer is late.
const LATE: Duration = Duration::from_secs(300);

/// Up to how many rows are counted.
const COUNTED_MAX: u64 = 1_000_000;

/// One row a finding, as those of the database. `consumers` has their `name`.
pub(crate) async fn findings(inbox: &Arc<dyn Inbox>, consumers: &Table) -> Result<Vec<Row>, Failure> {
    let mut findings = Vec::new();
    for consumer in consumers.rows() {
        let name = consumer.text("name");
        let Ok(known) = ConsumerName::new(name) else { continue };
        let Some(open) = inbox.find(&known).await? else { continue };
        let backlog = inbox.backlog(open.id, &[], COUNTED_MAX).await?;
        if backlog.rows == 0 {
            continue;
        }
        let waiting = thousands(i64::try_from(backlog.rows).unwrap_or(i64::MAX));
        if backlog.free_slots > 0 {
            let finding = format!(
                "of the {} slots of the inbox of {name} no worker holds {}, and messages wait in it ({waiting} in all)",
                open.slots, backlog.free_slots
            );
            let cure = format!("Start a worker of {name} with --inbox, or with --inbox process");
            findings.push(warning(finding, cure));
        }
        if let Some(oldest) = backlog.oldest.filter(|oldest| *oldest > LATE) {
            let finding =
                format!("the oldest of {waiting} messages in the inbox of {name} waits for {}", Roughly(oldest));
            let cure = format!(
                "Start more workers of {name}, up to one a slot ({}); `idem stuck` and `idem consumers list` show what holds them up",
                open.slots
            );
            findings.push(warning(finding, cure));
        }
    }
    Ok(findings)
}

fn warning(finding: String, cure: String) -> Row {
    Row::new([("level", "warning".into()), ("finding", finding.into()), ("cure", cure.into())])
}

//! `idem retention set` on a file.

use super::file::{Bind, File};
use crate::{command_line::Retention, commands::retention, confirm::confirm, exit::Failure, report::Report};

/// Rounded as the claim rounds it, so that a record is kept as long as one that is made anew. Parameters: 1 consumer, 2
/// seconds, 3 who.
const SET: [&str; 3] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, details)
SELECT {now}, ?3, 'retention', id, ?2 || ' s for records that are there' FROM "{schema}_consumers" WHERE name = ?1"#,
    r#"UPDATE "{schema}_consumers" SET retention = ?2 * 1000000 WHERE name = ?1"#,
    r#"UPDATE "{schema}_processed_messages" SET expires_at = (processed_at + ?2 * 1000000 + 59999999) / 60000000 * 60000000
WHERE consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1)"#,
];

pub(super) async fn run(mut file: File, command: Retention) -> Result<Report, Failure> {
    let Retention::Set { consumer, time, existing: _, yes } = command;
    file.known(&consumer).await?;
    let seconds = retention::seconds(time)?;
    let counted = r#"SELECT count(*) FROM "{schema}_processed_messages" AS p
        JOIN "{schema}_consumers" AS c ON c.id = p.consumer WHERE c.name = ?1"#;
    let count = file.number(counted, &[consumer.as_str().into()]).await?;
    confirm(&retention::warning(count, &consumer), yes.yes)?;
    let by = file.by.clone();
    let binds: [Bind<'_>; 3] = [consumer.as_str().into(), seconds.into(), by.as_str().into()];
    let [_, _, rewritten] = file.act(SET, &binds).await?;
    Ok(retention::rewritten(rewritten))
}

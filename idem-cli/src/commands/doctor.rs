//! `idem doctor`.

use idem_core::{Bookkeeping as _, StoreError};

use crate::{
    command_line::Target,
    database::{self, Database},
    exit::{Exit, Failure},
    report::{Report, Row, Table},
};

const FINDINGS: &str = include_str!("doctor.sql");

pub(crate) async fn run(target: &Target) -> Result<Report, Failure> {
    let mut database = Database::open(target).await?;
    // What would keep a worker from starting: server, schema, rights of this login.
    let verified = database::store(target)?.verify().await;
    let findings: Table = match verified {
        Ok(()) => database.table(FINDINGS, &[]).await?,
        Err(StoreError::Schema { problem, cure } | StoreError::Refused { problem, cure }) => {
            let finding = [("level", "error".into()), ("finding", problem.into()), ("cure", cure.into())];
            std::iter::once(Row::new(finding)).collect()
        }
        Err(error) => return Err(error.into()),
    };
    if findings.is_empty() {
        return Ok(Report::new().table("findings", findings).line("All is well."));
    }
    // A notice is nothing that a script should stop for.
    let is_grave = findings.rows().iter().any(|row| row.text("level") != "notice");
    let exit = if is_grave { Exit::Found } else { Exit::Done };
    Ok(Report::new().table("findings", findings).exit(exit))
}

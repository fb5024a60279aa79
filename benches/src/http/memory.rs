//! The server's resident memory at full load.

use std::time::Duration;

use super::{
    Failed, Way,
    by_hand::Driver,
    connected,
    load::{self, Sent},
};
use crate::{
    postgres::remove,
    report::{Line, Table},
};

/// The line that a target is about.
pub(crate) const GROWN: &str = "the last tenth, over the first";

/// At each tenth of so many minutes.
pub(crate) async fn watched(url: &str, minutes: usize) -> Result<Table, Failed> {
    let mut connection = connected(url).await?;
    let server = Way::Idem.start(Driver::Sqlx, url, &mut connection).await?;
    let begun = server.resident_mib()?;
    let (mut tenths, mut requests) = (Vec::new(), 0);
    for _ in 0..10 {
        let tenth = Duration::from_secs(6 * u64::try_from(minutes)?);
        requests += load::run(server.port, Sent::First, &load::prefix(), tenth).await?.requests;
        tenths.push(server.resident_mib()? as f64);
    }
    server.stop().await?;
    remove(&mut connection).await?;
    let title = format!("HTTP on sqlx, {minutes} minutes of first runs at full load");
    println!("\n{title}");
    println!("  MiB at each tenth: {tenths:.0?}, {begun} before the first request; {requests} requests");
    let grown = tenths.last().zip(tenths.first()).map(|(last, first)| last / first);
    let lines = vec![
        Line { name: "resident memory at each tenth".to_owned(), rounds: tenths },
        Line { name: GROWN.to_owned(), rounds: grown.into_iter().collect() },
    ];
    Ok(Table { id: "http-memory".to_owned(), title, unit: "MiB".to_owned(), lines })
}

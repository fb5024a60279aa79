//! The facts that `idem show` has about a request over HTTP beyond those of every key.

use serde_json::Value;

use crate::{
    command_line::Named,
    database::{Bind, Database},
    exit::Failure,
    report::{Row, Table},
};

/// The answers without their content, which is shown only on request and noted in the trail. Parameters: 1 key, 2 consumer or
/// NULL.
const ANSWERS: &str = "\
SELECT c.name AS consumer, c.tenant, r.kind & 1::smallint = 1 AS refused, r.kind & 6::smallint <> 0 AS gone, r.status, r.reference,
    r.answer_until
FROM {schema}.processed_results AS r JOIN {schema}.consumers AS c ON c.id = r.consumer
WHERE r.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE $2::text IS NULL OR name = $2::text))
    AND r.key_id = {schema}.key_id($1::text)
ORDER BY c.name, c.tenant";

/// The events that were committed with the record and wait. They have its transaction's time, so that no event of another tenant with
/// the same key is among them, and the headers of few others are looked into. Parameters as above, and 3 the client's own key.
const EVENTS: &str = "\
SELECT o.number AS event, d.name AS destination, o.event_key AS key, o.event_type AS type,
    (ARRAY['pending', 'waiting', 'failed', 'behind'])[o.state + 1] AS state, o.attempts, o.created_at, o.error
FROM {schema}.processed_messages AS p
JOIN {schema}.outbox AS o ON o.consumer = p.consumer AND o.created_at = p.processed_at
JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
WHERE p.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE $2::text IS NULL OR name = $2::text))
    AND p.key_id = {schema}.key_id($1::text)
    AND EXISTS (SELECT FROM pg_catalog.json_array_elements(o.headers) AS pair
        WHERE pg_catalog.json_array_element_text(pair, 0) = 'idemcausedby' AND pg_catalog.json_array_element_text(pair, 1) = $3::text)
ORDER BY o.number LIMIT 100";

/// Where events are once they were sent.
pub(crate) const SENT: &str =
    "Events that were sent are in the outbox no more; their receivers find the client's key in the header idemcause.";

/// The facts known of a request.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) named: Named,
    pub(crate) recorded: String,
    /// Without their content.
    pub(crate) answers: Table,
    pub(crate) events: Table,
}

/// Asks the database.
pub(crate) async fn find(
    database: &mut Database,
    named: Named,
    recorded: &str,
    binds: &[Bind<'_>],
) -> Result<Found, Failure> {
    let answers = database.table(ANSWERS, binds).await?;
    let of_events: Vec<_> = binds.iter().copied().chain([Bind::Text(&named.key)]).collect();
    let events = database.table(EVENTS, &of_events).await?;
    Ok(Found { named, recorded: recorded.to_owned(), answers, events })
}

/// Whether a column of either database is true.
fn is(row: &Row, name: &str) -> bool {
    row.get(name).as_bool().unwrap_or_else(|| row.number(name) != 0)
}

impl Found {
    /// A row for each record, or one for a request that has none.
    pub(crate) fn requests(&self, records: &Table, runs: Option<bool>) -> Table {
        match records.rows() {
            [] => {
                let state = if runs == Some(true) { "in_progress" } else { "unknown" };
                std::iter::once(self.request(state, &Row::default(), &Row::default())).collect()
            }
            rows => rows.iter().map(|record| self.of_record(record)).collect(),
        }
    }

    fn of_record(&self, record: &Row) -> Row {
        let same = |answer: &&Row| ["consumer", "tenant"].iter().all(|name| answer.get(name) == record.get(name));
        match self.answers.rows().iter().find(same) {
            None => self.request("answer_not_kept", record, &Row::default()),
            Some(answer) if is(answer, "gone") => self.request("answer_not_kept", record, answer),
            Some(answer) if is(answer, "refused") => self.request("failed", record, answer),
            Some(answer) => self.request("completed", record, answer),
        }
    }

    /// The words of the state are those that the service answers with when it is asked about the key.
    fn request(&self, state: &str, record: &Row, answer: &Row) -> Row {
        let Named { tenant, route, key } = &self.named;
        // An answer that has no time of its own goes with its record.
        let answer_until = match (answer.get("answer_until"), state) {
            (Value::Null, "completed" | "failed") => record.get("expires_at"),
            (until, _) => until,
        };
        Row::new([
            ("tenant", tenant.as_str().into()),
            ("route", route.as_str().into()),
            ("key", key.as_str().into()),
            ("recorded_as", self.recorded.as_str().into()),
            ("consumer", record.get("consumer").clone()),
            ("state", state.into()),
            ("status", answer.get("status").clone()),
            ("location", answer.get("reference").clone()),
            ("processed_at", record.get("processed_at").clone()),
            ("expires_at", record.get("expires_at").clone()),
            ("answer_until", answer_until.clone()),
        ])
    }
}

/// The outcome of the request if it comes again now.
pub(crate) fn repeat(requests: &Table) -> String {
    let told = |row: &Row| {
        match row.text("state") {
            "completed" | "failed" => "gets the first answer again",
            "answer_not_kept" => "gets 409 answer-not-kept, and never runs",
            "in_progress" => "waits for the one that runs, or gets 409",
            _ => "runs: there is no record of this key",
        }
        .to_owned()
    };
    let said: Vec<String> = requests
        .rows()
        .iter()
        .map(|row| match row.text("consumer") {
            "" => told(row),
            consumer => format!("{} at {consumer}", told(row)),
        })
        .collect();
    format!("The same request {}; another one under the key is refused once there is a record.", said.join(", and "))
}

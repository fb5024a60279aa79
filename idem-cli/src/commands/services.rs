//! The findings of `idem doctor` about services over HTTP, on every database.

use std::time::Duration;

use idem_core::internal::Exactly;

use crate::{
    command_line::Doctor,
    report::{Row, Table},
};

/// The facts of each service, and of each other consumer that has sealed answers. Those answers are looked at that end first and
/// last, so that no table is read as a whole; one that goes with its record ends with it.
pub(crate) const FACTS: &str = "\
WITH timed AS (
    (SELECT r.consumer, r.key_id FROM {schema}.processed_results AS r
    WHERE r.answer_until > pg_catalog.now() ORDER BY r.answer_until LIMIT 10000)
    UNION (SELECT r.consumer, r.key_id FROM {schema}.processed_results AS r
    WHERE r.answer_until IS NOT NULL ORDER BY r.answer_until DESC LIMIT 10000)
    UNION (SELECT p.consumer, p.key_id FROM {schema}.processed_messages AS p
    WHERE p.expires_at > pg_catalog.now() ORDER BY p.expires_at LIMIT 10000)
    UNION (SELECT p.consumer, p.key_id FROM {schema}.processed_messages AS p ORDER BY p.expires_at DESC LIMIT 10000)
), answers AS (
    SELECT r.consumer, pg_catalog.count(*) FILTER (WHERE r.answer_until > p.expires_at) AS outliving,
        pg_catalog.max(r.stored_at) FILTER (WHERE r.sealed_with IS NULL)
            > pg_catalog.min(r.stored_at) FILTER (WHERE r.sealed_with IS NOT NULL) AS unsealed,
        pg_catalog.string_agg(DISTINCT r.sealed_with::text, ',') AS sealed_with
    FROM timed AS t JOIN {schema}.processed_results AS r ON r.consumer = t.consumer AND r.key_id = t.key_id
    JOIN {schema}.processed_messages AS p ON p.consumer = r.consumer AND p.key_id = r.key_id
    WHERE r.kind & 6::smallint = 0 GROUP BY r.consumer
), expired AS (
    SELECT p.consumer, p.processed_at FROM {schema}.processed_messages AS p
    WHERE p.expires_at < pg_catalog.now() ORDER BY p.expires_at LIMIT 10000
)
SELECT c.name AS service, c.handler = 'http' AS serves, extract(epoch FROM c.retention)::int8 AS keys_for,
    coalesce(a.outliving, 0) AS outliving, coalesce(a.unsealed, false) AS unsealed, a.sealed_with,
    (SELECT extract(epoch FROM pg_catalog.now() - pg_catalog.min(e.processed_at))::int8 FROM expired AS e WHERE e.consumer = c.id)
        AS oldest
FROM {schema}.consumers AS c LEFT JOIN answers AS a ON a.consumer = c.id
WHERE c.handler = 'http' OR a.sealed_with IS NOT NULL ORDER BY c.name";

/// The findings, as rows of those of the database.
pub(crate) fn findings(facts: &Table, doctor: &Doctor) -> Vec<Row> {
    facts.rows().iter().flat_map(|service| of(service, doctor)).collect()
}

/// The facts to know about each service, whether or not it has a problem; none where there is no service.
pub(crate) fn services(facts: &Table) -> Table {
    let told = |service: &Row| {
        let keys_for = match service.get("keys_for").as_i64() {
            Some(seconds) => span(seconds).to_string().into(),
            None => "for ever".into(),
        };
        Row::new([
            ("service", service.get("service").clone()),
            ("keys_for", keys_for),
            ("answers_sealed_with", service.get("sealed_with").clone()),
        ])
    };
    facts.rows().iter().filter(|consumer| is_true(consumer, "serves")).map(told).collect()
}

/// SQLite's truth is a number.
fn is_true(row: &Row, column: &str) -> bool {
    row.get(column).as_bool() == Some(true) || row.number(column) != 0
}

fn of(service: &Row, doctor: &Doctor) -> Vec<Row> {
    let name = service.text("service");
    let mut findings = if is_true(service, "serves") { of_requests(service, doctor) } else { Vec::new() };
    let outliving = service.number("outliving");
    if outliving > 0 {
        findings.push(finding(
            "warning",
            format!(
                "{outliving} answers of {name} were to be kept for longer than the records of their keys, and go with them"
            ),
            "Give it an --answers-for that is no longer than its keys are known; those that are there are no worse \
             than that"
                .to_owned(),
        ));
    }
    if is_true(service, "unsealed") {
        findings.push(finding(
            "warning",
            format!("{name} has stored answers unsealed after sealed ones: one of its processes lacks the sealing key"),
            "Give all its processes the same keys, and start again the one that lacks them".to_owned(),
        ));
    }
    let used = service.text("sealed_with").split(',').filter(|number| !number.is_empty());
    let missing: Vec<&str> =
        used.filter(|number| !doctor.sealing_key.iter().any(|key| key.to_string() == **number)).collect();
    if !doctor.sealing_key.is_empty() && !missing.is_empty() {
        findings.push(finding(
            "error",
            format!(
                "answers of {name} are sealed with key {}, which is not among those given: no repeat gets them",
                missing.join(" and ")
            ),
            "Give it that key too, behind the one for new answers, until they are gone".to_owned(),
        ));
    }
    findings
}

/// The findings about when a service's requests come and are to be gone.
fn of_requests(service: &Row, doctor: &Doctor) -> Vec<Row> {
    let name = service.text("service");
    let mut findings = Vec::new();
    let keys_for = service.get("keys_for").as_i64();
    if let (Some(keys_for), Some(window)) = (keys_for, doctor.client_window.map(seconds))
        && keys_for < window
    {
        findings.push(finding(
            "error",
            format!(
                "{name} knows keys for {}, and its clients may send a request again for {}: a late one takes effect a second \
                 time",
                span(keys_for),
                span(window)
            ),
            format!("Give the service --keys-for of more than that, and run idem retention set {name} TIME --existing"),
        ));
    }
    if let (Some(oldest), Some(gone)) = (service.get("oldest").as_i64(), doctor.gone_within.map(seconds))
        && oldest > gone
    {
        findings.push(finding(
            "error",
            format!(
                "a record of {name} has expired, is {oldest}s old and still there; records are to be gone within {}: cleanup does not \
                 keep up",
                span(gone)
            ),
            "Run idem cleanup, and have a process do it at least every 30 minutes: --cleanup-every of the service, or a timer of its \
             own"
                .to_owned(),
        ));
    }
    findings
}

fn finding(level: &str, finding: String, cure: String) -> Row {
    Row::new([("level", level.into()), ("finding", finding.into()), ("cure", cure.into())])
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

fn span(seconds: i64) -> Exactly {
    Exactly(Duration::from_secs(seconds.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(facts: Value, client_window: Option<u64>, sealing_key: &[u16]) -> Vec<String> {
        let row: Row = serde_json::from_value(facts).unwrap();
        let doctor = Doctor {
            broker_horizon: None,
            client_window: client_window.map(Duration::from_secs),
            gone_within: Some(Duration::from_secs(86_400)),
            sealing_key: sealing_key.to_vec(),
            format: crate::command_line::Format::Text,
        };
        let findings = findings(&std::iter::once(row).collect(), &doctor);
        findings.iter().map(|row| format!("{}: {}", row.text("level"), row.text("finding"))).collect()
    }

    #[test]
    fn w79_a_service_that_keeps_what_it_promises_is_no_finding() {
        let well = json!({"service": "payments", "serves": true, "keys_for": 86_400, "outliving": 0, "unsealed": false, "sealed_with": "1"});
        assert!(told(well.clone(), Some(86_400), &[1]).is_empty());
        let in_time = json!({"service": "payments", "serves": true, "keys_for": 82_800, "outliving": 0, "unsealed": 0, "sealed_with": null, "oldest": 86_400});
        assert!(told(in_time, None, &[]).is_empty(), "a day to the second");
        assert!(told(well, None, &[]).is_empty(), "nothing is compared with what was not said");
        let for_ever = json!({"service": "payments", "serves": true, "keys_for": null, "outliving": 0, "unsealed": 0, "sealed_with": null});
        assert!(told(for_ever, Some(1 << 40), &[1]).is_empty());
    }

    #[test]
    fn w79_what_a_service_does_not_keep_is_told() {
        let facts = json!({"service": "payments", "serves": true, "keys_for": 3_600, "outliving": 3, "unsealed": 1, "sealed_with": "1,2", "oldest": 86_401});
        assert_eq!(
            told(facts, Some(86_400), &[1]),
            [
                "error: payments knows keys for 1h, and its clients may send a request again for 1d: a late one takes effect \
                 a second time",
                "error: a record of payments has expired, is 86401s old and still there; records are to be gone within 1d: cleanup \
                 does not keep up",
                "warning: 3 answers of payments were to be kept for longer than the records of their keys, and go with them",
                "warning: payments has stored answers unsealed after sealed ones: one of its processes lacks the sealing key",
                "error: answers of payments are sealed with key 2, which is not among those given: no repeat gets them",
            ]
        );
    }
}

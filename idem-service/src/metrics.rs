//! `/metrics`: what the worker counts, in Prometheus' text format.

use std::fmt::Write as _;

use idem_core::Summary;

use crate::status::Status;

/// The format's media type.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All samples.
pub(crate) fn text(status: &Status) -> String {
    let consumer = label(&status.consumer);
    let mut text = String::new();
    for (name, value, help) in counters(&status.summary()) {
        sample(&mut text, "counter", name, &consumer, value, help);
    }
    let readiness = status.readiness();
    let is = |yes| u64::from(yes);
    for (name, value, help) in [
        ("idem_ready", is(readiness.ready), "Whether the worker has joined and takes part."),
        ("idem_paused", is(readiness.is_paused()), "Whether intake waits; /readyz says why."),
    ] {
        sample(&mut text, "gauge", name, &consumer, value, help);
    }
    if let Some(cleanup) = status.cleanup() {
        let lag = cleanup.backlog.map_or(0, |backlog| backlog.lag.as_secs());
        let records = cleanup.backlog.and_then(|backlog| backlog.records).unwrap_or(0);
        for (name, value, help) in [
            ("idem_cleanup_lag_seconds", lag, "For how long the oldest expired record waits for cleanup."),
            ("idem_cleanup_failed_cycles", cleanup.failed_cycles.into(), "Failed cycles in a row; ten are an alarm."),
            ("idem_records", records, "Records there are, by the database's estimate; 0 where it has none."),
        ] {
            sample(&mut text, "gauge", name, &consumer, value, help);
        }
    }
    text
}

fn counters(summary: &Summary) -> [(&'static str, u64, &'static str); 14] {
    let Summary { processed, duplicates, conflicts, dead_lettered, retries, busy, unknown_resolved, .. } = *summary;
    let Summary { unprotected, older_than_retention, released, stale_settlements, replayed, cleaned, .. } = *summary;
    [
        ("idem_processed_total", processed, "Messages whose effects were committed."),
        ("idem_duplicates_total", duplicates, "Duplicates that were skipped."),
        ("consumer_duplicate_skipped_total", duplicates, "The same as idem_duplicates_total."),
        ("idem_conflicts_total", conflicts, "Messages whose key was used before for another payload."),
        ("idem_dead_lettered_total", dead_lettered, "Messages that were set aside."),
        ("idem_retries_total", retries, "Attempts that failed and were followed by a back-off."),
        ("idem_busy_total", busy, "Deliveries that waited because somebody else held their key."),
        ("idem_unknown_resolved_total", unknown_resolved, "Messages whose commit's answer was lost and then found."),
        ("idem_unprotected_total", unprotected, "Messages handled without a record, because their type opted out."),
        (
            "idem_older_than_retention_total",
            older_than_retention,
            "Messages handled although older than the retention.",
        ),
        ("idem_released_total", released, "Deliveries given back to the broker."),
        ("idem_stale_settlements_total", stale_settlements, "Settlements that came too late for their assignment."),
        ("idem_replayed_total", replayed, "Dead letters that were handled again."),
        ("idem_cleaned_total", cleaned, "Rows that cleanup removed."),
    ]
}

fn sample(text: &mut String, kind: &str, name: &str, consumer: &str, value: u64, help: &str) {
    // Writing to a String cannot fail.
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{consumer=\"{consumer}\"}} {value}\n");
}

/// A label's value, escaped as the format asks.
fn label(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

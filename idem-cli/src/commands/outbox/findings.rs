//! The findings of `idem doctor` in an outbox, on every database.

use std::time::Duration;

use idem_core::outbox::OutboxBacklog;

use super::list::{number, span};
use crate::report::{Row, Table};

/// An event that may go and is older has been waiting: a relay looks every second.
const LATE: Duration = Duration::from_secs(60);

/// One row a finding, as those of the database. `readers` has `name`, `bound_to` and `retention` in microseconds of consumers,
/// `shared_keys` the `destination`, `writers` and count of `keys` under which several writers send.
pub(crate) fn findings(backlog: &[OutboxBacklog], readers: &Table, shared_keys: &Table) -> Vec<Row> {
    let forgetful = readers.rows().iter().flat_map(|reader| backlog.iter().filter_map(|one| forgets(reader, one)));
    let shared = readers.rows().iter().enumerate().filter_map(|(place, reader)| {
        let other = readers.rows()[..place].iter().find(|other| other.text("bound_to") == reader.text("bound_to"))?;
        Some(share(other, reader))
    });
    backlog.iter().flat_map(of).chain(forgetful).chain(shared_keys.rows().iter().map(collide)).chain(shared).collect()
}

fn finding(level: &str, finding: String, cure: String) -> Row {
    Row::new([("level", level.into()), ("finding", finding.into()), ("cure", cure.into())])
}

/// O52: a reader of events that forgets their keys while copies may still come.
fn forgets(reader: &Row, backlog: &OutboxBacklog) -> Option<Row> {
    let OutboxBacklog { destination, receiver_keeps, .. } = backlog;
    let retention = Duration::from_micros(reader.get("retention").as_u64()?);
    if retention >= *receiver_keeps || !reads(reader.text("bound_to"), destination) {
        return None;
    }
    let (name, keeps) = (reader.text("name"), span(*receiver_keeps));
    let text = format!(
        "{name} keeps its records for {}, and reads {destination}, whose events may come again for {keeps}: a late copy takes effect a \
         second time",
        span(retention)
    );
    let cure = format!(
        "Give the workers of {name} a --retention of {keeps} at least and run idem retention set {name} TIME --existing, or the relay a \
         --receiver-keeps that {name} reaches"
    );
    Some(finding("error", text, cure))
}

/// O78: two consumers of one source, of which each handles what the other has handled.
fn share(one: &Row, other: &Row) -> Row {
    let (one, other, bound_to) = (one.text("name"), other.text("name"), one.text("bound_to"));
    let text = format!("{one} and {other} are both bound to {bound_to}: what one has handled is new to the other");
    let cure = format!(
        "If one was the other's name when a backup was made that was restored since, stop its workers and see \"After a restore from a \
         backup\" in the guide; if one was given up, idem consumers rebind {one} or {other} takes the binding from it"
    );
    finding("warning", text, cure)
}

/// Whether a consumer that is bound to this reads the queue or topic that a relay knows by this name.
fn reads(bound_to: &str, destination: &str) -> bool {
    let Some((broker, place)) = bound_to.split_once(':') else { return false };
    match broker {
        "kafka" => place.split('/').nth(1) == Some(destination),
        "rabbitmq" => place.strip_suffix(destination).is_some_and(|vhost| vhost.ends_with('/')),
        // An ARN ends with account and queue, and the queue's URL too.
        "sqs" => {
            let mut of_arn = place.rsplit(':');
            let mut of_url = destination.rsplit('/');
            of_url.next() == of_arn.next() && of_url.next() == of_arn.next()
        }
        _ => false,
    }
}

/// O53: receivers know an event by its key alone, so they take the second writer's for a copy of the first one's.
fn collide(shared: &Row) -> Row {
    let (destination, writers, keys) = (shared.text("destination"), shared.text("writers"), shared.number("keys"));
    let text = format!(
        "{writers} send events under the same keys to {destination}, {} of those that wait: its receivers take the second one for a copy",
        number(keys)
    );
    let cure = "Leave .same_key() to one of them, or give each a destination of its own".to_owned();
    finding("warning", text, cure)
}

fn of(backlog: &OutboxBacklog) -> Vec<Row> {
    let OutboxBacklog { destination, pending, waiting, failed, behind, oldest, first_sent_ago, .. } = backlog;
    let OutboxBacklog { relayed_by, is_paused, receiver_keeps, .. } = backlog;
    let mut findings = Vec::new();
    let (may_go, all) = (pending + waiting, pending + waiting + failed + behind);
    if *is_paused {
        let cure = format!("Run idem outbox resume {destination} once the reason is gone");
        findings.push(finding("notice", format!("{destination} is paused, and {} events wait", number(all)), cure));
    } else if relayed_by.is_none() && all > 0 {
        let cure = "Start a worker that relays there (--relay off switches it off), or idem outbox relay; events for a \
                    destination that was given up are removed with idem outbox skip";
        findings.push(finding(
            "warning",
            format!("nobody relays {destination}, and {} events wait", number(all)),
            cure.to_owned(),
        ));
    } else if let (Some(age), Some(relay)) = (oldest.filter(|age| *age > LATE), relayed_by) {
        let cure = format!(
            "Look at the log or the page of the relay {relay}, which says why {destination} does not take them"
        );
        findings.push(finding("warning", format!("the oldest event for {destination} is {} old", span(age)), cure));
    }
    // Half of the time for which its receivers know a copy, by default longer than a webhook is tried: an operator who looks now can
    // still deliver it meanwhile.
    if let Some(ago) = first_sent_ago.filter(|ago| *ago > *receiver_keeps / 2) {
        let cure = format!(
            "Have it sent or skip it while its receivers would still know a copy: for {}, as the relay's --receiver-keeps says. After \
             that, less an hour, it is stale and waits for idem outbox retry --stale; idem outbox list --destination {destination} \
             shows it",
            span(*receiver_keeps)
        );
        let text =
            format!("a copy of an event that waits for {destination} may first have been sent {} ago", span(ago));
        findings.push(finding("warning", text, cure));
    }
    if *failed > 0 {
        let cure = format!(
            "idem outbox list --destination {destination} --state failed says why; then idem outbox retry or skip"
        );
        let text = format!(
            "{} events for {destination} have failed, and {} wait behind them",
            number(*failed),
            number(*behind)
        );
        findings.push(finding("warning", text, cure));
    } else if may_go == 0 && *behind > 0 {
        let cure = format!(
            "The event before them was removed by hand, or lost with a server: idem outbox list --destination {destination} \
             --state behind shows them. idem outbox skip of the first of an ordering key lets its others go; send that one by hand"
        );
        let text = format!("{} events for {destination} wait behind one that is gone", number(*behind));
        findings.push(finding("warning", text, cure));
    }
    findings
}

#[cfg(test)]
mod tests {
    use idem_core::outbox::{DestinationId, RECEIVER_KEEPS};

    use super::*;

    fn told(change: impl FnOnce(&mut OutboxBacklog)) -> Vec<String> {
        let mut backlog = OutboxBacklog::new("payments".to_owned(), DestinationId(1));
        backlog.relayed_by = Some("host:1".to_owned());
        change(&mut backlog);
        let none = Table::default();
        findings(&[backlog], &none, &none)
            .iter()
            .map(|row| format!("{}: {}", row.text("level"), row.text("finding")))
            .collect()
    }

    #[test]
    fn an_outbox_that_is_emptied_is_no_finding() {
        assert_eq!(told(|backlog| (backlog.pending, backlog.oldest) = (3, Some(LATE))), Vec::<String>::new());
        assert_eq!(told(|backlog| backlog.relayed_by = None), Vec::<String>::new(), "nothing waits");
        assert_eq!(told(|backlog| backlog.first_sent_ago = Some(RECEIVER_KEEPS / 2)), Vec::<String>::new());
    }

    #[test]
    fn what_waits_in_vain_is_told_with_its_cause() {
        let late = told(|backlog| (backlog.pending, backlog.oldest) = (3, Some(LATE + Duration::from_secs(1))));
        assert_eq!(late, ["warning: the oldest event for payments is 61 s old"]);
        let unrelayed = told(|backlog| (backlog.pending, backlog.relayed_by) = (3_011, None));
        assert_eq!(unrelayed, ["warning: nobody relays payments, and 3,011 events wait"]);
        let paused = told(|backlog| (backlog.pending, backlog.is_paused, backlog.relayed_by) = (2, true, None));
        assert_eq!(paused, ["notice: payments is paused, and 2 events wait"]);
        let unrelayed = told(|backlog| (backlog.failed, backlog.behind, backlog.relayed_by) = (1, 2, None));
        assert_eq!(
            unrelayed[0], "warning: nobody relays payments, and 3 events wait",
            "for a person, and behind that one"
        );
        let failed = told(|backlog| (backlog.failed, backlog.behind) = (1, 7));
        assert_eq!(failed, ["warning: 1 events for payments have failed, and 7 wait behind them"]);
        // O68: nothing lets them go any more.
        let stranded = told(|backlog| backlog.behind = 7);
        assert_eq!(stranded, ["warning: 7 events for payments wait behind one that is gone"]);
        let retried = told(|backlog| (backlog.waiting, backlog.behind) = (1, 7));
        assert_eq!(retried, Vec::<String>::new(), "it is tried again");
        // O25: an event is safe to be sent again only while its receivers know the first copy.
        let old = told(|backlog| backlog.first_sent_ago = Some(Duration::from_secs(5 * 86_400)));
        assert_eq!(old, ["warning: a copy of an event that waits for payments may first have been sent 5 days ago"]);
        // O51: by the relay's own setting.
        let days = |days: u64| Duration::from_secs(days * 86_400);
        let kept = told(|backlog| (backlog.first_sent_ago, backlog.receiver_keeps) = (Some(days(5)), days(14)));
        assert_eq!(kept, Vec::<String>::new());
    }

    #[test]
    fn o78_two_readers_of_one_source_are_a_finding() {
        let reader = |(name, bound_to): (&str, &str)| Row::new([("name", name.into()), ("bound_to", bound_to.into())]);
        let readers = [
            ("ledger", "rabbitmq:live/orders"),
            ("mails", "rabbitmq:live/mails"),
            ("payments", "rabbitmq:live/orders"),
        ];
        let found = findings(&[], &readers.map(reader).into_iter().collect(), &Table::default());
        let told: Vec<&str> = found.iter().map(|row| row.text("finding")).collect();
        assert_eq!(
            told,
            ["ledger and payments are both bound to rabbitmq:live/orders: what one has handled is new to the other"]
        );
    }

    #[test]
    fn a_reader_is_known_by_the_queue_or_topic_that_it_is_bound_to() {
        let arn = "sqs:arn:aws:sqs:eu-central-1:123456789012:orders";
        for (bound_to, destination) in [
            ("kafka:M-kd9/orders/ledger/blue", "orders"),
            ("rabbitmq:///orders", "orders"),
            ("rabbitmq:live/orders/eu", "orders/eu"),
            (arn, "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"),
        ] {
            assert!(reads(bound_to, destination), "{bound_to} {destination}");
        }
        for (bound_to, destination) in [
            ("kafka:M-kd9/orders/ledger/blue", "ledger"),
            ("rabbitmq:///my-orders", "orders"),
            (arn, "https://sqs.eu-central-1.amazonaws.com/210987654321/orders"),
            (arn, "orders"),
            ("", ""),
        ] {
            assert!(!reads(bound_to, destination), "{bound_to} {destination}");
        }
    }
}

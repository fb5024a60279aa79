//! The findings of `idem doctor` in an outbox, on every database.

use std::time::Duration;

use idem_core::outbox::{OutboxBacklog, RECEIVER_KEEPS};

use super::{list::span, number};
use crate::report::Row;

/// An event that may go and is older has been waiting: a relay looks every second.
const LATE: Duration = Duration::from_secs(60);

/// Half of the time for which receivers remember an event by default, and longer than a webhook is tried: an operator who looks
/// now can still deliver it while they would recognise a copy.
const OLD: Duration = Duration::from_secs(RECEIVER_KEEPS.as_secs() / 2);

/// One row a finding, as those of the database.
pub(crate) fn findings(backlog: &[OutboxBacklog]) -> Vec<Row> {
    backlog.iter().flat_map(of).collect()
}

fn of(backlog: &OutboxBacklog) -> Vec<Row> {
    let OutboxBacklog { destination, pending, waiting, failed, behind, oldest, first_sent_ago, .. } = backlog;
    let OutboxBacklog { relayed_by, is_paused, .. } = backlog;
    let finding = |level: &str, finding: String, cure: String| {
        Row::new([("level", level.into()), ("finding", finding.into()), ("cure", cure.into())])
    };
    let mut findings = Vec::new();
    let wait = pending + waiting;
    if *is_paused {
        let cure = format!("Run idem outbox resume {destination} once the reason is gone");
        findings.push(finding("notice", format!("{destination} is paused, and {} events wait", number(wait)), cure));
    } else if relayed_by.is_none() && wait + failed + behind > 0 {
        let cure = "Start a worker that relays there (--relay off switches it off), or idem outbox relay; events for a \
                    destination that was given up are removed with idem outbox skip";
        findings.push(finding(
            "warning",
            format!("nobody relays {destination}, and {} events wait", number(wait)),
            cure.to_owned(),
        ));
    } else if let (Some(age), Some(relay)) = (oldest.filter(|age| *age > LATE), relayed_by) {
        let cure = format!(
            "Look at the log or the page of the relay {relay}, which says why {destination} does not take them"
        );
        findings.push(finding("warning", format!("the oldest event for {destination} is {} old", span(age)), cure));
    }
    if let Some(ago) = first_sent_ago.filter(|ago| *ago > OLD) {
        let cure = format!(
            "Have it sent or skip it while its receivers would still know a copy: for 7 days, unless the relay's \
             receiver-keeps says otherwise. After that, less an hour, it is stale and waits for idem outbox retry --stale; \
             idem outbox list --destination {destination} shows it"
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
    } else if wait == 0 && *behind > 0 {
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
    use idem_core::outbox::DestinationId;

    use super::*;

    fn told(change: impl FnOnce(&mut OutboxBacklog)) -> Vec<String> {
        let mut backlog = OutboxBacklog::new("payments".to_owned(), DestinationId(1));
        backlog.relayed_by = Some("host:1".to_owned());
        change(&mut backlog);
        findings(&[backlog]).iter().map(|row| format!("{}: {}", row.text("level"), row.text("finding"))).collect()
    }

    #[test]
    fn an_outbox_that_is_emptied_is_no_finding() {
        assert_eq!(told(|backlog| (backlog.pending, backlog.oldest) = (3, Some(LATE))), Vec::<String>::new());
        assert_eq!(told(|backlog| backlog.relayed_by = None), Vec::<String>::new(), "nothing waits");
        assert_eq!(told(|backlog| backlog.first_sent_ago = Some(OLD)), Vec::<String>::new());
    }

    #[test]
    fn what_waits_in_vain_is_told_with_its_cause() {
        let late = told(|backlog| (backlog.pending, backlog.oldest) = (3, Some(LATE + Duration::from_secs(1))));
        assert_eq!(late, ["warning: the oldest event for payments is 61 s old"]);
        let unrelayed = told(|backlog| (backlog.pending, backlog.relayed_by) = (3_011, None));
        assert_eq!(unrelayed, ["warning: nobody relays payments, and 3,011 events wait"]);
        let paused = told(|backlog| (backlog.pending, backlog.is_paused, backlog.relayed_by) = (2, true, None));
        assert_eq!(paused, ["notice: payments is paused, and 2 events wait"]);
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
    }
}

//! How far a consumer is behind, as a gauge for each part of its queue or topic.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use crate::{
    names::ConsumerName,
    source::Behind,
    telemetry::{BEHIND, CONSUMER, PART},
};

/// What a source answered last.
#[derive(Debug)]
pub(crate) struct LastBehind {
    consumer: ConsumerName,
    parts: Mutex<Vec<Behind>>,
}

impl LastBehind {
    pub(crate) fn of(consumer: &ConsumerName) -> Self {
        Self { consumer: consumer.clone(), parts: Mutex::default() }
    }

    pub(crate) fn parts(&self) -> Vec<Behind> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows these; a part that is no longer among them is another worker's now.
    #[allow(clippy::cast_precision_loss, reason = "gauges are floating")]
    pub(crate) fn set(&self, parts: Vec<Behind>) {
        let gauge =
            |part: &str| metrics::gauge!(BEHIND.name, CONSUMER => self.consumer.to_string(), PART => part.to_owned());
        let now: BTreeSet<&str> = parts.iter().map(|of| &*of.part).collect();
        let before = self.parts();
        before.iter().filter(|of| !now.contains(&*of.part)).for_each(|of| gauge(&of.part).set(0.0));
        for of in &parts {
            if let Some(messages) = of.messages {
                gauge(&of.part).set(messages as f64);
            }
        }
        *self.parts.lock().unwrap_or_else(PoisonError::into_inner) = parts;
    }
}

#[cfg(test)]
mod tests {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    /// J111: a partition that went to another worker is not shown by two.
    #[test]
    fn j111_a_part_that_is_gone_is_no_longer_behind() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let shown = || {
            let recorded = snapshotter.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
                let labels: Vec<_> =
                    key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
                let DebugValue::Gauge(value) = value else { panic!("{value:?}") };
                (labels.join(","), value.into_inner())
            });
            recorded.collect::<std::collections::BTreeMap<_, _>>()
        };
        let of = |part: &str, messages| (format!("consumer=orders,part={part}"), messages);
        metrics::with_local_recorder(&recorder, || {
            let last = LastBehind::of(&ConsumerName::new("orders").unwrap());
            last.set(vec![Behind::new("orders/0", Some(3)), Behind::new("orders/1", None)]);
            assert_eq!(shown(), [of("orders/0", 3.0)].into(), "what is not known is not shown");
            last.set(vec![Behind::new("orders/1", Some(7))]);
            assert_eq!(shown(), [of("orders/0", 0.0), of("orders/1", 7.0)].into());
            last.set(Vec::new());
            assert_eq!(shown(), [of("orders/0", 0.0), of("orders/1", 0.0)].into());
        });
    }
}

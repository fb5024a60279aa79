//! The metrics of this process as instruments of OpenTelemetry, under the same names and labels.

use std::sync::Arc;

use metrics::{HistogramFn, Key, Unit};
use opentelemetry::{KeyValue, metrics::Histogram};

use super::meter;
use crate::metrics::{Described, Recorded};

fn attributes(key: &Key) -> Vec<KeyValue> {
    key.labels().map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned())).collect()
}

/// The unit by the Unified Code for Units of Measure, as OpenTelemetry writes units.
fn unit(unit: Option<Unit>) -> &'static str {
    match unit {
        Some(Unit::Seconds) => "s",
        Some(Unit::Bytes) => "By",
        Some(_) | None => "1",
    }
}

/// Has the counters of this name read at each export.
pub(crate) fn count(recorded: &Recorded, name: &str, described: &Described) {
    let Some(meter) = meter() else { return };
    let (of, named) = (recorded.clone(), name.to_owned());
    let instrument = meter.u64_observable_counter(name.to_owned()).with_unit(unit(described.unit));
    let instrument = instrument.with_description(described.meaning.to_string());
    // The meter keeps the callback.
    let _instrument = instrument
        .with_callback(move |observer| {
            of.counters(&named).iter().for_each(|(key, value)| observer.observe(*value, &attributes(key)));
        })
        .build();
}

/// Has the gauges of this name read at each export.
pub(crate) fn measure(recorded: &Recorded, name: &str, described: &Described) {
    let Some(meter) = meter() else { return };
    let (of, named) = (recorded.clone(), name.to_owned());
    let instrument = meter.f64_observable_gauge(name.to_owned()).with_unit(unit(described.unit));
    let instrument = instrument.with_description(described.meaning.to_string());
    // The meter keeps the callback.
    let _instrument = instrument
        .with_callback(move |observer| {
            of.gauges(&named).iter().for_each(|(key, value)| observer.observe(*value, &attributes(key)));
        })
        .build();
}

/// A histogram that goes to both readers.
struct Both<H> {
    own: Arc<H>,
    exported: Histogram<f64>,
    attributes: Vec<KeyValue>,
}

impl<H: HistogramFn> HistogramFn for Both<H> {
    fn record(&self, value: f64) {
        self.own.record(value);
        self.exported.record(value, &self.attributes);
    }
}

/// This histogram, whose values are exported too, where metrics go to a collector.
pub(crate) fn histogram<H>(own: &Arc<H>, key: &Key, bounds: &[f64], described: &Described) -> metrics::Histogram
where
    H: HistogramFn + Send + Sync + 'static,
{
    let Some(meter) = meter() else { return metrics::Histogram::from_arc(Arc::clone(own)) };
    let exported = meter.f64_histogram(key.name().to_owned()).with_unit(unit(described.unit));
    let exported = exported.with_description(described.meaning.to_string()).with_boundaries(bounds.to_vec()).build();
    metrics::Histogram::from_arc(Arc::new(Both { own: Arc::clone(own), exported, attributes: attributes(key) }))
}

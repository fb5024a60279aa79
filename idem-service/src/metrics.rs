//! `/metrics`: this process's metrics, recorded here and written in Prometheus' text format. With a collector of OpenTelemetry they go
//! there too.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{Display, Write as _},
    sync::{Arc, PoisonError, RwLock, atomic::Ordering},
};

use idem_core::telemetry::{self, Kind};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit, atomics::AtomicU64,
};

/// The format's media type.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The upper bounds of the application's histograms, as in Prometheus' own clients.
const BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Whether metrics are read: at the admin port, or by a collector.
pub(crate) fn are_read(at_admin_port: bool) -> bool {
    #[cfg(feature = "otel")]
    let at_collector = crate::otel::takes_metrics();
    #[cfg(not(feature = "otel"))]
    let at_collector = false;
    at_admin_port || at_collector
}

/// Takes the metrics of this process from now on; `None` where the program has a recorder of its own
/// already.
pub(crate) fn install() -> Option<Recorded> {
    let recorded = Recorded::default();
    metrics::set_global_recorder(recorded.clone()).ok()?;
    Some(recorded)
}

/// The recorder. Clones share everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorded(Arc<Tables>);

#[derive(Debug, Default)]
struct Tables {
    counters: Table<AtomicU64>,
    gauges: Table<AtomicU64>,
    histograms: Table<Buckets>,
    /// Meaning and unit, by the name that Prometheus knows.
    described: RwLock<HashMap<String, Described>>,
    /// The counters and gauges that a collector reads, by their names.
    #[cfg(feature = "otel")]
    exported: RwLock<std::collections::HashSet<String>>,
}

/// Meaning and unit of a metric.
#[derive(Debug, Clone, Default)]
pub(crate) struct Described {
    pub(crate) meaning: SharedString,
    pub(crate) unit: Option<Unit>,
}

type Table<T> = RwLock<HashMap<Key, Arc<T>>>;

/// The recorded values of a histogram, by the bound that each is below.
#[derive(Debug)]
struct Buckets {
    bounds: &'static [f64],
    /// One more than there are bounds.
    counts: Box<[AtomicU64]>,
    /// The bits of a float.
    sum: AtomicU64,
}

impl Buckets {
    fn of(name: &str) -> Self {
        let known = telemetry::METRICS.iter().find(|metric| metric.name == name).map(|metric| metric.kind);
        let bounds = if let Some(Kind::Histogram(bounds)) = known { bounds } else { BOUNDS };
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)].fetch_add(1, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

fn recorded<T>(table: &Table<T>, key: &Key, new: impl FnOnce() -> T) -> Arc<T> {
    if let Some(known) = table.read().unwrap_or_else(PoisonError::into_inner).get(key) {
        return Arc::clone(known);
    }
    let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(table.entry(key.clone()).or_insert_with(|| Arc::new(new())))
}

impl Recorder for Recorded {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, meaning: SharedString) {
        let mut described = self.0.described.write().unwrap_or_else(PoisonError::into_inner);
        described.entry(valid(name.as_str())).or_insert(Described { meaning, unit });
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.describe_counter(name, unit, meaning);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.describe_counter(name, unit, meaning);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        #[cfg(feature = "otel")]
        self.export(key.name(), crate::otel::count);
        Counter::from_arc(recorded(&self.0.counters, key, AtomicU64::default))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        #[cfg(feature = "otel")]
        self.export(key.name(), crate::otel::measure);
        Gauge::from_arc(recorded(&self.0.gauges, key, AtomicU64::default))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let buckets = recorded(&self.0.histograms, key, || Buckets::of(key.name()));
        #[cfg(feature = "otel")]
        return crate::otel::histogram(&buckets, key, buckets.bounds, &self.described(key.name()));
        #[cfg(not(feature = "otel"))]
        Histogram::from_arc(buckets)
    }
}

#[cfg(feature = "otel")]
impl Recorded {
    fn described(&self, name: &str) -> Described {
        let described = self.0.described.read().unwrap_or_else(PoisonError::into_inner);
        described.get(&valid(name)).cloned().unwrap_or_default()
    }

    /// Hands a metric to the collector the first time that its name is met.
    fn export(&self, name: &str, export: fn(&Self, &str, &Described)) {
        if self.0.exported.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned()) {
            export(self, name, &self.described(name));
        }
    }

    /// The counters of this name.
    pub(crate) fn counters(&self, name: &str) -> Vec<(Key, u64)> {
        named(&self.0.counters, name)
    }

    /// The gauges of this name.
    pub(crate) fn gauges(&self, name: &str) -> Vec<(Key, f64)> {
        named(&self.0.gauges, name).into_iter().map(|(key, bits)| (key, f64::from_bits(bits))).collect()
    }
}

#[cfg(feature = "otel")]
fn named(table: &Table<AtomicU64>, name: &str) -> Vec<(Key, u64)> {
    let table = table.read().unwrap_or_else(PoisonError::into_inner);
    let of_name = table.iter().filter(|(key, _)| key.name() == name);
    of_name.map(|(key, value)| (key.clone(), value.load(Ordering::Relaxed))).collect()
}

impl Recorded {
    /// All samples. It takes its time with many series, and so must not run on a thread that polls the worker.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, &self.0.counters, "counter", |text, name, labels, value| {
            sample(text, name, labels, value.load(Ordering::Relaxed));
        });
        self.write(&mut text, &self.0.gauges, "gauge", |text, name, labels, value| {
            sample(text, name, labels, f64::from_bits(value.load(Ordering::Relaxed)));
        });
        self.write(&mut text, &self.0.histograms, "histogram", histogram);
        text
    }

    fn write<T>(&self, text: &mut String, table: &Table<T>, kind: &str, write: impl Fn(&mut String, &str, &str, &T)) {
        let mut families = BTreeMap::<String, BTreeMap<String, Arc<T>>>::new();
        for (key, value) in &*table.read().unwrap_or_else(PoisonError::into_inner) {
            families.entry(valid(key.name())).or_default().insert(labels(key), Arc::clone(value));
        }
        for (name, samples) in families {
            let described = self.0.described.read().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
            let full = full_name(&name, described.as_ref().and_then(|described| described.unit), kind);
            if let Some(Described { meaning, .. }) = described {
                let _ = writeln!(text, "# HELP {full} {}", meaning.replace('\\', "\\\\").replace('\n', "\\n"));
            }
            let _ = writeln!(text, "# TYPE {full} {kind}");
            for (labels, value) in samples {
                write(text, &full, &labels, &value);
            }
            text.push('\n');
        }
    }
}

fn sample(text: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = match labels {
        "" => writeln!(text, "{name} {value}"),
        _ => writeln!(text, "{name}{{{labels}}} {value}"),
    };
}

fn histogram(text: &mut String, name: &str, labels: &str, buckets: &Buckets) {
    let (bucket, comma) = (format!("{name}_bucket"), if labels.is_empty() { "" } else { "," });
    let mut count = 0;
    for (at, of_bucket) in buckets.counts.iter().enumerate() {
        count += of_bucket.load(Ordering::Relaxed);
        let bound = buckets.bounds.get(at).map_or("+Inf".to_owned(), f64::to_string);
        sample(text, &bucket, &format!("{labels}{comma}le=\"{bound}\""), count);
    }
    sample(text, &format!("{name}_sum"), labels, f64::from_bits(buckets.sum.load(Ordering::Relaxed)));
    sample(text, &format!("{name}_count"), labels, count);
}

/// `name` with its unit, and `_total` where it counts, as Prometheus recommends.
fn full_name(name: &str, unit: Option<Unit>, kind: &str) -> String {
    let counts = kind == "counter";
    let mut full = if counts { name.trim_end_matches("_total") } else { name }.to_owned();
    let unit = match unit {
        None | Some(Unit::Count) => None,
        Some(Unit::Percent) => Some("ratio"),
        Some(unit) => Some(unit.as_str()),
    };
    if let Some(unit) = unit.filter(|unit| !full.ends_with(unit)) {
        full.push('_');
        full.push_str(unit);
    }
    full + if counts { "_total" } else { "" }
}

fn labels(key: &Key) -> String {
    let label = |label: &metrics::Label| {
        let value = label.value().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{}=\"{value}\"", valid(label.key()).replace(':', "_"))
    };
    key.labels().map(label).collect::<Vec<_>>().join(",")
}

/// A name of the characters that Prometheus takes.
fn valid(name: &str) -> String {
    let is_valid = |(at, c): (usize, char)| c.is_ascii_alphabetic() || "_:".contains(c) || at > 0 && c.is_ascii_digit();
    name.chars().enumerate().map(|(at, c)| if is_valid((at, c)) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_as_prometheus_reads_them() {
        let recorded = Recorded::default();
        metrics::with_local_recorder(&recorded, || {
            metrics::describe_counter!("idem.processed", Unit::Count, "handled\nonce");
            metrics::describe_gauge!("idem.waiting_longest", Unit::Seconds, "the wait");
            metrics::counter!("idem.processed", "consumer" => "a\"b\\c").increment(2);
            metrics::counter!("idem.processed", "consumer" => "a\"b\\c").increment(1);
            metrics::counter!("0own_total").absolute(7);
            metrics::gauge!("idem.waiting_longest").set(0.5);
            let own = metrics::histogram!("own.time", "part" => "x");
            [0.005, 0.006, 11.0].into_iter().for_each(|value| own.record(value));
            metrics::histogram!("idem.batch_size").record(1000.0);
        });
        let text = recorded.text();
        for part in [
            "# TYPE _own_total counter\n_own_total 7\n\n# HELP idem_processed_total handled\\nonce\n\
             # TYPE idem_processed_total counter\nidem_processed_total{consumer=\"a\\\"b\\\\c\"} 3\n\n",
            "# HELP idem_waiting_longest_seconds the wait\n# TYPE idem_waiting_longest_seconds gauge\n\
             idem_waiting_longest_seconds 0.5\n\n",
            "# TYPE idem_batch_size histogram\nidem_batch_size_bucket{le=\"1\"} 0\n",
            "idem_batch_size_bucket{le=\"500\"} 0\nidem_batch_size_bucket{le=\"1000\"} 1\n\
             idem_batch_size_bucket{le=\"+Inf\"} 1\nidem_batch_size_sum 1000\nidem_batch_size_count 1\n",
            "own_time_bucket{part=\"x\",le=\"0.005\"} 1\nown_time_bucket{part=\"x\",le=\"0.01\"} 2\n",
            "own_time_bucket{part=\"x\",le=\"10\"} 2\nown_time_bucket{part=\"x\",le=\"+Inf\"} 3\n\
             own_time_sum{part=\"x\"} 11.011\nown_time_count{part=\"x\"} 3\n",
        ] {
            assert!(text.contains(part), "{part}\nis missing in\n{text}");
        }
    }
}

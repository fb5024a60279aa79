//! `/metrics`: the worker's metrics, in Prometheus' text format.

use std::{sync::Arc, time::Duration};

use idem_core::telemetry::{self, Kind};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::status::Status;

/// The format's media type.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How often recorded values are folded into histograms; until then each takes room.
const FOLD_EVERY: Duration = Duration::from_secs(5);

/// Takes the metrics of this process from now on; `None` where the program has a recorder of its own
/// already.
pub(crate) fn install(status: &Arc<Status>) -> Option<PrometheusHandle> {
    // It fails only where a histogram has no buckets, and ours have some.
    let recorder = recorder().ok()?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok()?;
    let folded = handle.clone();
    status.supervise("metrics", async move {
        loop {
            tokio::time::sleep(FOLD_EVERY).await;
            folded.run_upkeep();
        }
    });
    Some(handle)
}

pub(crate) fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new().with_recommended_naming(true);
    for metric in telemetry::METRICS {
        if let Kind::Histogram(bounds) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
        }
    }
    Ok(builder.build_recorder())
}

/// All samples. It takes its time with many series, and so must not run on a thread that polls the worker.
pub(crate) fn text(status: &Status, recorded: &PrometheusHandle) -> String {
    status.measure();
    recorded.render()
}

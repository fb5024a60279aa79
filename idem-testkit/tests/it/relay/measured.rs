//! What a relay measures, by which people are paged.

use std::{collections::BTreeMap, time::Duration};

use idem_core::{config::RetryPolicy, relay::Route, telemetry};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::time::sleep;

use super::fixture::{Does, Fixture, Topic, running};

/// O106: what pages for a broker that is away, although its event is tried again every few seconds, does not for one endpoint
/// that never confirms, beside others that do.
#[tokio::test(start_paused = true)]
async fn o106_an_outage_is_due_and_an_event_that_waits_for_its_next_try_is_not() {
    let (fixture, recorder) = (Fixture::new(), DebuggingRecorder::new());
    let (broker, endpoints) = (Topic::new(), Topic::each(8).with("0", Does::FailsAndCounts));
    broker.away(true);
    fixture.commit_many("a", 0..1).await;
    fixture.commit_many("b", 0..2).await;
    let retry = RetryPolicy::new(100, Duration::from_secs(60), Duration::from_secs(60));
    let hooks = Route::to("b", endpoints).retry(retry);
    let relay =
        metrics::with_local_recorder(&recorder, || fixture.relay().to("a", broker.clone()).route(hooks).build());
    let run = running(relay.unwrap());
    let measured = || {
        let all = recorder.snapshotter().snapshot().into_vec();
        let gauge = |metric: telemetry::Metric| {
            let of = all.iter().filter(|(key, ..)| key.key().name() == metric.name).map(|(key, _, _, value)| {
                let DebugValue::Gauge(seconds) = value else { panic!("{} is no gauge", metric.name) };
                (key.key().labels().map(|label| label.value().to_owned()).collect(), seconds.into_inner())
            });
            let of: BTreeMap<String, f64> = of.collect();
            ["a", "b"].map(|destination| of[destination])
        };
        (gauge(telemetry::OUTBOX_DUE), gauge(telemetry::OUTBOX_OLDEST))
    };
    sleep(Duration::from_secs(900)).await;
    let ([away, waits], oldest) = measured();
    assert!(oldest.iter().all(|age| (850.0..910.0).contains(age)), "{oldest:?}");
    assert!(away > 850.0 && waits < 30.0, "{away} {waits}");
    broker.away(false);
    fixture.drained_to(1).await;
    sleep(Duration::from_secs(60)).await;
    assert!(measured().0[0] < 1.0);
    run.abort();
}

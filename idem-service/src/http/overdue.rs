//! Records that have expired and are still there.

use std::{future::Future, pin::pin, time::Duration};

use idem_core::{
    cleanup::{Cleaner, CleanupSettings},
    internal::Exactly,
    telemetry::{CLEANUP_LAG, CLEANUP_LAG_MAX, CONSUMER},
};

/// How often the oldest expired record is looked for. It is one look at an index.
const EVERY: Duration = Duration::from_secs(300);

/// Measures for how long the oldest expired record waits, whichever process cleans: a service whose cleanup is off, or whose login may not
/// delete, is the one that promises when records are gone.
pub(super) async fn measure(
    mut cleaner: Box<dyn Cleaner>,
    name: &'static str,
    lag_max: Option<Duration>,
    stop: impl Future<Output = ()>,
) {
    let lag = metrics::gauge!(CLEANUP_LAG.name, CONSUMER => name);
    if let Some(most) = lag_max {
        metrics::gauge!(CLEANUP_LAG_MAX.name, CONSUMER => name).set(most.as_secs_f64());
    }
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            backlog = cleaner.backlog() => match backlog {
                Ok(backlog) => lag.set(backlog.lag.as_secs_f64()),
                Err(error) => tracing::debug!(%error, "the oldest expired record cannot be looked for"),
            },
            () = stop.as_mut() => return,
        }
        cleaner.rest().await;
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = stop.as_mut() => return,
        }
    }
}

/// The settings of a cleanup that leaves no expired record for longer than `lag_max`. A cycle comes an eighth of its time late at
/// most, and is left out where another process has done one less than half of it ago: halved, no two are further apart.
///
/// # Errors
/// The rule that `every` breaks.
pub(super) fn in_time(
    settings: CleanupSettings,
    every: Duration,
    lag_max: Option<Duration>,
) -> Result<CleanupSettings, String> {
    match lag_max {
        Some(most) if every > most => Err(format!(
            "--cleanup-every is {}, but with this profile and this --keys-for it is {} at most, as records are to be gone within \
             24 hours",
            Exactly(every),
            Exactly(most)
        )),
        Some(most) => Ok(settings.every(every.min(most / 2))),
        None => Ok(settings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W96: no two cycles are further apart than an expired record may wait, though turns are spread and left to others.
    #[test]
    fn w96_cycles_come_in_time() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        let settings = |every, lag_max| in_time(CleanupSettings::default().every(every), every, lag_max);
        assert_eq!(settings(hour, Some(hour)), Ok(CleanupSettings::default().every(30 * minute)));
        assert_eq!(settings(20 * minute, Some(hour)), Ok(CleanupSettings::default().every(20 * minute)));
        assert_eq!(settings(hour, None), Ok(CleanupSettings::default().every(hour)));
        assert!(settings(2 * hour, Some(hour)).unwrap_err().starts_with("--cleanup-every is 2h, but"));
        // A turn that is left to another process, and then the longest wait.
        assert!((30 * minute).mul_f64(0.5 + 1.125) < hour);
    }
}

//! Every span, field, metric and event name that idem uses. Names follow OpenTelemetry's messaging conventions
//! v1.44.0 where they have one; all of those are still marked "Development".

/// The target of audit events.
pub const AUDIT: &str = "idem::audit";

/// The consumer's name.
pub const CONSUMER: &str = "idem.consumer";
/// What became of a delivery: see [`Outcome::as_str`](crate::Outcome::as_str).
pub const OUTCOME: &str = "idem.outcome";
/// The idempotency key, on spans and events only, never on a metric.
pub const KEY: &str = "idem.key";
/// Duplicates skipped.
pub const DUPLICATES: &str = "idem.duplicates";
/// The same under the name that R89 gives it.
pub const DUPLICATE_SKIPPED: &str = "consumer.duplicate_skipped";
/// Messages whose type opted out of protection.
pub const UNPROTECTED: &str = "idem.unprotected";

/// `messaging.destination.name`.
pub const DESTINATION: &str = "messaging.destination.name";
/// `messaging.message.id`.
pub const MESSAGE_ID: &str = "messaging.message.id";
/// `messaging.batch.message_count`.
pub const BATCH_COUNT: &str = "messaging.batch.message_count";

//! The quota of a consumer's dead letters, so that a flood of bad messages fills no disk: a message without room waits with
//! the broker, and no kept dead letter makes room for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    dead_letter::DeadLetter,
    source::Source,
    store::{Bookkeeping as _, Store},
    worker::shared::Shared,
};

/// The part of the quota that a worker writes at most before it measures again the bytes of all workers: each may go
/// beyond the quota by that much.
const UNSEEN_PART: u64 = 64;

/// Rows without a payload may take this part of the quota more: they show which messages wait, or are with a publisher.
const FACTS_PART: u64 = 4;

/// Up to this part of the quota it does not matter whose dead letters they are.
const LITTLE_PART: u64 = 2;

/// A measurement may take this part of a worker's time at most.
const TIME_PART: u32 = 20;

/// How much there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Whole,
    /// A row without the payload.
    Facts,
    Nothing,
}

/// The last figures of the dead letters' bytes.
#[derive(Debug, Default)]
pub(super) struct Quota(tokio::sync::Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    /// When, and how long it took.
    last: Option<(Instant, Duration)>,
    bytes: u64,
    /// Written by this worker since.
    added: u64,
}

impl Measured {
    fn is_due(&self, now: Instant, max: u64, every: Duration) -> bool {
        let Some((at, took)) = self.last else { return true };
        let ago = now.duration_since(at);
        ago >= took * TIME_PART && (ago >= every || self.added > max / UNSEEN_PART)
    }

    /// Takes room for a dead letter, as far as there is some.
    fn take(&mut self, max: u64, whole: u64, facts: u64) -> Room {
        let (room, bytes) = match self.bytes.saturating_add(self.added) {
            taken if taken.saturating_add(whole) <= max => (Room::Whole, whole),
            taken if taken.saturating_add(facts) <= max.saturating_add(max / FACTS_PART) => (Room::Facts, facts),
            _ => (Room::Nothing, 0),
        };
        self.added += bytes;
        room
    }
}

impl<S: Store, B: Source> Shared<S, B> {
    /// The part of a dead letter that there is room for. A copy of one that is there takes none, which is known after
    /// the next measurement.
    pub(super) async fn room_for(&self, dead_letter: &DeadLetter) -> Room {
        let Some(max) = self.settings.dead_letters_bytes_max else { return Room::Whole };
        // Lanes wait for each other here, so that one of them measures.
        let mut measured = self.quota.0.lock().await;
        let begun = Instant::now();
        if measured.is_due(begun, max, self.settings.control_every) {
            match self.consumer.store.bookkeeping().dead_letter_bytes(&self.consumer.name, max / LITTLE_PART).await {
                Ok(bytes) => (measured.bytes, measured.added) = (bytes, 0),
                // A quota that cannot be measured holds no message up. If the database is down, writing the row shows it next.
                Err(error) => {
                    if let Some(left_out) = self.lines.unrecorded.pass() {
                        tracing::warn!(
                            idem.consumer = %self.consumer.name, %error, left_out,
                            "the bytes of dead letters could not be measured; dead_letters_bytes_max goes by the last figure"
                        );
                    }
                }
            }
            measured.last = Some((Instant::now(), begun.elapsed()));
        }
        let facts = dead_letter.bytes_without_payload();
        let payload = dead_letter.message.payload().filter(|_| dead_letter.keep_payload).map_or(0, bytes::Bytes::len);
        measured.take(max, facts + payload as u64, facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S23: whole up to the quota, facts up to a quarter more, then nothing; and a letter that was not written takes no room.
    #[test]
    fn s23_room_is_taken_up_to_the_quota_and_facts_a_quarter_more() {
        let mut measured = Measured { bytes: 700, ..Measured::default() };
        assert_eq!(measured.take(1_000, 200, 50), Room::Whole);
        assert_eq!(measured.take(1_000, 101, 50), Room::Facts);
        assert_eq!(measured.take(1_000, 50, 50), Room::Whole);
        assert_eq!((0..6).map(|_| measured.take(1_000, 60, 50)).filter(|room| *room == Room::Facts).count(), 5);
        assert_eq!(measured.take(1_000, 60, 50), Room::Nothing);
        assert_eq!(measured.added, 200 + 50 + 50 + 5 * 50);
    }

    /// It is looked at again after a while, or after much was written, and never so often that it takes a worker's time.
    #[test]
    fn s23_the_bytes_are_measured_again_in_time() {
        let (max, every, start) = (6_400, Duration::from_secs(2), Instant::now());
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut measured = Measured::default();
        assert!(measured.is_due(start, max, every), "nothing is known yet");
        measured.last = Some((start, Duration::from_millis(10)));
        assert!(!measured.is_due(after(500), max, every) && measured.is_due(after(2_000), max, every));
        measured.added = 101;
        assert!(measured.is_due(after(500), max, every), "much was written");
        assert!(!measured.is_due(after(100), max, every), "however much was written");
        measured.last = Some((start, Duration::from_secs(1)));
        assert!(!measured.is_due(after(19_000), max, every), "it takes long");
        assert!(measured.is_due(after(20_000), max, every));
    }
}

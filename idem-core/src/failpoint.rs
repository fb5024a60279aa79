//! Places where a test can make the engine die, fail or wait. Without the feature `failpoints` they are nothing.

/// Names a place on the path of a message. `failpoint!(CLAIMED)` answers `Result<(), Injected>`.
#[macro_export]
macro_rules! failpoint {
    ($point:ident) => {
        $crate::failpoint::hit($crate::failpoint::$point).await
    };
}

/// The error that a failpoint injects.
#[derive(Debug, thiserror::Error)]
#[error("injected at the failpoint {0}")]
pub struct Injected(pub &'static str);

macro_rules! points {
    ($($(#[$doc:meta])* $constant:ident = $name:literal),* $(,)?) => {
        $($(#[$doc])* pub const $constant: &str = $name;)*
        /// Every failpoint, in the order in which a message meets them.
        pub const ALL: &[&str] = &[$($name),*];
    };
}
points! {
    /// A source handed a delivery over.
    RECV = "recv",
    /// The transaction has begun.
    BEGIN = "begin",
    /// The claim has been answered.
    CLAIMED = "claimed",
    /// A handler has run to its end, and others of the unit may follow.
    HANDLER_MID = "handler_mid",
    /// Every handler of the unit is done.
    HANDLER_DONE = "handler_done",
    /// Events and results of the handlers are written, in the unit's transaction. Not passed where there are none.
    APPENDED = "appended",
    /// Just before the seal.
    GUARD = "guard",
    /// COMMIT is on its way, and its answer has not been read.
    COMMIT_SENT = "commit_sent",
    /// The server has answered the COMMIT.
    COMMIT_OK = "commit_ok",
    /// Just before settlements are handed to the source.
    ACK_SENT = "ack_sent",
    /// The source has answered the settlements.
    ACK_OK = "ack_ok",
    /// The dead letter is stored and about to be published.
    DEAD_LETTER_SENT = "dead_letter_sent",
    /// The dead letter is stored and, where there is a publisher, confirmed.
    DEAD_LETTER_OK = "dead_letter_ok",
    /// Just before a rollback.
    ROLLBACK = "rollback",
    /// A batch failed and is about to run message by message.
    ISOLATE = "isolate",
    /// Between two steps of cleanup.
    CLEAN_CHUNK = "clean_chunk",
    /// A relay has taken events, and has not sent them yet.
    RELAY_TAKEN = "relay_taken",
    /// A destination has answered for events, and the answer is not noted yet.
    RELAY_CONFIRMED = "relay_confirmed",
    /// The outcome of the events is noted.
    RELAY_SETTLED = "relay_settled",
    /// Intake has stopped, and running messages are being finished.
    DRAIN = "drain",
}

/// The work of a call was refused for good: it is rolled back, and its outcome is not kept yet. No message of a handler passes it.
pub const REFUSED: &str = "refused";

/// Received messages are committed rows of an inbox, and are not acknowledged yet.
pub const INBOX_WRITTEN: &str = "inbox_written";

/// Rows of an inbox are read, and are not handed over yet.
pub const INBOX_READ: &str = "inbox_read";

/// Processed rows are removed from an inbox.
pub const INBOX_REMOVED: &str = "inbox_removed";

/// Rows that are due were taken, and are not handed to a lane yet.
pub const DUE_TAKEN: &str = "due_taken";

/// The ends of rows are noted.
pub const DUE_ENDED: &str = "due_ended";

/// The row of a message that waits for a later try is committed, and the message is not settled yet. It is not among [`ALL`].
pub const PUT_ASIDE: &str = "put_aside";

/// Those that replays pass, and no message of a source. They are not among [`ALL`].
pub const OF_REPLAYS: [&str; 2] = [DUE_TAKEN, DUE_ENDED];

/// Those that an inbox passes, and no consumer without one. They are not among [`ALL`].
pub const OF_AN_INBOX: [&str; 3] = [INBOX_WRITTEN, INBOX_READ, INBOX_REMOVED];

/// Those that a relay passes, and no consumer without one.
pub const OF_A_RELAY: [&str; 3] = [RELAY_TAKEN, RELAY_CONFIRMED, RELAY_SETTLED];

/// Nothing: the feature is off.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[allow(clippy::unused_async, reason = "it has the shape of its twin")]
pub async fn hit(_point: &'static str) -> Result<(), Injected> {
    Ok(())
}

#[cfg(feature = "failpoints")]
pub(crate) mod life;

#[cfg(feature = "failpoints")]
pub use self::{
    armed::{Action, arm, disarm_all, hit},
    life::{Fate, Life},
};

#[cfg(feature = "failpoints")]
mod armed {
    use std::{
        collections::HashMap,
        sync::{Mutex, PoisonError},
        time::Duration,
    };

    use tokio::sync::Notify;

    use crate::failpoint::{
        Injected,
        life::{Fate, Life},
    };

    /// The action that a failpoint takes.
    #[derive(Debug, Clone)]
    pub enum Action {
        /// The process dies at once, without unwinding.
        Abort,
        /// A panic.
        Panic,
        /// An error is answered.
        Error,
        /// It takes this much longer.
        Sleep(Duration),
        /// It waits until this is notified.
        Park(std::sync::Arc<Notify>),
    }

    struct Armed {
        skip: u64,
        times: u64,
        action: Action,
    }

    static POINTS: Mutex<Option<HashMap<String, Armed>>> = Mutex::new(None);

    /// Arms a failpoint: the first `skip` passes do nothing, the next `times` do `action`.
    pub fn arm(point: &str, skip: u64, times: u64, action: Action) {
        let mut points = POINTS.lock().unwrap_or_else(PoisonError::into_inner);
        points.get_or_insert_default().insert(point.to_owned(), Armed { skip, times, action });
    }

    /// Disarms every failpoint.
    pub fn disarm_all() {
        *POINTS.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn due(point: &str) -> Option<Action> {
        let mut points = POINTS.lock().unwrap_or_else(PoisonError::into_inner);
        let armed = points.as_mut()?.get_mut(point)?;
        if armed.skip > 0 {
            armed.skip -= 1;
            return None;
        }
        armed.times = armed.times.checked_sub(1)?;
        Some(armed.action.clone())
    }

    /// Takes the action that the failpoint is armed with. A process that a test can kill may be killed here.
    ///
    /// The rare cases are boxed, so that a failpoint that is compiled in and not armed adds nothing to the futures around
    /// it.
    pub async fn hit(point: &'static str) -> Result<(), Injected> {
        let (action, life) = (due(point), Life::current());
        if action.is_none() && life.is_none() {
            return Ok(());
        }
        Box::pin(meet(point, action, life)).await
    }

    async fn meet(point: &'static str, action: Option<Action>, life: Option<Life>) -> Result<(), Injected> {
        if let Some(life) = life {
            tokio::task::yield_now().await;
            match life.fate_at(point) {
                Fate::Pass => {}
                Fate::Error => return Err(Injected(point)),
                Fate::Die => {
                    life.kill();
                    std::future::pending::<()>().await;
                }
            }
        }
        match action {
            None => Ok(()),
            Some(Action::Abort) => std::process::abort(),
            #[allow(clippy::panic, reason = "the panic is what was asked for")]
            Some(Action::Panic) => panic!("failpoint {point}"),
            Some(Action::Error) => Err(Injected(point)),
            Some(Action::Sleep(time)) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Some(Action::Park(notify)) => {
                notify.notified().await;
                Ok(())
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Tests of users have them compiled in, and stacks of 2 MiB.
        #[test]
        fn a_failpoint_that_is_not_armed_takes_no_room() {
            let size = size_of_val(&hit(crate::failpoint::CLAIMED));
            assert!(size <= 64, "{size} bytes");
        }
    }
}

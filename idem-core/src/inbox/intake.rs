//! [`Intake`]: writes single messages to an inbox, for callers that have no broker, such as an endpoint for webhooks.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{sync::OnceCell, time::Instant};

use crate::{
    caught::caught,
    error::StoreError,
    inbox::{
        receiver::ReceiverSettings,
        rows::{Inbox, NewInboxRow, OpenInbox},
        view::Counted,
    },
    message::Message,
    names::ConsumerName,
};

/// Writes single messages to a consumer's inbox, for callers that have no broker. A worker on an
/// [`InboxSource`](crate::inbox::InboxSource) handles them.
pub struct Intake {
    inbox: Arc<dyn Inbox>,
    consumer: ConsumerName,
    settings: ReceiverSettings,
    open: OnceCell<OpenInbox>,
    room: Mutex<Room>,
    counted: Counted,
}

/// The last count, and how many rows were written since.
struct Room {
    count_at: Instant,
    rows: u64,
}

/// The fate of a message that was handed to an [`Intake`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Its row is committed.
    Written,
    /// The inbox is full, and nothing was written.
    Full,
}

impl fmt::Debug for Intake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake")
            .field("consumer", &self.consumer)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Intake {
    /// Into the inbox of this consumer. Nothing is connected yet.
    #[must_use]
    pub fn new(inbox: Arc<dyn Inbox>, consumer: ConsumerName, settings: ReceiverSettings) -> Self {
        let counted = Counted::of(&consumer);
        let room = Mutex::new(Room { count_at: Instant::now(), rows: 0 });
        Self { inbox, consumer, settings, open: OnceCell::new(), room, counted }
    }

    /// Writes a message in a transaction of its own. The first call makes the inbox. Rows are counted as often as
    /// [`count_every`](ReceiverSettings::count_every) says, and those that this writes in between are added.
    ///
    /// # Errors
    /// [`StoreError`]: whether the row was written may be unknown. A copy of the message is a duplicate then.
    ///
    /// # Cancel safety
    /// Cancel safe: the row of a dropped call may be written or not.
    pub async fn put(&self, message: Message) -> Result<Taken, StoreError> {
        let open = self.open.get_or_try_init(|| self.inbox.open(&self.consumer, None, self.settings.slots)).await?;
        if !self.has_room(open).await? {
            return Ok(Taken::Full);
        }
        let key = caught(|| self.settings.keys.key(&message).ok().flatten()).flatten();
        self.inbox.put(open.id, &[NewInboxRow::new(message, key, open.slots)]).await?;
        self.counted.metrics.received.increment(1);
        Ok(Taken::Written)
    }

    async fn has_room(&self, open: &OpenInbox) -> Result<bool, StoreError> {
        let now = Instant::now();
        let is_due = {
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = now >= room.count_at;
            if is_due {
                // The others go by the last count meanwhile.
                room.count_at = now + self.settings.count_every;
            }
            is_due
        };
        if is_due {
            let counted = self.inbox.backlog(open.id, &[], self.settings.rows_max).await;
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            match counted {
                Ok(backlog) => {
                    self.counted.set(backlog);
                    room.rows = backlog.rows;
                }
                Err(error) => {
                    room.count_at = now;
                    return Err(error);
                }
            }
        }
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = room.rows < self.settings.rows_max;
        room.rows += u64::from(has_room);
        Ok(has_room)
    }
}

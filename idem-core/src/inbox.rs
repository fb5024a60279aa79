//! Messages in: an inbox is a broker in a table. A [`Receiver`] writes the messages of a queue or topic to the table and acknowledges
//! them. An [`InboxSource`] hands them to a worker, as any other broker's source does.
//!
//! Nothing marks a row as processed. The record of its key is committed with the handler's effects, and the row is deleted after that
//! commit, as a broker's message is acknowledged. A row that is still there is read again, and is a duplicate.
//!
//! Each inbox has a fixed number of slots. A row belongs to one slot, chosen by a hash of its ordering key. A worker leases slots, so one
//! worker at a time reads the rows of a key, in order.
//!
//! Users need [`Receiver`] or [`Intake`], [`InboxSource`] and [`InboxStore`]; the rest is for authors of stores.

mod intake;
mod receiver;
mod rows;
mod source;
mod state;
mod view;

pub use self::{
    intake::{Intake, Taken},
    receiver::{Receiver, ReceiverError, ReceiverSettings},
    rows::{
        Granted, HeldSlot, INBOX_SLOTS, INBOX_SLOTS_MAX, Inbox, InboxBacklog, InboxRow, InboxStore, NewInboxRow,
        OpenInbox, Reading, Settling, slot_of,
    },
    source::{InboxSettings, InboxSource},
    state::InboxHandle,
    view::ReceiverView,
};

//! A destination of events that outlives the relays: a file with a line for each event that it was given.

use std::{fs::OpenOptions, io::Write as _, path::Path, time::Duration};

use async_trait::async_trait;
use idem_core::outbox::{Dispatch, EventError, EventPublisher, OutgoingEvent};
use serde::{Deserialize, Serialize};

use crate::plan::Relaying;

/// An event as the file has it, and as the outbox has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The id by which its receivers know it.
    pub id: String,
    /// Its ordering key.
    pub ordering_key: String,
    /// Its payload.
    pub payload: String,
}

/// The lines of the file, copies too, in the order of their arrival.
///
/// # Errors
/// Where a line is not one that a [`FilePublisher`] writes. A file that is not there has no lines.
pub fn read(file: &Path) -> Result<Vec<Told>, serde_json::Error> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(serde_json::from_str).collect()
}

/// Confirms what it has written into the file.
#[derive(Debug)]
pub struct FilePublisher(pub Relaying);

impl FilePublisher {
    fn write(&self, event: &OutgoingEvent) -> std::io::Result<()> {
        let ordering_key = event.ordering_key.as_ref().map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        let told = Told {
            id: event.key.to_string(),
            ordering_key: ordering_key.unwrap_or_default(),
            payload: String::from_utf8_lossy(&event.payload).into_owned(),
        };
        let line = serde_json::to_string(&told)? + "\n";
        // One call, so that the lines of two processes do not mix.
        OpenOptions::new().append(true).create(true).open(&self.0.to)?.write_all(line.as_bytes())
    }
}

#[async_trait]
impl EventPublisher for FilePublisher {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let mut answers = Vec::with_capacity(events.len());
        for event in events {
            answers.push(self.write(event).map_err(EventError::unconfirmed));
            tokio::time::sleep(Duration::from_millis(self.0.event_ms)).await;
        }
        answers
    }

    /// Few, so that a wave takes a relay several rounds.
    fn dispatch(&self) -> Dispatch {
        Dispatch::Batches { events_max: 7 }
    }
}

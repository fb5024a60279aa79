//! Proofs for tests of sources. Only the engine makes a [`Durable`], so they are earned: an engine of its own handles
//! messages against a store that is thrown away.

use idem_core::{DedupConsumer, Effects, HandlerError, Message, Tx, handler_fn, source::Durable};

use crate::MemoryStore;

/// `count` proofs with which a test of a [`Source`](idem_core::Source) may acknowledge messages that it made up.
///
/// They prove nothing about any message: the store behind them is gone when this returns. In a worker every proof comes
/// from a commit.
///
/// # Panics
/// Where the engine refuses to handle a message against a store in memory, which would be a bug of idem.
///
/// # Cancel safety
/// Cancel safe.
#[allow(clippy::panic, reason = "a helper of tests, which documents it")]
pub async fn durables(count: usize) -> Vec<Durable> {
    // The engine takes the messages of one call as one unit. Later units bring the same keys again: the proof of a
    // duplicate is as good as any.
    const UNIT: usize = 1000;
    let consumer = DedupConsumer::builder(MemoryStore::new(), "proofs")
        .handler(handler_fn(handle_nothing))
        .effects(Effects::InTransaction)
        .build()
        .unwrap_or_else(|error| panic!("{error}"));
    let mut proofs = Vec::with_capacity(count);
    while proofs.len() < count {
        let messages = (0..(count - proofs.len()).min(UNIT))
            .map(|number| Message::new("").with_header(idem_core::key::KEY_FIELD, number.to_string()))
            .collect::<Vec<_>>();
        let decided = consumer.process(messages).await.unwrap_or_else(|error| panic!("{error}"));
        let earned = decided.into_iter().filter_map(|decided| decided.decision.into_durable());
        let before = proofs.len();
        proofs.extend(earned);
        assert!(proofs.len() > before, "the engine must earn a proof from a store in memory");
    }
    proofs
}

async fn handle_nothing(_message: &Message, _tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn as_many_proofs_as_asked_for_are_earned() {
        for count in [0, 1, 1000, 1001] {
            assert_eq!(super::durables(count).await.len(), count);
        }
    }
}

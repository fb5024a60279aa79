//! The writes of a handler in a run without faults, with which all other runs are compared.

use std::{collections::BTreeSet, time::Duration};

use idem_core::{
    Decision, ErrorClass, Handler, IdempotencyKey, Message,
    consumer::Failure,
    scratch::{Scratch, Tables},
};

use super::{
    NotProven,
    course::Course,
    process::comes_again,
    rigged::{Act, Rig},
    tables::Volatile,
};

/// The SQLSTATE with which the seal refuses a COMMIT.
const UNSEALED: &str = "ID001";

/// How often a message is tried where nothing goes wrong.
const ATTEMPTS: usize = 5;

/// The tables' content at the beginning and at the end, and the part of it that can be compared.
pub(super) struct Reference {
    pub(super) keys: Vec<String>,
    /// Before the first message.
    pub(super) empty: Tables,
    /// After all of them.
    pub(super) all: Tables,
    /// After all but the last.
    pub(super) but_last: Tables,
    /// The columns that differ from run to run.
    pub(super) by_run: Volatile,
    /// And what differs with the order of messages that have none.
    pub(super) by_order: Volatile,
}

impl Reference {
    pub(super) async fn of<D: Scratch, H: Handler<D::Store>>(course: &mut Course<D, H>) -> Result<Self, NotProven> {
        let messages = course.messages.clone();
        let empty = course.database("it looks at an empty database").await?;
        let before = course.tables(&empty).await?;
        course.remove(empty).await;
        let (all, keys) = calm(course, &messages, false).await?;
        if all == before {
            let text = "the handler changes no table, so its effects cannot be seen: look at `Scratch::tables`, and at the messages";
            return Err(NotProven::Unprovable(text.to_owned()));
        }
        let (again, _) = calm(course, &messages, true).await?;
        let (other_order, _) = calm(course, &in_another_order(&messages), true).await?;
        let (but_last, _) = calm(course, &messages[..messages.len() - 1], true).await?;
        let by_run = Volatile::between(&[&all, &again]).ok_or_else(|| {
            let text = "twice the same messages leave different numbers of rows, although nothing went wrong";
            NotProven::Unprovable(text.to_owned())
        })?;
        let by_order = Volatile::between(&[&all, &again, &other_order]).ok_or_else(|| {
            let text = "the same messages in another order leave other rows: give those whose order matters one ordering key, \
                        by `Message::with_ordering_key`, as your broker does";
            NotProven::Unprovable(text.to_owned())
        })?;
        Ok(Self { keys, empty: before, all, but_last, by_run, by_order })
    }
}

/// Handles the messages one after the other. Answers what the tables hold, and the messages' keys.
async fn calm<D: Scratch, H: Handler<D::Store>>(
    course: &mut Course<D, H>,
    messages: &[Message],
    disturbed: bool,
) -> Result<(Tables, Vec<String>), NotProven> {
    let address = course.database(CALM).await?;
    let handled = handle_on(course, &address, messages, disturbed).await;
    // Nothing went wrong in it that a look would show.
    course.remove(address).await;
    let (tables, keys, slowest) = handled?;
    course.slowest = course.slowest.max(slowest);
    Ok((tables, keys))
}

const CALM: &str = "it handles the messages one by one";

async fn handle_on<D: Scratch, H: Handler<D::Store>>(
    course: &Course<D, H>,
    address: &D::Address,
    messages: &[Message],
    disturbed: bool,
) -> Result<(Tables, Vec<String>, Duration), NotProven> {
    let rig = Rig::new(|_, _| Act::Pass);
    if disturbed {
        course.databases().disturb(address).await.map_err(failed)?;
    }
    let consumer = course.making.consumer(address, &rig, None).await.map_err(failed)?;
    for message in messages {
        let mut decided = consumer.process_one(message.clone()).await.map_err(|error| failed(error.into()))?;
        // A provider that the handler calls may need a moment.
        for _ in 1..ATTEMPTS {
            if !comes_again(&decided.decision) {
                break;
            }
            decided = consumer.process_one(decided.message).await.map_err(|error| failed(error.into()))?;
        }
        let key = decided.message.key().map_or("(none)", IdempotencyKey::as_str);
        if let Some(why) = not_handled(key, &decided.decision) {
            return Err(NotProven::Unprovable(why));
        }
    }
    drop(consumer);
    let tables = course.tables(address).await?;
    let keys = rig.seen().done.clone();
    if keys.iter().collect::<BTreeSet<_>>().len() < messages.len() {
        return Err(NotProven::Unprovable(
            "each message must have a key, and all of them different ones: nothing else is protected".to_owned(),
        ));
    }
    let slowest = rig.seen().slowest;
    Ok((tables, keys, slowest))
}

fn not_handled(key: &str, decision: &Decision) -> Option<String> {
    if let Decision::Failed(failure) = decision {
        return Some(not_taken(key, failure));
    }
    if matches!(decision, Decision::Busy) {
        return Some(waited_for_itself(key));
    }
    let told = || format!("message {key} is not handled, although it is the first of its key: {decision:?}");
    (!decision.is_processed()).then(told)
}

/// A key that no other worker can have was held: by the handler.
fn waited_for_itself(key: &str) -> String {
    format!(
        "message {key} is not handled, because another transaction was writing. Does the handler write over a connection that is \
         not `tx`? That one waits for the handler's own transaction"
    )
}

fn failed(source: idem_core::BoxError) -> NotProven {
    NotProven::Failed { when: CALM.to_owned(), source }
}

/// Why a handler does not take a message, where nothing else is wrong.
fn not_taken(key: &str, failure: &Failure) -> String {
    let text = &failure.text;
    let told = format!("the handler does not take message {key}: {text}");
    let refused = failure.code.as_deref() == Some(UNSEALED) || text.contains(UNSEALED);
    if refused || text.contains("cannot be sealed") || text.contains("ended the transaction") {
        format!(
            "{told}. Your handler ends the transaction that it was given (a COMMIT or ROLLBACK of its own, which belongs to \
             idem), or goes on after a statement had failed"
        )
    } else if text.contains("locked") || failure.class == ErrorClass::RunUnitAgain {
        format!(
            "{told}. Does it write over a connection that is not `tx`? That one waits for the handler's own transaction"
        )
    } else {
        told
    }
}

/// Backwards, but for those of one ordering key.
pub(super) fn in_another_order(messages: &[Message]) -> Vec<Message> {
    let mut groups: Vec<Vec<Message>> = Vec::new();
    for message in messages {
        let of_group = |group: &&mut Vec<Message>| {
            message.ordering_key().is_some() && group[0].ordering_key() == message.ordering_key()
        };
        match groups.iter_mut().find(of_group) {
            Some(group) => group.push(message.clone()),
            None => groups.push(vec![message.clone()]),
        }
    }
    groups.into_iter().rev().flatten().collect()
}

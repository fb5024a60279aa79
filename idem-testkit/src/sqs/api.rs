//! The actions, in the JSON protocol of SQS.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use serde_json::{Map, Value, json};

use super::{
    Shared, State,
    queue::{BYTES_MAX, Message, Queue, Refusal, refuse, sent},
};

/// How an action ends now.
pub(super) enum Done {
    Answer(Result<Value, Refusal>),
    /// A receive that waits for messages, for so long.
    Wait(Duration),
}

/// Does what is asked, once. A receive that may wait and has nothing is to be asked again.
pub(super) fn act(shared: &Shared, action: &str, input: &Value) -> Done {
    let mut state = shared.lock();
    let now = shared.now(&state);
    let name = text(input, "QueueUrl").rsplit('/').next().unwrap_or_default().to_owned();
    if !state.queues.contains_key(&name) {
        return Done::Answer(refuse("QueueDoesNotExist", "The specified queue does not exist."));
    }
    let State { queues, ids, .. } = &mut *state;
    let Some(queue) = queues.get_mut(&name) else {
        return Done::Answer(refuse("QueueDoesNotExist", "The specified queue does not exist."));
    };
    queue.expire(now);
    Done::Answer(match action {
        "GetQueueAttributes" => Ok(attributes(queue, now)),
        "SendMessage" => send(queue, now, ids, input),
        "SendMessageBatch" => {
            small_enough(input).and_then(|()| batch(queue, input, |queue, entry| send(queue, now, ids, entry)))
        }
        "DeleteMessage" => queue.delete(now, &text(input, "ReceiptHandle")).map(|()| json!({})),
        "DeleteMessageBatch" => {
            batch(queue, input, |queue, entry| queue.delete(now, &text(entry, "ReceiptHandle")).map(|()| json!({})))
        }
        "ChangeMessageVisibility" => change_visibility(queue, now, input),
        "ChangeMessageVisibilityBatch" => batch(queue, input, |queue, entry| change_visibility(queue, now, entry)),
        "ReceiveMessage" => return receive(&mut state, now, &name, input),
        _ => refuse("UnsupportedOperation", format!("{action} is not supported.")),
    })
}

fn text(input: &Value, field: &str) -> String {
    input.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(input: &Value, field: &str, otherwise: u64) -> u64 {
    input.get(field).and_then(Value::as_u64).unwrap_or(otherwise)
}

fn attributes(queue: &Queue, now: Duration) -> Value {
    let counts = queue.counts(now);
    let mut attributes = json!({
        "QueueArn": format!("arn:aws:sqs:fake:000000000000:{}", queue.name),
        "ApproximateNumberOfMessages": counts.waiting.to_string(),
        "ApproximateNumberOfMessagesNotVisible": counts.in_flight.to_string(),
        "ApproximateNumberOfMessagesDelayed": counts.delayed.to_string(),
        "MessageRetentionPeriod": queue.options.retention.as_secs().to_string(),
        "MaximumMessageSize": queue.options.message_bytes_max.to_string(),
        "VisibilityTimeout": "30",
    });
    if let Some((limit, dead)) = &queue.options.redrive {
        let policy = json!({
            "deadLetterTargetArn": format!("arn:aws:sqs:fake:000000000000:{dead}"), "maxReceiveCount": limit
        });
        attributes["RedrivePolicy"] = Value::String(policy.to_string());
    }
    if queue.is_fifo() {
        attributes["FifoQueue"] = "true".into();
    }
    json!({ "Attributes": attributes })
}

fn send(queue: &mut Queue, now: Duration, ids: &mut u64, input: &Value) -> Result<Value, Refusal> {
    *ids += 1;
    let millis = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
    let message = message(format!("message-{ids}"), millis, input);
    let id = queue.send(now, Duration::from_secs(number(input, "DelaySeconds", 0)), message)?;
    Ok(json!({ "MessageId": id }))
}

fn message(id: String, millis: u128, input: &Value) -> Message {
    let attributes = input.get("MessageAttributes").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut message = sent(id, text(input, "MessageBody"), attributes, millis);
    let given = |field: &str| input.get(field).and_then(Value::as_str).map(str::to_owned);
    message.group = given("MessageGroupId");
    message.deduplication_id = given("MessageDeduplicationId");
    message
}

fn change_visibility(queue: &mut Queue, now: Duration, input: &Value) -> Result<Value, Refusal> {
    let seconds = number(input, "VisibilityTimeout", 0);
    queue.change_visibility(now, &text(input, "ReceiptHandle"), seconds).map(|()| json!({}))
}

/// How many entries a batch may have.
const ENTRIES_MAX: usize = 10;

/// All messages of a batch together, with their attributes, are as large as one may be.
fn small_enough(input: &Value) -> Result<(), Refusal> {
    let entries = input.get("Entries").and_then(Value::as_array).into_iter().flatten();
    let bytes: usize = entries.map(|entry| message(String::new(), 0, entry).bytes()).sum();
    if bytes > BYTES_MAX {
        return refuse(
            "BatchRequestTooLong",
            format!("Batch requests cannot be longer than {BYTES_MAX} bytes. You have sent {bytes} bytes."),
        );
    }
    Ok(())
}

/// The reasons for which SQS refuses a batch as a whole.
fn well_formed(entries: &[Value]) -> Result<(), Refusal> {
    if entries.is_empty() {
        return refuse("EmptyBatchRequest", "There should be at least one entry in the request.");
    }
    if entries.len() > ENTRIES_MAX {
        let count = entries.len();
        let problem = format!("Maximum number of entries per request are {ENTRIES_MAX}. You have sent {count}.");
        return refuse("TooManyEntriesInBatchRequest", problem);
    }
    let mut ids = HashSet::new();
    for id in entries.iter().map(|entry| text(entry, "Id")) {
        let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !(1..=80).contains(&id.len()) || !id.bytes().all(is_id) {
            return refuse(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 \
                 letters long.",
            );
        }
        if let Some(id) = ids.replace(id) {
            return refuse("BatchEntryIdsNotDistinct", format!("Id {id} repeated."));
        }
    }
    Ok(())
}

/// Each entry for itself: a well-formed request is a success as a whole, even if entries fail.
fn batch(
    queue: &mut Queue,
    input: &Value,
    mut act: impl FnMut(&mut Queue, &Value) -> Result<Value, Refusal>,
) -> Result<Value, Refusal> {
    let entries = input.get("Entries").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    well_formed(entries)?;
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for entry in entries {
        let id = text(entry, "Id");
        if queue.failing_entries > 0 {
            queue.failing_entries -= 1;
            failed.push(json!({ "Id": id, "SenderFault": false, "Code": "InternalError", "Message": "Try again." }));
            continue;
        }
        if queue.throttled_entries > 0 {
            queue.throttled_entries -= 1;
            // SQS may call this the sender's fault.
            failed.push(json!({
                "Id": id, "SenderFault": true, "Code": "ThrottlingException", "Message": "Rate exceeded"
            }));
            continue;
        }
        match act(queue, entry) {
            Ok(mut done) => {
                done["Id"] = id.into();
                done["MD5OfMessageBody"] = "".into();
                successful.push(done);
            }
            Err(refusal) => failed.push(json!({
                "Id": id, "SenderFault": true, "Code": refusal.code, "Message": refusal.text
            })),
        }
    }
    Ok(json!({ "Successful": successful, "Failed": failed }))
}

/// The longest that a receive may wait.
const WAIT_MAX: Duration = Duration::from_secs(20);

fn receive(state: &mut State, now: Duration, name: &str, input: &Value) -> Done {
    let wait = Duration::from_secs(number(input, "WaitTimeSeconds", 0));
    let max = usize::try_from(number(input, "MaxNumberOfMessages", 1)).unwrap_or(1).min(10);
    let visibility = Duration::from_secs(number(input, "VisibilityTimeout", 30));
    if !(1..=10).contains(&number(input, "MaxNumberOfMessages", 1)) || wait > WAIT_MAX {
        return Done::Answer(refuse(
            "InvalidParameterValue",
            "MaxNumberOfMessages must be between 1 and 10, and WaitTimeSeconds between 0 and 20.",
        ));
    }
    if state.receives_hang {
        return Done::Wait(wait);
    }
    let Some(queue) = state.queues.get_mut(name) else { return Done::Wait(wait) };
    let mut dead = Vec::new();
    let attempt = text(input, "ReceiveRequestAttemptId");
    if let Some(messages) = queue.receive_again(now, visibility, &attempt) {
        return Done::Answer(Ok(handed_over(&messages, now, input)));
    }
    let received = queue.receive(now, max, visibility, &mut dead);
    if let Some(messages) = received.as_ref().filter(|messages| !messages.is_empty()) {
        queue.attempted(now, attempt, messages);
    }
    let (fifo, redrive) = (queue.is_fifo(), queue.options.redrive.clone());
    if let Some(queue) = redrive.and_then(|(_, to)| state.queues.get_mut(&to)) {
        dead.into_iter().for_each(|message| queue.put(message));
    }
    match received {
        // A long poll answers nothing instead, and a FIFO queue never says so.
        None if wait.is_zero() && !fifo => Done::Answer(refuse("OverLimit", "Too many messages in flight.")),
        None => Done::Wait(wait),
        Some(messages) if messages.is_empty() => Done::Wait(wait),
        Some(messages) => Done::Answer(Ok(handed_over(&messages, now, input))),
    }
}

fn handed_over(messages: &[Message], now: Duration, input: &Value) -> Value {
    let messages: Vec<Value> = messages.iter().map(|message| described(message, now, input)).collect();
    json!({ "Messages": messages })
}

/// With the attributes that were asked for, and no others.
fn described(message: &Message, now: Duration, input: &Value) -> Value {
    let asked = |list: &str, name: &str| {
        let names = input.get(list).and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|asked| asked == name || asked == "All"))
    };
    // As long ago by the client's clock as by that of the queues.
    let millis_ago =
        |time: Duration| SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(time).as_millis();
    let first = message.since_the_first_receive(now).map(|time| millis_ago(time).to_string());
    let facts = [
        ("ApproximateReceiveCount", Some(message.receives.to_string())),
        ("ApproximateFirstReceiveTimestamp", first),
        ("SentTimestamp", Some(message.sent_millis.to_string())),
        ("MessageGroupId", message.group.clone()),
        ("MessageDeduplicationId", message.deduplication_id.clone()),
    ];
    let facts: Map<String, Value> = facts
        .into_iter()
        .filter(|(name, _)| asked("MessageSystemAttributeNames", name))
        .filter_map(|(name, value)| Some((name.to_owned(), value?.into())))
        .collect();
    let own = message.attributes.iter().filter(|(name, _)| asked("MessageAttributeNames", name));
    let own: Map<String, Value> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    json!({
        "MessageId": message.id, "ReceiptHandle": message.receipt(), "Body": message.body,
        "Attributes": facts, "MessageAttributes": own,
    })
}

//! `idem erase`: blanks everything that may identify a person, and keeps the hashes that make a redelivery a duplicate. Messages that wait
//! in the inbox are removed.

use idem_core::{Uuid, outbox::EventName};

use crate::{
    command_line::Erase,
    commands::progress::beside_one,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::{Report, Table},
};

/// The scopes and the id of the key. Parameters: 1 key, 2 consumer or NULL.
const ASKED: &str = "\
WITH asked AS (
    SELECT id AS consumer, {schema}.key_id($1::text) AS key_id FROM {schema}.consumers
    WHERE $2::text IS NULL OR name = $2::text
)";

const COUNT: &str = "\
{asked}
SELECT (SELECT pg_catalog.count(*) FROM asked JOIN {schema}.processed_messages USING (consumer, key_id))
    + (SELECT pg_catalog.count(*) FROM asked JOIN {schema}.processed_results USING (consumer, key_id))
    + (SELECT pg_catalog.count(*) FROM asked JOIN {schema}.message_attempts USING (consumer, key_id))
    + (SELECT pg_catalog.count(*) FROM asked JOIN {schema}.dead_letters USING (consumer, key_id))
    + (SELECT pg_catalog.count(*) FROM asked JOIN {schema}.forgotten USING (consumer, key_id))
    + (SELECT pg_catalog.count(*) FROM {schema}.audit WHERE idempotency_key = $1::text)";

/// The messages with the key that wait in the inbox. Parameters as above.
const INBOX: &str = "\
{asked}
SELECT pg_catalog.count(*) FROM {schema}.inbox AS i JOIN asked ON i.consumer = asked.consumer AND i.idempotency_key = $1::text";

/// The events in the outbox that hold the key as that of a message before them in the chain, with its record or without. Parameters as
/// above, and 3 the key as its sender knows it.
const EVENTS: &str = "\
SELECT pg_catalog.count(*) FROM {schema}.outbox AS o
WHERE o.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE $2::text IS NULL OR name = $2::text)) AND {caused}";

/// Those whose own id it is, and that its message has not caused. Further parameter: 4 the id.
const OF_ID: &str = "\
SELECT pg_catalog.format('%s:%s', o.number, o.event_key) AS event, d.name AS destination
FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
WHERE o.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE $2::text IS NULL OR name = $2::text))
    AND o.event_key = $4::text AND NOT {caused} ORDER BY o.number LIMIT 3";

/// Whether the message with the key has caused the event `o`.
const CAUSED: &str = "\
EXISTS (SELECT FROM pg_catalog.json_array_elements(o.headers) AS pair
        WHERE pg_catalog.json_array_element_text(pair, 0) IN ('idemcause', 'idemcausedby')
            AND pg_catalog.json_array_element_text(pair, 1) IN ($1::text, $3::text))";

/// Dead letters under other keys that hold the key: messages that its own has caused, at the next consumers in the chain. They are
/// not blanked, because each may be an effect that is owed. Parameters: 1 key, 2 consumer or NULL, 3 the [`forms`] of the key.
const OTHERS_LETTERS: &str = "\
SELECT pg_catalog.count(*) FROM {schema}.dead_letters AS d
WHERE d.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE $2::text IS NULL OR name = $2::text))
    AND d.key_id IS DISTINCT FROM {schema}.key_id($1::text) AND EXISTS (SELECT FROM pg_catalog.unnest($3::text[]) AS held (form)
        WHERE pg_catalog.strpos(d.headers::text, held.form) > 0
            OR pg_catalog.position(d.payload, pg_catalog.convert_to(held.form, 'UTF8')) > 0)";

/// One transaction. A message that waits for a later try is removed: without its payload it can never run. An empty text cannot be a key, so it means that one was erased. A dead letter without its payload is
/// never replayed, and the outcome of a replay that has ended stays; it is no copy of any other from then on, because one that
/// comes again must be kept whole. Further parameters: 3 who, 4 why.
const ERASE: &str = "\
{asked}, records AS (
    UPDATE {schema}.processed_messages AS p SET idempotency_key = ''
    FROM asked WHERE p.consumer = asked.consumer AND p.key_id = asked.key_id RETURNING p.consumer
), results AS (
    UPDATE {schema}.processed_results AS r SET kind = (r.kind & 1::smallint) | 2::smallint, content_type = NULL, headers = NULL, body = '',
        sealed_with = NULL, reference = NULL, answer_until = NULL
    FROM asked WHERE r.consumer = asked.consumer AND r.key_id = asked.key_id RETURNING r.consumer
), forgotten AS (
    UPDATE {schema}.forgotten AS p SET idempotency_key = ''
    FROM asked WHERE p.consumer = asked.consumer AND p.key_id = asked.key_id RETURNING p.consumer
), counts AS (
    UPDATE {schema}.message_attempts AS a SET idempotency_key = ''
    FROM asked WHERE a.consumer = asked.consumer AND a.key_id = asked.key_id RETURNING a.consumer
), put_aside AS (
    DELETE FROM {schema}.dead_letters AS d USING asked
    WHERE d.consumer = asked.consumer AND d.key_id = asked.key_id AND d.state <> 0::int2 AND d.due_by IS NULL RETURNING d.consumer
), letters AS (
    UPDATE {schema}.dead_letters AS d SET idempotency_key = NULL, error = '', payload = NULL, has_payload = true,
        headers = NULL, message_id = NULL, record_key = NULL, ordering_key = NULL, state = 0,
        due_at = NULL, taken_at = NULL, taken_by = NULL, taken_login = NULL,
        identity = pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), loss_accepted_at = pg_catalog.now(),
        loss_accepted_by = $3::text
    FROM asked WHERE d.consumer = asked.consumer AND d.key_id = asked.key_id AND NOT (d.state <> 0::int2 AND d.due_by IS NULL)
    RETURNING d.consumer
), waiting AS (
    DELETE FROM {schema}.inbox AS i USING asked
    WHERE i.consumer = asked.consumer AND i.idempotency_key = $1::text RETURNING i.consumer
), trail AS (
    UPDATE {schema}.audit SET idempotency_key = NULL WHERE idempotency_key = $1::text RETURNING consumer
), emptied AS (
    INSERT INTO {schema}.controls AS c (consumer, epoch) SELECT DISTINCT consumer, 1 FROM records ORDER BY consumer
    ON CONFLICT (consumer) DO UPDATE SET epoch = (c.epoch + 1) % 1099511627776
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT DISTINCT $3::text, 'erase', consumer, pg_catalog.format('key id %s: %s', {schema}.key_id($1::text), $4::text)
    FROM (TABLE records UNION TABLE results UNION TABLE forgotten UNION TABLE counts UNION TABLE letters UNION TABLE put_aside UNION TABLE waiting
        UNION TABLE trail) AS erased
)
SELECT (SELECT pg_catalog.count(*) FROM records) + (SELECT pg_catalog.count(*) FROM results) + (SELECT pg_catalog.count(*) FROM forgotten) + (SELECT pg_catalog.count(*) FROM counts)
    + (SELECT pg_catalog.count(*) FROM letters) + (SELECT pg_catalog.count(*) FROM put_aside) + (SELECT pg_catalog.count(*) FROM waiting) + (SELECT pg_catalog.count(*) FROM trail)";

/// What takes long: every dead letter of the consumer is read.
pub(crate) const SEARCHING: &str = "looking for the key in the dead letters of other messages";
/// One transaction.
pub(crate) const ERASING: &str = "erasing the key";

/// What a key comes to that is in progress.
const NOT_ERASED: &str = "the key cannot be erased";

pub(crate) async fn run(mut database: Database, erase: &Erase) -> Result<Report, Failure> {
    let key = erase.of.recorded(&erase.key)?;
    let consumer = erase.consumer.as_deref();
    if let Some(consumer) = consumer {
        database.known(consumer).await?;
    }
    database.at_rest(consumer, &key).await.map_err(|failure| failure.so(NOT_ERASED))?;
    let binds = [Bind::Text(&key), Bind::TextOr(consumer)];
    let count = database.number(&COUNT.replace("{asked}", ASKED), &binds).await?;
    let inbox = database.number(&INBOX.replace("{asked}", ASKED), &binds).await?;
    let senders_key = erase.of.senders_key(&erase.key, &key);
    let id = event_id(&key);
    let holding = [binds[0], binds[1], Bind::Text(&senders_key), Bind::Text(&id)];
    let waiting = database.number(&EVENTS.replace("{caused}", CAUSED), &holding[..3]).await?;
    let of_id = database.table(&OF_ID.replace("{caused}", CAUSED), &holding).await?;
    let forms = forms([&key, &senders_key]);
    let held_by = [binds[0], binds[1], Bind::Texts(&forms)];
    let letters = beside_one(SEARCHING, database.number(OTHERS_LETTERS, &held_by)).await?;
    let elsewhere = Elsewhere { of_id, waiting, letters };
    if count + inbox == 0 {
        return Ok(elsewhere.of_none(&key));
    }
    confirm(&warning(count, inbox), erase.yes.yes)?;
    let by = database.by.clone();
    let binds = [binds[0], binds[1], Bind::Text(&by), Bind::Text(&erase.reason)];
    let erased = beside_one(ERASING, database.act(&ERASE.replace("{asked}", ASKED), &binds)).await?;
    Ok(elsewhere.beside(told(erased)))
}

/// How keys stand in the headers and payloads of other messages: as a text in JSON, and as one in a header that is JSON itself.
pub(crate) fn forms(keys: [&str; 2]) -> Vec<String> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let of_key = |key| {
        let once = quoted(key);
        let twice = quoted(&once);
        [twice[1..twice.len() - 1].to_owned(), once]
    };
    keys.map(of_key).concat()
}

pub(crate) fn warning(count: i64, inbox: i64) -> String {
    let blanked = format!(
        "This blanks the key's text, payloads, answers and errors in {count} rows for good. Ids and hashes stay, so that redeliveries \
         are still skipped"
    );
    match inbox {
        0 => blanked,
        _ => format!("{blanked}. It removes {inbox} messages that wait in the inbox, and they are never handled"),
    }
}

pub(crate) fn told(erased: i64) -> String {
    format!("{erased} rows erased. Logs, the broker's own copies and your tables are yours to look after.")
}

/// The id that a text says where it is the name of an event, as `idem outbox list` prints it; otherwise the text.
pub(crate) fn event_id(key: &str) -> String {
    key.parse().map_or_else(|_| key.to_owned(), |event: EventName| event.key.to_string())
}

/// Whether it may be the id of an event that idem has derived, or its name.
fn is_like_an_event(key: &str) -> bool {
    let is_derived = |id: Uuid| matches!(id.get_version_num(), 5 | 8);
    event_id(key) != key || key.parse().is_ok_and(is_derived)
}

/// The events and dead letters that hold a key, and that no erasure blanks: they are effects, and a person who was erased may have
/// been paid.
pub(crate) struct Elsewhere {
    /// `event` and `destination` of events whose own id it is.
    pub(crate) of_id: Table,
    pub(crate) waiting: i64,
    pub(crate) letters: i64,
}

impl Elsewhere {
    pub(crate) fn beside(&self, mut told: String) -> Report {
        for event in self.of_id.rows() {
            let (name, destination) = (event.text("event"), event.text("destination"));
            told += &format!(
                " It is the id of an event that waits for {destination}, {name}, which goes once it is sent, or by `idem outbox skip`. \
                 The key of a person may be that of the message that has caused it: `idem outbox show {name} --payload` has it as \
                 idemcausedby."
            );
        }
        if self.waiting > 0 {
            told += &format!(
                " Of the events that it has caused, {} wait in the outbox, with the key in their headers and their payload: they go \
                 once they are sent, or by `idem outbox skip`.",
                self.waiting
            );
        }
        if self.letters > 0 {
            told += &format!(
                " Of the messages that it has caused, {} are dead letters, with the key in their headers or their payload: replay \
                 what is still owed, and then remove them with `idem dead-letters drop`.",
                self.letters
            );
        }
        Report::said(told)
    }

    /// The same where no row holds it.
    pub(crate) fn of_none(&self, key: &str) -> Report {
        let mut told = "0 rows hold this key.".to_owned();
        if self.of_id.is_empty() && self.waiting == 0 && is_like_an_event(key) {
            told += " If it is the id of an event that was sent, nothing of that is left here: erase the key of the message that has \
                     caused it, which its receivers have as idemcausedby.";
        }
        self.beside(told)
    }
}

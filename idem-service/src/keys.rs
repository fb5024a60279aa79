//! Where keys come from, as `Service::key` says it.

use std::sync::Arc;

use idem_core::key::{
    Agree, CloudEvent, FirstOf, Header, Join, JsonMember, KEY_FIELD, KeySource, MessageId, MessageType, RecordKey,
};

/// How deep joins may stand in joins.
const JOINS_MAX: usize = 8;

const RULES: &str = "it must be header:NAME, json:/POINTER, record-key, cloudevents, message-id, type or join(A,B)";

/// One rule of [`Service::key`](crate::Service::key), such as `join(header:tenant,json:/order/id)`, for programs that take such rules themselves. The
/// [`rule`](KeySource::rule) of the result is the same text.
///
/// # Errors
/// A text that describes the form of a rule.
pub fn key(text: &str) -> Result<Arc<dyn KeySource>, String> {
    nested(text, JOINS_MAX)
}

fn nested(text: &str, joins: usize) -> Result<Arc<dyn KeySource>, String> {
    if let Some(pair) = text.strip_prefix("join(").and_then(|rest| rest.strip_suffix(')')) {
        let joins = joins.checked_sub(1).ok_or("it has too many joins in each other")?;
        let (first, second) = pair_of(pair).ok_or("join takes two rules with a comma between them: join(A,B)")?;
        return Ok(Arc::new(Join(nested(first, joins)?, nested(second, joins)?)));
    }
    if let Some(name) = text.strip_prefix("header:") {
        return if name.is_empty() {
            Err("the header has no name".to_owned())
        } else {
            Ok(Arc::new(Header::new(name)))
        };
    }
    if let Some(pointer) = text.strip_prefix("json:") {
        let member = JsonMember::at(pointer).ok_or("it needs a JSON pointer, such as json:/order/id")?;
        return Ok(Arc::new(member));
    }
    match text {
        "record-key" => Ok(Arc::new(RecordKey)),
        "cloudevents" => Ok(Arc::new(CloudEvent)),
        "message-id" => Ok(Arc::new(MessageId)),
        "type" => Ok(Arc::new(MessageType)),
        _ => Err(RULES.to_owned()),
    }
}

/// Splits at the one comma that stands in no inner join. With another comma, in a header's name say, it would not be
/// known where the first rule ends.
fn pair_of(text: &str) -> Option<(&str, &str)> {
    let (mut depth, mut comma) = (0_usize, None);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 && comma.replace(index).is_some() => return None,
            _ => {}
        }
    }
    comma.filter(|_| depth == 0).map(|index| (&text[..index], &text[index + 1..]))
}

/// # Errors
/// One line about the first of these rules that has another form.
pub(crate) fn of(rules: &[String]) -> Result<Arc<dyn KeySource>, String> {
    let read = rules.iter().map(|rule| key(rule).map_err(|why| format!("the rule {rule:?} of keys is wrong: {why}")));
    Ok(chain(read.collect::<Result<_, _>>()?))
}

/// The first rule that a message has a key for. Without any rule: the header and the member `idempotencykey`, which
/// must agree where both are present.
pub(crate) fn chain(mut rules: Vec<Arc<dyn KeySource>>) -> Arc<dyn KeySource> {
    if rules.is_empty() {
        return Arc::new(Agree(vec![Arc::new(Header::new(KEY_FIELD)), Arc::new(JsonMember::field(KEY_FIELD))]));
    }
    if rules.len() == 1 { rules.remove(0) } else { Arc::new(FirstOf(rules)) }
}

#[cfg(test)]
mod tests {
    use idem_core::Message;

    use super::*;

    #[test]
    fn each_rule_is_read_as_it_is_written() {
        for text in [
            "header:Idempotency-Key",
            "header:a,b",
            "json:/order/id",
            "record-key",
            "cloudevents",
            "message-id",
            "type",
            "join(type,header:idempotencykey)",
            "join(header:tenant,json:/id)",
            "join(join(record-key,message-id),header:x)",
            "join(record-key,join(message-id,header:x))",
        ] {
            assert_eq!(key(text).unwrap().rule(), text);
        }
    }

    /// S10: no text makes it panic, and a rule that is read is written as it was. The seed is printed where it fails.
    #[test]
    fn s10_rules_of_any_shape_are_read_as_written_or_refused() {
        let seed = idem_testkit::seed();
        let mut state = seed;
        let mut below = |count: usize| {
            // Knuth's MMIX; any mixing does.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % count
        };
        let parts = ["join(", ")", ",", "header:", "a", "json:/", "~1", "record-key", "type", "cloudevents", "é", "\0"];
        for _ in 0..50_000 {
            let text: String = (0..below(9)).map(|_| parts[below(parts.len())]).collect();
            if let Ok(source) = key(&text) {
                assert_eq!(source.rule(), text, "seed {seed}");
                let _ = source.key(&Message::new("{}").with_header("a", "k"));
            }
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        let deep = format!("{}record-key{}", "join(record-key,".repeat(9), ")".repeat(9));
        for text in [
            "",
            "header",
            "header:",
            "json:",
            "json:id",
            "json:/a~2",
            "Record-Key",
            "record-key ",
            "join()",
            "join(record-key)",
            "join(record-key,)",
            "join(,record-key)",
            "join(record-key,message-id,cloudevents)",
            "join(header:a,b,record-key)",
            "join(record-key,message-id",
            "join(record-key,message-id))",
            "join(header:),record-key)",
            &deep,
        ] {
            assert!(key(text).is_err(), "{text}");
        }
    }

    #[test]
    fn without_a_rule_header_and_member_must_agree_and_with_rules_the_first_wins() {
        let message = || Message::new(r#"{"idempotencykey":"b","id":"c"}"#).with_header(KEY_FIELD, "a");
        let both = chain(Vec::new());
        assert_eq!(both.rule(), "header:idempotencykey&json:/idempotencykey");
        assert!(both.key(&message()).is_err());
        let rules = ["header:absent", "json:/id", "header:idempotencykey"].map(|rule| key(rule).unwrap());
        let first = chain(rules.to_vec()).key(&message()).unwrap().unwrap();
        assert_eq!(first.as_str(), "c");
        assert_eq!(chain(vec![key("record-key").unwrap()]).rule(), "record-key");
    }
}

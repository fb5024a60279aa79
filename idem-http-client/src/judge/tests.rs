use std::time::SystemTime;

use super::*;

fn answered(profile: &Profile, status: u16, headers: &[(&str, &str)], body: &'static str) -> Judged {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    judge(profile, &response.body(Bytes::from_static(body.as_bytes())).expect("a response"))
}

fn meaning(profile: &Profile, status: u16, headers: &[(&str, &str)], body: &'static str) -> Meaning {
    answered(profile, status, headers, body).meaning
}

fn idem() -> Profile {
    Profile::idem(Duration::from_secs(3_600), "")
}

/// W31: two conflicts with one status are distinguished by their content: one is tried again, the other never.
#[test]
fn w31_conflicts_are_told_apart_by_what_they_say() {
    let idem = idem();
    let reason = |reason: &str| -> &'static str {
        format!(r#"{{"code":"ERR409_SERVER_STATE_CONFLICT","reason":"{reason}"}}"#).leak()
    };
    assert_eq!(meaning(&idem, 409, &[("retry-after", "1")], reason("IDEMPOTENCY_IN_PROGRESS")), Meaning::InProgress);
    assert_eq!(meaning(&idem, 409, &[], reason("CONFLICTING_IDEMPOTENT_REQUEST")), Meaning::KeyReused);
    assert_eq!(meaning(&idem, 409, &[], reason("ACCOUNT_CLOSED")), Meaning::Refused);
    assert_eq!(meaning(&idem, 409, &[("retry-after", "1")], ""), Meaning::InProgress);
    assert_eq!(meaning(&idem, 409, &[], ""), Meaning::Refused);
    let kind = |kind: &str| -> &'static str { format!(r#"{{"type":"https://idem.example/problems/{kind}"}}"#).leak() };
    assert_eq!(meaning(&idem, 409, &[], kind("answer-not-kept")), Meaning::AnswerGone);
    assert_eq!(meaning(&idem, 422, &[], kind("idempotency-key-reused")), Meaning::KeyReused);
    assert_eq!(meaning(&idem, 422, &[], kind("insufficient-funds")), Meaning::Refused);
    assert_eq!(meaning(&idem, 409, &[], reason("IDEMPOTENT_ANSWER_NOT_KEPT")), Meaning::AnswerGone);
    assert_eq!(meaning(&idem, 503, &[("retry-after", "1")], kind("failed-for-now")), Meaning::NotYet);
    assert_eq!(meaning(&idem, 503, &[("retry-after", "5")], kind("paused")), Meaning::NotYet);
    assert_eq!(meaning(&idem, 503, &[("retry-after", "1")], kind("overloaded")), Meaning::NotYet);
    assert_eq!(meaning(&idem, 408, &[("retry-after", "1")], kind("body-late")), Meaning::NotYet);
    assert_eq!(meaning(&idem, 408, &[], ""), Meaning::Failed, "a proxy's may come after the request was handed on");
    assert_eq!(meaning(&idem, 503, &[("retry-after", "1")], kind("unavailable")), Meaning::Failed);
    assert_eq!(meaning(&idem, 503, &[("retry-after", "1")], kind("not-comparable")), Meaning::Failed);
    assert_eq!(meaning(&idem, 500, &[], kind("failed")), Meaning::NotTaken);
    assert_eq!(meaning(&idem, 500, &[], kind("unprotected")), Meaning::KeptFailure, "it may have been done");
}

/// W31: the draft's own 409 has neither a time to wait nor a word that is known: the first try may still run.
#[test]
fn w31_a_bare_conflict_of_the_draft_is_no_refusal() {
    let ietf = Profile::ietf(Duration::from_secs(3_600));
    let example = r#"{"type":"https://developer.example.com/idempotency","title":"A request is outstanding for this Idempotency-Key"}"#;
    assert_eq!(meaning(&ietf, 409, &[], example), Meaning::InProgress);
    assert_eq!(meaning(&ietf, 409, &[], ""), Meaning::InProgress);
    assert_eq!(meaning(&ietf, 422, &[], ""), Meaning::Refused);
}

/// W32: an answer that a provider stores is not asked for again and again; one that it marks for another try is.
#[test]
fn w32_stripe_says_itself_what_may_be_tried_again() {
    let stripe = Profile::stripe();
    assert_eq!(meaning(&stripe, 500, &[], "{}"), Meaning::KeptFailure);
    assert_eq!(meaning(&stripe, 500, &[("stripe-should-retry", "true")], "{}"), Meaning::Failed);
    assert_eq!(meaning(&stripe, 503, &[], ""), Meaning::Failed);
    assert_eq!(meaning(&stripe, 503, &[("stripe-should-retry", "false")], ""), Meaning::KeptFailure);
    assert_eq!(meaning(&stripe, 409, &[], r#"{"error":{"code":"idempotency_key_in_use"}}"#), Meaning::InProgress);
    assert_eq!(meaning(&stripe, 400, &[], r#"{"error":{"type":"idempotency_error"}}"#), Meaning::KeyReused);
    assert_eq!(meaning(&stripe, 402, &[], r#"{"error":{"type":"card_error"}}"#), Meaning::Refused);
    assert_eq!(meaning(&stripe, 429, &[], ""), Meaning::NotYet);
    assert_eq!(answered(&stripe, 200, &[("idempotent-replayed", "true")], "").replayed, Some(true));
    assert_eq!(answered(&stripe, 200, &[("idempotent-replayed", "false")], "").replayed, Some(false));
    assert_eq!(answered(&stripe, 200, &[], "").replayed, None);
}

/// W32: Adyen's failures may be tried again where it says so, and its "already processed" is no refusal.
#[test]
fn w32_adyens_already_processed_is_no_refusal() {
    let adyen = Profile::adyen();
    assert_eq!(meaning(&adyen, 500, &[], ""), Meaning::KeptFailure);
    assert_eq!(meaning(&adyen, 500, &[("transient-error", "true")], ""), Meaning::Failed);
    assert_eq!(meaning(&adyen, 422, &[], r#"{"errorCode":"704"}"#), Meaning::InProgress);
    assert_eq!(meaning(&adyen, 422, &[], r#"{"errorCode":"130"}"#), Meaning::Refused);
    assert_eq!(meaning(&adyen, 429, &[("transient-error", "true")], ""), Meaning::NotYet);
}

#[test]
fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
    let idem = idem();
    let after = |text: &str| answered(&idem, 503, &[("retry-after", text)], "").after;
    assert_eq!(after("7"), Some(Duration::from_secs(7)));
    assert_eq!(after(&httpdate::fmt_http_date(SystemTime::UNIX_EPOCH)), Some(Duration::ZERO));
    let in_a_minute = after(&httpdate::fmt_http_date(wall_clock() + Duration::from_secs(60)));
    assert!(in_a_minute.is_some_and(|after| after > Duration::from_secs(57) && after <= Duration::from_secs(60)));
    assert_eq!(after("soon"), None);
}

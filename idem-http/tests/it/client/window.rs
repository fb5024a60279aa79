//! A provider that forgets.

use std::time::{Duration, SystemTime};

use idem_http::client::{Ended, Intent, KeyPlace, Profile, Undecided};

use super::{
    ends::{HOUR, client, in_doubt, quick, request, sent},
    provider::{Act, Provider},
};

const MEMORY: Duration = Duration::from_secs(2);

fn remembers(memory: Duration) -> Profile {
    let key = http::HeaderName::from_static("idempotency-key");
    Profile::new("forgetful", KeyPlace::Header(key), memory).with_margin(Duration::from_millis(500))
}

/// A provider that charges, loses the answer, and is out of order until it has forgotten the key.
async fn forgetful() -> Provider {
    let out_of_order = Act::BusyUntil(MEMORY + Duration::from_millis(300));
    Provider::that_forgets_after(MEMORY, [Act::ChargeAndCut, out_of_order]).await
}

/// W35: the tries end before the provider may have forgotten the key; one that goes on charges twice.
#[tokio::test]
async fn w35_nothing_is_sent_once_the_provider_may_have_forgotten() {
    let provider = forgetful().await;
    let patient = quick().tries_max(1_000);
    let intent = Intent::of("order-4711", "charge");
    let ended = client(remembers(MEMORY)).retries(patient).send(&intent, request(&provider)).await.unwrap();
    let doubt = in_doubt(ended);
    assert_eq!((doubt.why, provider.charges().len()), (Undecided::Memory, 1));
    assert!(doubt.tries > 5 && doubt.to_string().contains("do not send it again"), "{doubt}");
    assert!(provider.seen().iter().all(|seen| seen.at < MEMORY));
    // The same provider, of which it is believed that it remembers for an hour.
    let provider = forgetful().await;
    let ended = client(remembers(HOUR)).retries(patient).send(&intent, request(&provider)).await.unwrap();
    assert!(matches!(ended, Ended::Known(_)));
    assert_eq!(provider.charges().len(), 2, "this is what the memory is for");
}

/// W35: the memory counts from the first try, whichever process made it, and a try that hangs is cut off in time.
#[tokio::test]
async fn w35_the_memory_counts_from_the_first_try() {
    #[allow(clippy::disallowed_methods, reason = "the time of another process's try")]
    let now = SystemTime::now();
    let provider = Provider::new([]).await;
    let parked = Intent::of("order-4711", "charge").first_tried_at(now - Duration::from_secs(60 * 60 * 24));
    let doubt = in_doubt(client(Profile::stripe()).send(&parked, request(&provider)).await.unwrap());
    assert_eq!((doubt.why, doubt.tries, provider.seen().len()), (Undecided::Memory, 0, 0));
    // A clock that is behind does not make an old key a young one.
    let ahead = Intent::of("order-4711", "charge").first_tried_at(now + Duration::from_secs(2 * 3_600));
    let doubt = in_doubt(client(Profile::stripe()).send(&ahead, request(&provider)).await.unwrap());
    assert_eq!((doubt.why, doubt.tries, provider.seen().len()), (Undecided::Clock, 0, 0));
    let provider = Provider::new([Act::ChargeAndHang]).await;
    let young = remembers(Duration::from_millis(1_000));
    let patient = quick().try_within(HOUR).deadline(HOUR);
    let began = tokio::time::Instant::now();
    let intent = Intent::of("order-4711", "charge");
    let doubt = in_doubt(client(young).retries(patient).send(&intent, request(&provider)).await.unwrap());
    assert_eq!((doubt.why, provider.seen().len()), (Undecided::Memory, 1));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// W35: an intent that is parked until the window is over is found by asking, where the server can be asked.
#[tokio::test]
async fn w35_what_may_not_be_sent_may_still_be_asked_about() {
    #[allow(clippy::disallowed_methods, reason = "the time of another process's try")]
    let long_ago = SystemTime::now() - HOUR;
    let provider = Provider::new([]).await;
    provider.tells(r#"{"state":"completed","status":201,"location":"/t/1"}"#);
    let intent = Intent::of("order-4711", "charge").first_tried_at(long_ago);
    let doubt = in_doubt(client(Profile::idem(HOUR, "")).send(&intent, request(&provider)).await.unwrap());
    assert_eq!((doubt.why, doubt.state.unwrap().location.as_deref()), (Undecided::Memory, Some("/t/1")));
    assert!(provider.seen().iter().all(|seen| seen.method == http::Method::GET));
    assert!(matches!(sent(&provider, Profile::idem(HOUR, "")).await, Ended::Known(_)));
}

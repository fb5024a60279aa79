//! A provider that forgets.

use std::time::{Duration, SystemTime};

use idem_http_client::{Ended, Intent, KeyPlace, Profile, Retries, Undecided};

use super::{
    ends::{HOUR, client, in_doubt, request, sent},
    provider::{Act, Provider},
};

/// So long that the time that this machine's clock adds to the test's does not count.
const MEMORY: Duration = Duration::from_secs(2_000);
const MARGIN: Duration = Duration::from_secs(500);

fn patient() -> Retries {
    let (first, max) = (Duration::from_secs(5), Duration::from_secs(50));
    Retries::default().first(first).max(max).try_within(HOUR).deadline(10 * HOUR).tries_max(1_000)
}

fn remembers(memory: Duration) -> Profile {
    let key = http::HeaderName::from_static("idempotency-key");
    Profile::new("forgetful", KeyPlace::Header(key), memory).with_margin(MARGIN)
}

/// A provider that charges, loses the answer, and is out of order until it has forgotten the key.
fn forgetful() -> Provider {
    let out_of_order = Act::BusyUntil(MEMORY + Duration::from_secs(300));
    Provider::that_forgets_after(MEMORY, [Act::ChargeAndCut, out_of_order])
}

/// W35: the tries end before the provider may have forgotten the key; one that goes on charges twice.
#[tokio::test(start_paused = true)]
async fn w35_nothing_is_sent_once_the_provider_may_have_forgotten() {
    let provider = forgetful();
    let intent = Intent::of("order-4711", "charge");
    let ended = client(&provider, remembers(MEMORY)).retries(patient()).send(&intent, request()).await.unwrap();
    let doubt = in_doubt(ended);
    assert_eq!((doubt.why, provider.charges().len()), (Undecided::Memory, 1));
    assert!(doubt.tries > 5 && doubt.to_string().contains("do not send it again"), "{doubt}");
    assert!(provider.seen().iter().all(|seen| seen.at < MEMORY));
    // The same provider, of which it is believed that it remembers for an hour.
    let provider = forgetful();
    let ended = client(&provider, remembers(HOUR)).retries(patient()).send(&intent, request()).await.unwrap();
    assert!(matches!(ended, Ended::Known(_)));
    assert_eq!(provider.charges().len(), 2, "this is what the memory is for");
}

/// W35: the memory counts from the first try, whichever process made it, and a try that hangs is cut off in time.
#[tokio::test(start_paused = true)]
async fn w35_the_memory_counts_from_the_first_try() {
    #[allow(clippy::disallowed_methods, reason = "the time of another process's try")]
    let now = SystemTime::now();
    let provider = Provider::new([]);
    let parked = Intent::of("order-4711", "charge").first_tried_at(now - Duration::from_secs(60 * 60 * 24));
    let doubt = in_doubt(client(&provider, Profile::stripe()).send(&parked, request()).await.unwrap());
    assert_eq!((doubt.why, doubt.tries, provider.seen().len()), (Undecided::Memory, 0, 0));
    // A clock that is behind does not make an old key a young one.
    let ahead = Intent::of("order-4711", "charge").first_tried_at(now + Duration::from_secs(2 * 3_600));
    let doubt = in_doubt(client(&provider, Profile::stripe()).send(&ahead, request()).await.unwrap());
    assert_eq!((doubt.why, doubt.tries, provider.seen().len()), (Undecided::Clock, 0, 0));
    let provider = Provider::new([Act::ChargeAndHang]);
    let young = remembers(Duration::from_secs(1_000));
    let began = tokio::time::Instant::now();
    let intent = Intent::of("order-4711", "charge");
    let doubt = in_doubt(client(&provider, young).retries(patient()).send(&intent, request()).await.unwrap());
    assert_eq!((doubt.why, provider.seen().len()), (Undecided::Memory, 1));
    // The memory less the margin, by the test's clock.
    assert!((400..=500).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

/// W122: a pause may last longer than it was to, as where the machine is suspended in it. What was known before it of the time that is left
/// counts no more.
#[tokio::test(start_paused = true)]
async fn w122_a_pause_that_lasted_too_long_is_followed_by_no_try() {
    let provider = Provider::that_forgets_after(MEMORY, [Act::ChargeAndCut]);
    let (client, intent) =
        (client(&provider, remembers(MEMORY)).retries(patient()), Intent::of("order-4711", "charge"));
    let suspended = async {
        while provider.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(MEMORY + Duration::from_secs(1)).await;
    };
    let (ended, ()) = tokio::join!(client.send(&intent, request()), suspended);
    let doubt = in_doubt(ended.unwrap());
    assert_eq!((doubt.why, doubt.tries, provider.charges().len()), (Undecided::Memory, 1, 1));
}

/// W35: an intent that is parked until the window is over is found by asking, where the server can be asked.
#[tokio::test(start_paused = true)]
async fn w35_what_may_not_be_sent_may_still_be_asked_about() {
    #[allow(clippy::disallowed_methods, reason = "the time of another process's try")]
    let long_ago = SystemTime::now() - HOUR;
    let provider = Provider::new([]);
    provider.tells(r#"{"state":"completed","status":201,"location":"/t/1"}"#);
    let intent = Intent::of("order-4711", "charge").first_tried_at(long_ago);
    let doubt = in_doubt(client(&provider, Profile::idem(HOUR, "")).send(&intent, request()).await.unwrap());
    assert_eq!((doubt.why, doubt.state.unwrap().location.as_deref()), (Undecided::Memory, Some("/t/1")));
    assert!(provider.seen().iter().all(|seen| seen.method == http::Method::GET));
    assert!(matches!(sent(&provider, Profile::idem(HOUR, "")).await, Ended::Known(_)));
}

/// W35: a server that says until when it knows the key may be asked for the answer once more, because nothing can run there. W156: that
/// holds where it says of which operation; what it knows of another one with this key says nothing.
#[tokio::test(start_paused = true)]
async fn w35_what_the_server_knows_for_longer_is_fetched() {
    #[allow(clippy::disallowed_methods, reason = "the time of another process's try")]
    let long_ago = SystemTime::now() - HOUR;
    let parked = Intent::of("order-4711", "charge").first_tried_at(long_ago);
    for (told, is_known) in [
        (
            r#"{"route":"POST /charges","state":"completed","status":201,"key_expires":"2999-01-01T00:00:00.000Z"}"#,
            true,
        ),
        (r#"{"route":"POST /charges","state":"failed","status":422,"key_expires":"2999-01-01T00:00:00.000Z"}"#, true),
        // Nothing was done, or may not be known any more.
        (r#"{"route":"POST /charges","state":"unknown","key_expires":"2999-01-01T00:00:00.000Z"}"#, false),
        (
            r#"{"route":"POST /charges","state":"completed","status":201,"key_expires":"2001-01-01T00:00:00.000Z"}"#,
            false,
        ),
        (r#"{"route":"POST /charges","state":"completed","status":201,"key_expires":null}"#, false),
        // Perhaps of another operation.
        (r#"{"state":"completed","status":201,"key_expires":"2999-01-01T00:00:00.000Z"}"#, false),
    ] {
        let provider = Provider::new([]);
        assert!(matches!(sent(&provider, Profile::idem(HOUR, "")).await, Ended::Known(_)));
        provider.tells(told);
        let ended = client(&provider, Profile::idem(HOUR, "")).send(&parked, request()).await.unwrap();
        match ended {
            Ended::Known(answer) => assert!(is_known && answer.replayed, "{told}"),
            Ended::Indeterminate(doubt) => assert!(!is_known && doubt.why == Undecided::Memory, "{told}: {doubt}"),
            Ended::Refused(..) => panic!("{told}"),
        }
        assert_eq!(provider.charges().len(), 1, "{told}");
    }
}

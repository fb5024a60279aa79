//! Requests that share transactions, in bad company: what befalls one of them is not the others'.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use idem_core::{ConsumerName, ControlState, Store as _, Tenant, store::Bookkeeping as _};
use idem_http::HashSecret;

use super::{
    grounds::Ground,
    shared::{Service, gates, held, route, statuses},
    support::{Runs, builder, builder_without_secret, request, send},
};

/// W84: the clients of the request that leads and of the one that fails are gone. The others run alone, and so does the one that has no client.
pub(crate) async fn w84_a_failure_without_its_client_is_its_own<G: Ground>() {
    for failing in ["error", "panic"] {
        let service = Service::<G>::new().await;
        let mut all = service.held([request("a", "one"), held(request("b", failing), 1), request("c", "three")]).await;
        service.gates[0].open();
        assert_eq!(all.remove(0).await.status, 201);
        service.gates[1].arrived(1).await;
        drop(all.remove(1));
        drop(all.remove(0));
        service.gates[1].open();
        assert_eq!(all.remove(0).await.status, 201, "{failing}");
        let gone = send::<G>(&service.route, request("a", "one")).await;
        assert_eq!((gone.status, gone.is_replayed()), (201, Some(true)), "{failing}: {gone:?}");
        let failed = send::<G>(&service.route, request("b", failing)).await;
        assert!((500..504).contains(&failed.status), "{failing}: {failed:?}");
        assert_eq!(service.ground.paid().await, ["first", "one", "three"], "{failing}");
    }
}

/// W85: a conflict with a record of another instance, a copy of one, a failure and a new request in one transaction.
pub(crate) async fn w85_a_conflict_in_failing_company_is_its_own<G: Ground>() {
    let service = Service::<G>::new().await;
    assert_eq!(send::<G>(&service.route, request("k", "one")).await.status, 201);
    let there = builder(&service.ground).lanes(1).wait_for_owner(Duration::from_secs(20)).build().unwrap();
    there.start().await.unwrap();
    let gates = gates();
    let there = Service { route: route::<G>(&there, &service.runs, &gates), gates, ..service };
    let all = [request("k", "other"), request("e", "error"), request("m", "four"), request("n", "final")];
    let seen = there.together(all).await;
    let own = statuses(&seen);
    assert_eq!((own[0], own[2], own[3]), (422, 201, 422), "{seen:?}");
    assert!((500..504).contains(&own[1]), "{seen:?}");
    assert!(seen[0].json()["type"].as_str().unwrap().ends_with("#key-reused"), "{seen:?}");
    assert_eq!(there.ground.paid().await, ["first", "four", "one"]);
}

/// W85: two instances have the same keys in hand at once, in opposite order, each several to a transaction: no deadlock, and each key has one
/// effect and one answer.
pub(crate) async fn w85_two_instances_with_the_same_keys_at_once<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::<Runs>::default());
    let lanes = if ground.store().capabilities().waits_per_key { 2 } else { 1 };
    let mut instances = Vec::new();
    for _ in 0..2 {
        let payments = builder(&ground).lanes(lanes).wait_for_owner(Duration::from_secs(60)).build().unwrap();
        payments.start().await.unwrap();
        instances.push(route::<G>(&payments, &runs, &gates()));
    }
    let keys: Vec<String> = (0..40).map(|number| format!("k-{number:02}")).collect();
    let forth = keys.iter().map(|key| (&instances[0], key));
    let back = keys.iter().rev().map(|key| (&instances[1], key));
    let sent: Vec<_> = forth
        .zip(back)
        .flat_map(|(one, other)| [one, other])
        .map(|(route, key)| (key, tokio::spawn(send::<G>(route, request(key, key)))))
        .collect();
    let mut of = BTreeMap::<_, Vec<_>>::new();
    for (key, one) in sent {
        of.entry(key).or_default().push(one.await.unwrap());
    }
    for (key, both) in of {
        let [one, other] = &both[..] else { panic!("{key}: {both:?}") };
        assert_eq!((one.status, other.status, &one.body), (201, 201, &other.body), "{key}: {both:?}");
        assert_ne!(one.is_replayed(), other.is_replayed(), "{key}: {both:?}");
    }
    assert_eq!(ground.paid().await, keys);
}

/// W131: a pause comes while requests wait for company. None of them begins, what was done is answered, and they run once it is over.
pub(crate) async fn w131_a_pause_meets_those_who_wait_for_company<G: Ground>() {
    let service = Service::<G>::new().await;
    let done = send::<G>(&service.route, request("done", "zero")).await;
    let (store, name) = (service.ground.store(), ConsumerName::new("payments").unwrap());
    let scope = store.bookkeeping().scope(&name, &Tenant::default()).await.unwrap();
    let control = async |state| {
        store.bookkeeping().set_control(scope, state, "ada", "the ledger is read only").await.unwrap();
        service.idempotency.engine().obey_control().await.unwrap();
    };
    let all = service.held([request("a", "one"), request("done", "zero"), request("b", "two")]).await;
    control(ControlState::Paused).await;
    let seen = service.answered(all).await;
    assert_eq!(statuses(&seen), [503, 201, 503], "{seen:?}");
    assert_eq!((&seen[1].body, seen[1].is_replayed()), (&done.body, Some(true)));
    assert!(seen[0].json()["type"].as_str().unwrap().ends_with("#paused"), "{seen:?}");
    assert_eq!((service.begun(), service.ground.paid().await), (2, vec!["first".to_owned(), "zero".to_owned()]));
    control(ControlState::Running).await;
    for (key, body) in [("a", "one"), ("b", "two")] {
        assert_eq!(send::<G>(&service.route, request(key, body)).await.status, 201);
    }
    assert_eq!(service.ground.paid().await, ["first", "one", "two", "zero"]);
}

/// W120: during a deploy of another secret a repeat that cannot be compared here shares a transaction with new requests.
pub(crate) async fn w120_what_cannot_be_compared_is_no_conflict_in_company<G: Ground>() {
    let service = Service::<G>::new().await;
    let secret = |number, secret: &[u8]| HashSecret::new(number, secret).unwrap();
    let newer = builder_without_secret(&service.ground)
        .hash_secret(secret(2, &[7; 32]))
        .hash_secret(secret(1, super::support::SECRET))
        .build()
        .unwrap();
    newer.start().await.unwrap();
    let there = route::<G>(&newer, &service.runs, &gates());
    assert_eq!(send::<G>(&there, request("k", "one")).await.status, 201);
    let seen = service.together([request("k", "one"), request("k-2", "two"), request("k", "other")]).await;
    assert_eq!(statuses(&seen), [503, 201, 503], "{seen:?}");
    for one in [&seen[0], &seen[2]] {
        assert!(one.json()["type"].as_str().unwrap().ends_with("#not-comparable"), "{one:?}");
    }
    assert_eq!(send::<G>(&there, request("k-2", "two")).await.is_replayed(), Some(true));
    assert_eq!(service.ground.paid().await, ["first", "one", "two"]);
}

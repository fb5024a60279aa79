use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn name(number: usize) -> String {
    format!("host-{number}")
}

/// Takes as many places as there are for this owner's hosts.
fn fill(places: &Places, owner: &str, hosts: usize, now: Instant) -> Vec<Place> {
    let tries = (0..hosts).flat_map(|host| [host; AT_ONCE]);
    tries.filter_map(|host| places.take(owner, &name(host), now).ok()).collect()
}

/// Ends a call without an answer, as if it had begun eight seconds ago.
fn hang(places: &Places, owner: &str, host: &str, now: Instant) {
    let place = places.take(owner, host, now).expect("a place");
    places.state().ended(place.number, true, now + 8 * SECOND);
}

#[test]
fn o113_an_owner_is_a_registrable_domain_or_an_address() {
    for (host, owner) in [
        ("a.customer.example", "customer.example"),
        ("b.a.customer.example.", "customer.example"),
        ("hooks.customer.co.uk", "customer.co.uk"),
        ("other.co.uk", "other.co.uk"),
        ("co.uk", "co.uk"),
        ("shop-1.myshopify.com", "shop-1.myshopify.com"),
        ("localhost", "localhost"),
        ("192.0.2.7", "192.0.2.7"),
        ("[2001:db8::7]", "[2001:db8::7]"),
    ] {
        assert_eq!(owner_of(host), owner);
    }
}

/// O113: however many names an owner has, it has so many places.
#[test]
fn o113_an_owner_has_its_places_whatever_hosts_it_has() {
    let (places, now) = (Places::default(), Instant::now());
    let taken = fill(&places, "customer", 32, now);
    assert_eq!(taken.len(), AN_OWNER);
    assert!(places.take("other", "host-0", now).is_ok(), "a host belongs to its owner");
    drop(taken);
    assert_eq!(fill(&places, "customer", 1, now).len(), A_HOST);
}

/// O113: a host whose last call hung has one place until it answers.
#[test]
fn o113_a_host_that_hung_has_one_place() {
    let (places, now) = (Places::default(), Instant::now());
    hang(&places, "customer", "host-0", now);
    let later = now + 10 * SECOND;
    let mut taken = fill(&places, "customer", 1, later);
    assert_eq!(taken.len(), 1);
    taken[0].ended(false);
    drop(taken);
    assert_eq!(fill(&places, "customer", 1, later).len(), A_HOST);
}

/// O114: neither slow hosts of many owners nor new ones can take every place.
#[test]
fn o114_slow_and_new_hosts_leave_places_for_those_that_answer_quickly() {
    let (places, now) = (Places::default(), Instant::now());
    let mut proven = places.take("proven", "host-0", now).expect("a place");
    places.state().ended(proven.number, false, now);
    proven.is_noted = true;
    drop(proven);
    let new: Vec<_> = (0..AT_ONCE).flat_map(|owner| fill(&places, &name(owner), 1, now)).collect();
    assert_eq!(new.len(), UNPROVEN);
    assert_eq!(fill(&places, "proven", 1, now).len(), A_HOST);
    drop(new);
    for owner in 0..AT_ONCE {
        hang(&places, &name(owner), "host-0", now);
    }
    let later = now + 10 * SECOND;
    let slow: Vec<_> = (0..AT_ONCE).flat_map(|owner| fill(&places, &name(owner), 2, later)).collect();
    assert_eq!(slow.len(), SLOW, "also by a new name of an owner whose host is slow");
    assert_eq!(fill(&places, "unknown", 1, later).len(), A_HOST);
    assert_eq!(fill(&places, "proven", 1, later).len(), A_HOST);
}

/// O114: a call that was begun while its host was quick counts as slow once it is.
#[test]
fn o114_a_call_becomes_slow_while_it_is_in_flight() {
    let (places, now) = (Places::default(), Instant::now());
    let slow: Vec<_> = (0..8).flat_map(|owner| fill(&places, &name(owner), 1, now)).collect();
    assert_eq!(slow.len(), SLOW);
    let later = now + 2 * SECOND;
    assert!(places.take(&name(0), "host-1", later).is_err(), "its owner is slow");
    assert!(places.take("unknown", "host-0", later).is_ok());
}

/// O113: names without an end are not remembered without an end, and a call in flight is not forgotten.
#[test]
fn o113_owners_and_hosts_are_remembered_up_to_a_bound() {
    let (places, now) = (Places::default(), Instant::now());
    let held = places.take("held", "host-0", now).expect("a place");
    for number in 0..2 * OWNERS_MAX {
        drop(places.take(&name(number), "host-0", now));
        drop(places.take("held", &name(number), now));
    }
    let state = places.state();
    assert!(state.owners.len() <= OWNERS_MAX && state.owners["held"].hosts.len() <= HOSTS_MAX);
    assert!(state.owners["held"].hosts.contains_key("host-0"));
    drop(state);
    drop(held);
}

//! Registration, bindings, hash rules, controls and the audit trail.

use std::{collections::HashSet, sync::Arc};

use idem_core::{
    ConsumerName, Decision, ErrorClass, Store, StoreError, Tenant,
    consumer::ConflictKind,
    dead_letter::Reason,
    hash::{HashRules, JsonMembers, RawPayload},
    standing::{Condition, Fact, rows},
    store::{AuditEntry, Bookkeeping, Claimed, ControlState, HashRuleId, Interned, Registration, ScopeId, UnitOfWork},
};

use super::{
    failures::letter,
    fixture::{Fixture, Kind, claim, decide, key_from, msg, options, process, registration, write},
    gate::within,
    subject::{Arrangement, HandlerAction, StoreUnderTest, taken_numbers},
};

/// A second start of the same consumer gets the same scope and rules, and a run of its own.
pub async fn registering_twice_gives_the_same_scope<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let first = fixture.register().await;
    let second = fixture.elsewhere().await.register().await;
    assert_eq!((first.scope, &first.hash_rules), (second.scope, &second.hash_rules));
    assert!(first.run < second.run);
}

/// Eight workers that start at once on an empty database are one consumer, with eight runs.
pub async fn workers_that_start_at_once_are_one_consumer<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&fixture.store);
            tokio::spawn(async move { store.bookkeeping().register(&registration("orders")).await })
        })
        .collect();
    let (mut scopes, mut runs) = (HashSet::new(), HashSet::new());
    for call in calls {
        let registered = within("registering at once", call).await.unwrap().unwrap();
        scopes.insert((registered.scope, registered.hash_rules));
        runs.insert(registered.run);
    }
    assert_eq!((scopes.len(), runs.len()), (1, 8));
}

/// B11, S2: every pair of consumer and tenant has a scope of its own, even if their names look the same side by side.
pub async fn every_consumer_and_tenant_has_a_scope_of_its_own<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let names = ["ab", "a", "A", "a ", "orders'; --", "é", "a/b", "a:b"];
    let tenants = ["c", "bc", "", "b/c", "C", "'"];
    let mut scopes = HashSet::new();
    for name in names {
        let registered = fixture.register_as(&registration(name)).await.unwrap();
        for tenant in tenants {
            let tenant = if tenant.is_empty() { Tenant::default() } else { Tenant::new(tenant).unwrap() };
            let consumer = ConsumerName::new(name).unwrap();
            let scope = fixture.store.bookkeeping().scope(&consumer, &tenant).await.unwrap();
            assert_eq!(fixture.store.bookkeeping().scope(&consumer, &tenant).await.unwrap(), scope);
            assert_eq!(scope == registered.scope, tenant == Tenant::default());
            assert!(scopes.insert(scope), "{name:?} {tenant:?}");
        }
    }
}

/// J63: an interned name has the number that follows from it, in any order of names: a server that has lost rows gives them the
/// numbers that running workers remember, and no others.
pub async fn j63_numbers_follow_from_names<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let number = |name: &str, tenant: &str| ScopeId(Interned::Scope.numbers(&[name, tenant]).next().unwrap());
    for name in ["orders", "billing"] {
        let registered = fixture.register_as(&registration(name)).await.unwrap();
        assert_eq!(registered.scope, number(name, ""));
        let rules: Vec<HashRuleId> = registration(name)
            .hash_rules
            .iter()
            .map(|rule| HashRuleId(Interned::HashRule.numbers(&[rule]).next().unwrap()))
            .collect();
        assert_eq!(registered.hash_rules, rules);
        for tenant in ["globex", "acme"] {
            let consumer = ConsumerName::new(name).unwrap();
            let scope = fixture.store.bookkeeping().scope(&consumer, &Tenant::new(tenant).unwrap()).await.unwrap();
            assert_eq!(scope, number(name, tenant));
        }
    }
}

/// J97: a client that chooses names can find some that have the numbers of another tenant. That tenant gets a later one, by which every
/// process knows it.
pub async fn j97_a_tenant_whose_numbers_are_taken_gets_a_later_one<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    fixture.register_as(&registration("orders")).await.unwrap();
    if !fixture.arrange(Arrangement::TakeNumbers).await {
        return;
    }
    let (orders, globex) = (ConsumerName::new("orders").unwrap(), Tenant::new("globex").unwrap());
    let scope = fixture.store.bookkeeping().scope(&orders, &globex).await.unwrap();
    assert!(!taken_numbers().contains(&scope), "{scope:?} is another tenant's");
    let next = Interned::Scope.numbers(&["orders", "globex"]).nth(taken_numbers().len()).unwrap();
    assert_eq!(scope, ScopeId(next), "the first number that is free");
    assert_eq!(fixture.elsewhere().await.store.bookkeeping().scope(&orders, &globex).await.unwrap(), scope);
    let own = registration("orders").tenant(globex);
    assert_eq!(fixture.elsewhere().await.register_as(&own).await.unwrap().scope, scope);
}

/// Registers `first`, then `second`, which must be refused with both values.
async fn is_bound<T: StoreUnderTest>(
    subject: &T,
    part: &str,
    first: Registration,
    second: Registration,
    values: [&str; 2],
) {
    let fixture = Fixture::new(subject);
    fixture.register_as(&first).await.unwrap();
    let error = fixture.elsewhere().await.register_as(&second).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Fatal);
    let StoreError::Bound { consumer, what, recorded, found } = &error else { panic!("{error:?}") };
    assert_eq!((consumer.as_str(), *what), ("orders", part));
    assert!(recorded.contains(values[0]) && found.contains(values[1]), "{recorded:?} {found:?}");
    let text = error.to_string();
    assert!(text.contains(values[0]) && text.contains(values[1]) && text.contains("rebind"), "{text}");
    assert_eq!(text.contains("another consumer name"), part != "hash rules", "another name forgets the keys: {text}");
    fixture.register_as(&first).await.unwrap_or_else(|error| panic!("a refused start changed the binding: {error}"));
}

/// A name is bound to its source: another queue under the same name is refused with both.
pub async fn another_source_is_refused_with_both_values<T: StoreUnderTest>(subject: &T) {
    let of = |source: &str| registration("orders").bound_to(Some(source.to_owned()));
    is_bound(subject, "source", of("kafka/a/orders"), of("kafka/b/orders"), ["kafka/a/orders", "kafka/b/orders"]).await;
}

/// B11: a name is bound to its handler, where that has a name.
pub async fn another_handler_is_refused_with_both_values<T: StoreUnderTest>(subject: &T) {
    let of = |handler: &str| registration("orders").handler(Some(handler.to_owned()));
    is_bound(subject, "handler", of("ledger"), of("mailer"), ["ledger", "mailer"]).await;
}

/// A name is bound to its key rules.
pub async fn another_key_rule_is_refused_with_both_values<T: StoreUnderTest>(subject: &T) {
    let of = |rule: &str| registration("orders").key_rule(rule.to_owned());
    is_bound(subject, "key rules", of("header:a;token"), of("header:b;token"), ["header:a", "header:b"]).await;
}

/// B15, J12: a name is bound to its hash rule; a start that cannot compare with the old records is refused.
pub async fn another_hash_rule_is_refused_with_both_values<T: StoreUnderTest>(subject: &T) {
    let of = |rule: &str| registration("orders").hash_rules(vec![rule.to_owned()]);
    is_bound(subject, "hash rules", of("raw/1"), of("fn:mine"), ["raw/1", "fn:mine"]).await;
}

/// A consumer that went over to another hash rule may drop the old one once no record of it is left; then the new rule binds.
pub async fn a_hash_rule_is_left_behind_by_way_of_a_former_one<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let of = |rules: &[&str]| registration("orders").hash_rules(rules.iter().map(|rule| (*rule).to_owned()).collect());
    for rules in [&["raw/1"][..], &["fn:mine", "raw/1"], &["fn:mine"]] {
        fixture.register_as(&of(rules)).await.unwrap_or_else(|error| panic!("{rules:?}: {error}"));
    }
    let error = fixture.register_as(&of(&["raw/1"])).await.unwrap_err();
    let StoreError::Bound { what: "hash rules", recorded, .. } = &error else { panic!("{error:?}") };
    assert_eq!(recorded, "fn:mine");
}

/// A name is bound to one source for all tenants.
pub async fn another_tenant_is_bound_like_the_first<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let of = |source: &str, tenant: &str| {
        registration("orders").bound_to(Some(source.to_owned())).tenant(Tenant::new(tenant).unwrap())
    };
    let first = fixture.register_as(&of("queue-a", "acme")).await.unwrap();
    let second = fixture.register_as(&of("queue-a", "globex")).await.unwrap();
    assert_ne!(first.scope, second.scope);
    let other = fixture.register_as(&of("queue-b", "initech")).await;
    assert!(matches!(other, Err(StoreError::Bound { what: "source", .. })), "{other:?}");
}

/// A start that names no source and no handler is bound by neither, and leaves the binding to the first that does.
pub async fn what_a_start_does_not_say_binds_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let unbound = registration("orders");
    let bound = unbound.clone().bound_to(Some("queue-a".to_owned())).handler(Some("ledger".to_owned()));
    for start in [&unbound, &bound, &unbound, &bound] {
        fixture.register_as(start).await.unwrap_or_else(|error| panic!("{start:?}: {error}"));
    }
    let other = bound.bound_to(Some("queue-b".to_owned()));
    assert!(matches!(fixture.register_as(&other).await, Err(StoreError::Bound { what: "source", .. })));
}

/// The hash rules are numbered once for the whole database: stable over starts, different for different rules.
pub async fn hash_rule_ids_are_stable_and_distinct<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let with = |name: &str, rules: &[&str]| {
        registration(name).hash_rules(rules.iter().map(|rule| (*rule).to_owned()).collect())
    };
    let rules = ["raw/1", "json-only/1:[\"/a\"]", "json-only/1:[\"/A\"]", "fn:it's", "fn:é"];
    let first = fixture.register_as(&with("orders", &rules)).await.unwrap().hash_rules;
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 5, "{first:?}");
    let reversed: Vec<_> = rules.iter().rev().copied().collect();
    let other = fixture.elsewhere().await.register_as(&with("refunds", &reversed)).await.unwrap().hash_rules;
    assert_eq!(other.into_iter().rev().collect::<Vec<_>>(), first, "in the order given");
    assert_eq!(fixture.register_as(&with("orders", &rules)).await.unwrap().hash_rules, first);
}

/// B14, B15: a record that was hashed by a former rule is compared by that rule.
pub async fn a_former_hash_rule_is_hashed_again<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let json = || JsonMembers::without(["/sent_at"]).unwrap();
    let old = fixture.builder("orders", write).hash_rules(HashRules::new(RawPayload)).build().unwrap();
    assert_eq!(process(&old, [msg("order-1", r#"{"cents":1,"sent_at":1}"#)]).await, [Kind::Processed]);
    let rules = HashRules::new(json()).and_formerly(RawPayload);
    let new = fixture.elsewhere().await.builder("orders", write).hash_rules(rules).build().unwrap();
    let resent = msg("order-1", r#"{"cents":1,"sent_at":2}"#);
    assert_eq!(
        process(&new, [msg("order-1", r#"{"cents":1,"sent_at":1}"#), resent]).await,
        [Kind::Duplicate, Kind::Conflict]
    );
    let kinds = process(
        &new,
        [
            msg("order-2", r#"{"cents":1,"sent_at":1}"#),
            msg("order-2", r#"{"sent_at":2,"cents":1}"#),
            msg("order-2", r#"{"cents":2,"sent_at":1}"#),
        ],
    );
    assert_eq!(kinds.await, [Kind::Processed, Kind::Duplicate, Kind::Conflict]);
    let effects = fixture.effects().await;
    assert_eq!(effects.len(), 2, "{effects:?}");
}

/// B15, J12: a record that was hashed by a rule that this build does not know is a conflict of its own kind, never a
/// duplicate by guess.
pub async fn an_unknown_hash_rule_is_a_conflict_of_its_own_kind<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let later = registration("later").hash_rules(vec!["fn:of-a-later-build".to_owned()]);
    let unknown = fixture.register_as(&later).await.unwrap().hash_rules[0];
    assert_ne!(unknown, registered.hash_rules[0]);
    let lane = fixture.open().await;
    let mut unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
    let claims = [claim(&registered, "order-1", "paid").hash_rule(unknown)];
    assert_eq!(within("claiming", unit.claim(&claims)).await.unwrap(), [Claimed::Inserted]);
    within("committing", unit.commit()).await.1.unwrap();
    let decisions = decide(&fixture.consumer(write), [msg("order-1", "paid")]).await;
    assert!(matches!(&decisions[0], Decision::Conflict(_, ConflictKind::UnknownRule)), "{decisions:?}");
    assert!(fixture.runs.all().is_empty());
}

/// A consumer without a control is running.
pub async fn a_new_consumer_is_running<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let control = fixture.store.bookkeeping().control(fixture.register().await.scope).await.unwrap();
    assert_eq!((control.state, control.by.as_str(), control.reason.as_str()), (ControlState::Running, "", ""));
}

/// Pause, halt and resume are read by every process, with who did it and why, and concern one scope.
pub async fn controls_are_read_by_every_process<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (scope, other) =
        (fixture.register().await.scope, fixture.register_as(&registration("other")).await.unwrap().scope);
    let elsewhere = fixture.elsewhere().await;
    for state in [ControlState::Paused, ControlState::Halted, ControlState::Paused] {
        fixture.store.bookkeeping().set_control(scope, state, "o'brien", "the \"stock\" is wrong").await.unwrap();
        let control = elsewhere.store.bookkeeping().control(scope).await.unwrap();
        assert_eq!((control.state, &*control.by, &*control.reason), (state, "o'brien", "the \"stock\" is wrong"));
        assert_eq!(elsewhere.store.bookkeeping().control(other).await.unwrap().state, ControlState::Running);
    }
    fixture.store.bookkeeping().set_control(scope, ControlState::Running, "o'brien", "counted anew").await.unwrap();
    assert_eq!(elsewhere.store.bookkeeping().control(scope).await.unwrap().state, ControlState::Running);
}

/// J110: what a run reports of itself, and its end, are known beside what the tables know of the consumer, and of no other consumer. A store
/// that keeps no such thing answers nothing.
pub async fn j110_what_a_run_reports_is_known_elsewhere<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (registered, books) = (fixture.register().await, fixture.store.bookkeeping());
    let (orders, other) = (ConsumerName::new("orders").unwrap(), ConsumerName::new("other").unwrap());
    fixture.register_as(&registration("other")).await.unwrap();
    let elsewhere = fixture.elsewhere().await;
    let known = async |consumer: &ConsumerName| elsewhere.store.bookkeeping().standing(consumer).await.unwrap();
    let Some(before) = known(&orders).await else { return };
    assert_eq!((before.facts, before.runs), (vec![], vec![]), "a run that reports nothing is not known");

    let facts =
        vec![Fact::of(Condition::BreakerOpen), Fact::of(Condition::KeyHeld).count(3_u64).detail("\"it's\" \\ so")];
    let control = books.report(registered.scope, registered.run, &facts, false).await.unwrap();
    assert_eq!(control.state, ControlState::Running);
    let tables = known(&orders).await.unwrap();
    assert!(tables.has_worker());
    assert_eq!((tables.all(None), tables.all(Some(registered.run))), (facts, vec![]));

    let failed = vec![Fact::of(Condition::Failed).detail("the store refused")];
    books.report(registered.scope, registered.run, &failed, true).await.unwrap();
    let tables = known(&orders).await.unwrap();
    assert_eq!((tables.has_worker(), tables.runs[0].ended_at.is_some(), tables.failed_runs()), (false, true, 1));

    let letter = letter(&registered, msg("order-1", "1"), Some("order-1"), Reason::Conflict);
    books.store_dead_letter(&letter).await.unwrap();
    books.set_control(registered.scope, ControlState::Halted, "run 1", "a conflict").await.unwrap();
    let control = books.report(registered.scope, registered.run, &[], false).await.unwrap();
    assert_eq!((control.state, &*control.by, &*control.reason), (ControlState::Halted, "run 1", "a conflict"));
    let tables = known(&orders).await.unwrap();
    let rows = rows("orders", tables.all(None), tables.now);
    let shown: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
    assert!(shown.contains(&"halted by run 1: a conflict"), "{shown:?}");
    assert!(shown.iter().any(|what| what.starts_with("1 open dead letter")), "{shown:?}");
    assert_eq!(known(&other).await.unwrap().all(None), vec![]);
}

/// The epoch that empties caches never goes back, even when other controls are set.
pub async fn the_epoch_never_goes_back<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let mut epochs = vec![fixture.store.bookkeeping().control(scope).await.unwrap().epoch];
    for state in [ControlState::Paused, ControlState::Running, ControlState::Halted, ControlState::Running] {
        fixture.store.bookkeeping().set_control(scope, state, "somebody", "a reason").await.unwrap();
        epochs.push(fixture.store.bookkeeping().control(scope).await.unwrap().epoch);
    }
    assert!(epochs.is_sorted(), "{epochs:?}");
}

/// A43: while one server answers, every worker sees one identity: another one would empty the caches of committed keys.
pub async fn one_server_is_one_identity<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let first = fixture.store.bookkeeping().control(scope).await.unwrap().identity;
    fixture.store.bookkeeping().set_control(scope, ControlState::Paused, "somebody", "a reason").await.unwrap();
    for store in [&fixture.store, &fixture.elsewhere().await.store] {
        assert_eq!(store.bookkeeping().control(scope).await.unwrap().identity, first);
    }
}

/// S3, S8: the audit trail keeps every line in order, with and without a key, with any text.
pub async fn the_audit_trail_keeps_every_line<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let before = subject.audited().await.len();
    let lines =
        [("conflict", Some("order-1")), ("halt", None), ("replay", Some("'; --")), ("conflict", Some("order-1"))];
    for (action, key) in lines {
        let entry = AuditEntry::new("run 'one'".to_owned(), action, scope, "hash \"a\" \\ {}".to_owned())
            .key(key.map(key_from));
        fixture.store.bookkeeping().audit(&entry).await.unwrap();
    }
    let audited = subject.audited().await.split_off(before);
    assert_eq!(audited, lines.map(|(action, key)| (action.to_owned(), key.map(str::to_owned))));
}

/// Contract of Bookkeeping 1: bookkeeping uses no lane, so it goes on while a unit is open and holds a key.
pub async fn bookkeeping_goes_on_while_a_unit_is_open<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let lane = fixture.open().await;
    let mut unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
    within("claiming", unit.claim(&[claim(&registered, "order-1", "paid")])).await.unwrap();
    // Reading is possible everywhere. Writing waits where the database has a single writer, and must then end.
    within("reading the controls", fixture.store.bookkeeping().control(registered.scope)).await.unwrap();
    let hash = idem_core::hash::PayloadHash::of(b"paid");
    let counted =
        within("counting", fixture.store.bookkeeping().count_attempt(registered.scope, &key_from("order-1"), hash))
            .await;
    assert!(counted.is_ok() || !fixture.waits_per_key(), "{counted:?}");
    within("rolling back", unit.rollback()).await.unwrap();
    if counted.is_ok() {
        let next =
            fixture.store.bookkeeping().count_attempt(registered.scope, &key_from("order-1"), hash).await.unwrap();
        assert_eq!(next, 2, "the count is no part of the unit that was rolled back");
    }
}

/// The suite's own hooks: a hook that a database does not offer is refused, so that no case passes because nothing happened.
pub async fn hooks_that_are_not_offered_are_refused<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    for action in HandlerAction::ALL.into_iter().filter(|action| !subject.offers(*action)) {
        assert!(!fixture.offers(action).await);
    }
    for arrangement in Arrangement::ALL.into_iter().filter(|arrangement| !subject.arranges(*arrangement)) {
        assert!(!fixture.arrange(arrangement).await);
    }
}

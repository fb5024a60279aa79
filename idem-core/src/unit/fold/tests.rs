use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::{
    hash::PayloadHash,
    message::Message,
    names::{HashRuleId, IdempotencyKey, Retention},
    store::claim::Claim,
};

/// A message of `scope` and `key`; `None` for one that opted out of protection.
fn item(claim: Option<(i32, &str, u8)>) -> Item {
    let claim = claim.map(|(scope, key, payload)| Claim {
        scope: ScopeId(scope),
        key: IdempotencyKey::new(key).expect("a key"),
        hash: PayloadHash::of(&[payload]),
        hash_rule: HashRuleId(1),
        retention: Retention::Forever,
    });
    Item { message: Message::new(""), claim, from_row: false }
}

fn folded(claims: &[Option<(i32, &str, u8)>]) -> Fold {
    fold(&claims.iter().map(|claim| item(*claim)).collect::<Vec<_>>())
}

#[test]
fn b16_the_first_delivery_of_a_key_leads_also_when_a_later_one_has_another_payload() {
    let fold = folded(&[Some((1, "b", 0)), Some((1, "a", 0)), Some((1, "b", 0)), Some((1, "b", 9)), Some((1, "a", 0))]);
    assert_eq!(fold.leader, [Some(0), Some(1), Some(0), Some(0), Some(1)]);
    assert_eq!(fold.claims, [1, 0]);
}

/// S2, B11: one key in two scopes is two keys, and claims are sorted by scope before key.
#[test]
fn s2_equal_keys_of_two_scopes_are_two_claims() {
    let fold = folded(&[Some((2, "a", 0)), Some((1, "b", 0)), Some((1, "a", 0)), Some((2, "a", 0))]);
    assert_eq!(fold.leader, [Some(0), Some(1), Some(2), Some(0)]);
    assert_eq!(fold.claims, [2, 1, 0]);
}

/// A message that opted out claims nothing and follows none.
#[test]
fn unprotected_messages_are_not_folded() {
    assert_eq!(folded(&[None, Some((1, "a", 0)), None]), Fold { leader: vec![None, Some(1), None], claims: vec![1] });
    assert_eq!(folded(&[]), Fold { leader: Vec::new(), claims: Vec::new() });
}

/// Keys are compared byte for byte, as the database's "C" collation does (B9, B17).
#[test]
fn b17_claims_are_sorted_by_bytes() {
    let keys = ["é", "z", "Z", "a", "aa", "10", "9"];
    let items: Vec<Item> = keys.iter().map(|key| item(Some((1, key, 0)))).collect();
    let sorted: Vec<&str> = fold(&items).claims.into_iter().map(|index| keys[index]).collect();
    assert_eq!(sorted, ["10", "9", "Z", "a", "aa", "z", "é"]);
}

proptest! {
    /// B16, B17, D10: whatever the order and however often a key is there.
    #[test]
    fn b16_b17_every_message_has_a_leader_of_its_key_and_claims_are_sorted_and_unique(
        claims in proptest::collection::vec(proptest::option::weighted(0.9, (1_i32..4, "[ab]{1,2}", 0_u8..3)), 0..40),
        seed in any::<u64>(),
    ) {
        let items: Vec<Item> =
            claims.iter().map(|claim| item(claim.as_ref().map(|(scope, key, payload)| (*scope, key.as_str(), *payload)))).collect();
        let Fold { leader, claims: sorted } = fold(&items);
        let key = |index: usize| claims[index].as_ref().map(|(scope, key, _)| (*scope, key.as_bytes()));
        prop_assert_eq!(leader.len(), items.len());
        for (index, leader) in leader.iter().enumerate() {
            match leader {
                None => prop_assert!(key(index).is_none()),
                Some(leader) => {
                    prop_assert_eq!(key(*leader), key(index));
                    prop_assert!(key(index).is_some());
                    // It is the first of its key, so it leads itself.
                    prop_assert_eq!((0..items.len()).find(|other| key(*other) == key(index)), Some(*leader));
                }
            }
        }
        prop_assert!(sorted.windows(2).all(|pair| key(pair[0]) < key(pair[1])), "strictly: sorted and no key twice");
        let leaders: HashSet<usize> = leader.iter().flatten().copied().collect();
        prop_assert_eq!(sorted.iter().copied().collect::<HashSet<_>>(), leaders);
        // Two units with the same keys claim them in the same order, however they were delivered.
        let mut shuffled: Vec<usize> = (0..items.len()).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
        let other: Vec<&Item> = shuffled.iter().map(|index| &items[*index]).collect();
        let others: Vec<_> = fold(&other).claims.into_iter().map(|index| key(shuffled[index])).collect();
        prop_assert_eq!(others, sorted.into_iter().map(key).collect::<Vec<_>>());
    }
}

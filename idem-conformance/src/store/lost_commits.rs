//! Commits whose answer never arrives: the outcome is found out by claiming again, never guessed.

use std::time::Duration;

use super::{
    fixture::{Fixture, Kind, msg, process, redeliver, write},
    observed::LostCommit,
    subject::StoreUnderTest,
};

/// A5: the database committed and the answer was lost: the message is a duplicate of itself, and ran once.
pub async fn a_lost_answer_to_a_commit_that_happened<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    fixture.spy.lose_commits(&[LostCommit::Committed]);
    assert_eq!(process(&fixture.consumer(write), [msg("order-1", "paid")]).await, [Kind::Duplicate]);
    assert_eq!(fixture.runs.all().len(), 1);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A6: the database never got the commit: the message runs again.
pub async fn a_lost_answer_to_a_commit_that_did_not_happen<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    fixture.spy.lose_commits(&[LostCommit::RolledBack]);
    assert_eq!(process(&fixture.consumer(write), [msg("order-1", "paid")]).await, [Kind::Processed]);
    assert_eq!(fixture.runs.all().len(), 2);
    fixture.assert_effects([("order-1", "paid")]).await;
}

async fn batch_of_100<T: StoreUnderTest>(subject: &T, lost: LostCommit, expected: Kind) {
    let fixture = Fixture::new(subject);
    fixture.spy.lose_commits(&[lost]);
    let keys: Vec<_> = (0..100).map(|number| format!("order-{number:02}")).collect();
    let kinds = process(&fixture.consumer(write), keys.iter().map(|key| msg(key, "paid"))).await;
    let mut all = vec![expected; 100];
    if fixture.units_hold_one() {
        // The first message alone lost its answer.
        all[1..].fill(Kind::Processed);
    }
    assert_eq!(kinds, all);
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// D6, A5: the same for a batch of a hundred: all are duplicates.
pub async fn a_lost_answer_to_a_batch_that_committed<T: StoreUnderTest>(subject: &T) {
    batch_of_100(subject, LostCommit::Committed, Kind::Duplicate).await;
}

/// D6, A6: the same for a batch of a hundred that did not commit: all run again.
pub async fn a_lost_answer_to_a_batch_that_did_not_commit<T: StoreUnderTest>(subject: &T) {
    batch_of_100(subject, LostCommit::RolledBack, Kind::Processed).await;
}

/// A5: followers in a batch whose answer was lost are decided by what is recorded.
pub async fn followers_of_a_lost_commit_are_decided_by_the_record<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    fixture.spy.lose_commits(&[LostCommit::Committed]);
    let messages = [msg("order-1", "paid"), msg("order-1", "refunded"), msg("order-1", "paid")];
    let kinds = process(&fixture.consumer(write), messages).await;
    assert_eq!(kinds, [Kind::Duplicate, Kind::Conflict, Kind::Duplicate]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A7: a commit that hangs counts as unknown after its time-out; the connection is closed, which frees the key.
pub async fn a_commit_that_hangs_is_resolved_in_bounded_time<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).commit_timeout(Duration::from_millis(200)).build().unwrap();
    fixture.spy.lose_commits(&[LostCommit::Hangs]);
    redeliver(&consumer, vec![msg("order-1", "paid")]).await;
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A5, A6: answers that are lost over and over end in no guess: the message goes back, and is settled later.
pub async fn answers_lost_over_and_over_are_never_guessed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    fixture.spy.lose_commits(&[LostCommit::RolledBack; 20]);
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Busy]);
    fixture.assert_effects([]).await;
    fixture.spy.lose_commits(&[LostCommit::Committed]);
    for _ in 0..10 {
        if process(&consumer, [msg("order-1", "paid")]).await[0].is_settled() {
            break;
        }
    }
    fixture.assert_effects([("order-1", "paid")]).await;
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Duplicate]);
}

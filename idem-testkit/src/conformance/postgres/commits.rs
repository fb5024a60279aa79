//! Commits whose answer is lost.

use super::{
    consumers::{builder, keys, messages, process},
    handlers::Write,
    subject::{PostgresUnderTest, effects, forget},
};
use crate::proxy::postgres::{Cut, PostgresProxy};

/// One message, then a batch of a hundred (D6), each with as many cuts in a row as `times`.
async fn cut<T: PostgresUnderTest>(subject: &T, cut: Cut, times: usize, expected: char) {
    for count in [1, 100] {
        let proxy = PostgresProxy::cutting(&subject.server(), cut, times).await.unwrap();
        let store = subject.another(Some(proxy.port()), &[]);
        let consumer = builder(store, Write::<T>::new()).lanes(1).handlers(subject.concurrency()).build().unwrap();
        let keys = keys(count);
        assert_eq!(process(&consumer, messages(&keys)).await, expected.to_string().repeat(count));
        assert_eq!(proxy.left(), 0, "every cut has happened");
        assert_eq!(effects(subject).await, keys, "each effect once");
        assert_eq!(process(&consumer, messages(&keys)).await, "D".repeat(count));
        assert_eq!(effects(subject).await, keys);
        forget(subject).await;
    }
}

/// A5, D6: the answer to the COMMIT is lost, and the record that was read decides.
pub async fn a5_d6_cut_after_the_server_committed<T: PostgresUnderTest>(subject: &T) {
    cut(subject, Cut::After, 1, 'D').await;
}

/// A6, D6: the server never got the COMMIT, and the messages run again.
pub async fn a6_d6_cut_before_the_server_got_the_commit<T: PostgresUnderTest>(subject: &T) {
    cut(subject, Cut::Before, 1, 'P').await;
    cut(subject, Cut::Before, 2, 'P').await;
}

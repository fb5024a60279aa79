//! S11: nothing that another role puts into a schema of the search_path makes new messages duplicates.

use super::{
    consumers::{builder, keys, messages, process},
    handlers::Write,
    subject::{PostgresUnderTest, effects, recorded},
};

/// S11, as it was found: aggregates that fit the claim better than those of the server made 300 of 500 new messages
/// duplicates, which are acknowledged.
pub async fn s11_new_messages_are_no_duplicates_where_an_aggregate_fits_better<T: PostgresUnderTest>(subject: &T) {
    for kind in ["int4", "uuid"] {
        let aggregate = format!(
            "CREATE FUNCTION nothing({kind}[], {kind}) RETURNS {kind}[] LANGUAGE sql AS 'SELECT $1';
             CREATE AGGREGATE array_agg({kind}) (SFUNC = nothing, STYPE = {kind}[], INITCOND = '{{}}')"
        );
        subject.run(&aggregate).await;
    }
    let consumer = builder(subject.store().clone(), Write::<T>::new()).handlers(subject.concurrency());
    let (all, consumer) = (keys(500), consumer.busy_timeout(std::time::Duration::from_secs(20)).build().unwrap());
    for batch in all.chunks(100) {
        assert_eq!(process(&consumer, messages(batch)).await, "P".repeat(100));
    }
    assert_eq!((effects(subject).await, recorded(subject).await), (all.clone(), all));
}

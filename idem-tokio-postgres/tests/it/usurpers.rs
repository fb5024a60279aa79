//! S11: nothing that another role puts into a schema of the search_path makes new messages duplicates. That no statement can
//! be taken over is asked of the server by idem-sqlx's tests, which run the same statements.

use crate::{
    consumers::{BOTH, Write, builder, keys, messages, process},
    fixture::Fixture,
};

#[tokio::test]
async fn s11_new_messages_are_no_duplicates_where_an_aggregate_fits_better() {
    for handlers in BOTH {
        let fixture = Fixture::new().await;
        for kind in ["int4", "uuid"] {
            let aggregate = format!(
                "CREATE FUNCTION nothing({kind}[], {kind}) RETURNS {kind}[] LANGUAGE sql AS 'SELECT $1';
                 CREATE AGGREGATE array_agg({kind}) (SFUNC = nothing, STYPE = {kind}[], INITCOND = '{{}}')"
            );
            fixture.run(aggregate).await;
        }
        let consumer = builder(fixture.store.clone(), Write).handlers(handlers).build().unwrap();
        let all = keys(200);
        for batch in all.chunks(100) {
            assert_eq!(process(&consumer, messages(batch)).await, "P".repeat(100), "{handlers:?}");
        }
        assert_eq!((fixture.effects().await, fixture.recorded().await), (all.clone(), all));
        fixture.drop().await;
    }
}

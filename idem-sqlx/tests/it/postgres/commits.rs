//! Units on a database that was restored, and on one whose disk is full.

use idem_core::{Decision, ErrorClass};
use idem_testkit::Decide as _;

use super::{
    consumers::{Write, consumer, keys, messages, process},
    fixture::Fixture,
};

/// C8: after a restore from a backup, delivering again from before it is all that has to be done: messages in the backup
/// are skipped, and missing ones take effect again.
#[tokio::test]
async fn c8_after_a_restore_a_redelivery_makes_everything_whole() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Write);
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    let tables = ["processed_messages", "units", "effects"];
    for table in tables {
        fixture.run(format!("CREATE TABLE backup_{table} AS TABLE {table}")).await;
    }
    assert_eq!(process(&consumer, messages(&keys(4))).await, "DDPP");
    // A backup is older than what was acknowledged: records and effects alike are gone.
    let restore = tables.map(|table| format!("TRUNCATE {table}; INSERT INTO {table} TABLE backup_{table};")).concat();
    fixture.run(format!("BEGIN; SET LOCAL session_replication_role = replica; {restore} COMMIT")).await;
    assert_eq!(fixture.effects().await.len(), 2);
    assert_eq!(process(&consumer, messages(&keys(4))).await, "DDPP");
    assert_eq!(fixture.effects().await, fixture.recorded().await);
    assert_eq!(fixture.effects().await.len(), 4);
    fixture.drop().await;
}

/// J6: a full disk is the database's trouble, which no message is charged for, and all is well once there is room.
#[tokio::test]
async fn j6_a_full_disk_is_no_fault_of_the_message() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Write);
    fixture
        .run(
            "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file'; END $$;
             CREATE TRIGGER no_room BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION no_room()",
        )
        .await;
    for decision in consumer.decisions(messages(&keys(2))).await.unwrap() {
        assert!(
            matches!(&decision, Decision::Failed(failure) if failure.class == ErrorClass::Infrastructure),
            "{decision:?}"
        );
    }
    assert!(
        fixture.recorded().await.is_empty()
            && fixture.texts("SELECT key_id::text FROM message_attempts").await.is_empty()
    );
    fixture.run("DROP TRIGGER no_room ON effects").await;
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    fixture.drop().await;
}

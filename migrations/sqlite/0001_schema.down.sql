-- Drops the schema's tables, but never what somebody still needs: without its records, every message that a broker delivers again takes effect
-- a second time. SQLite raises only from triggers and constraints, so a constraint's name carries the text.
CREATE TEMP TABLE "{schema}_refusal" (
    records INTEGER NOT NULL
        CONSTRAINT "{schema}_processed_messages still holds records, so the schema is not dropped: stop every worker, make sure that the brokers hold nothing that was processed, delete the records, and run this migration again"
        CHECK (records = 0),
    forgotten INTEGER NOT NULL
        CONSTRAINT "{schema}_forgotten still holds records, so the schema is not dropped: take them back with idem forgotten restore, or delete them, and run this migration again"
        CHECK (forgotten = 0),
    events INTEGER NOT NULL
        CONSTRAINT "{schema}_outbox holds events that were not published, so the schema is not dropped: let a relay publish them, or remove them with idem outbox skip, and run this migration again"
        CHECK (events = 0),
    received INTEGER NOT NULL
        CONSTRAINT "{schema}_inbox holds messages that were acknowledged and not processed, so the schema is not dropped: let the workers of its consumer process them, and run this migration again"
        CHECK (received = 0),
    letters INTEGER NOT NULL
        CONSTRAINT "{schema}_dead_letters holds messages that were not handled, so the schema is not dropped: replay or drop them with idem dead-letters, and run this migration again"
        CHECK (letters = 0)
);
INSERT INTO "{schema}_refusal" SELECT EXISTS (SELECT 1 FROM "{schema}_processed_messages"), EXISTS (SELECT 1 FROM "{schema}_forgotten"),
    EXISTS (SELECT 1 FROM "{schema}_outbox"), EXISTS (SELECT 1 FROM "{schema}_inbox"), EXISTS (SELECT 1 FROM "{schema}_dead_letters" WHERE replayed_at IS NULL);
DROP TABLE "{schema}_refusal";

DROP VIEW "{schema}_inbox_messages";
DROP TABLE "{schema}_inbox";
DROP TABLE "{schema}_inbox_slots";
DROP TABLE "{schema}_processed_results";
DROP TABLE "{schema}_outbox";
DROP TABLE "{schema}_outbox_destinations";
DROP TABLE "{schema}_forgotten";
DROP TABLE "{schema}_controls";
DROP TABLE "{schema}_audit";
DROP TABLE "{schema}_dead_letters";
DROP TABLE "{schema}_message_attempts";
DROP TABLE "{schema}_worker_runs";
DROP TABLE "{schema}_payload_hashes";
DROP TABLE "{schema}_consumers";
DROP TABLE "{schema}_units";
DROP TABLE "{schema}_processed_messages";

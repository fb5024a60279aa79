-- Reverts 0006. It refuses while an event waits: its effect is committed, and its receivers would never get it.
-- SQLite raises only from triggers and constraints, so a constraint's name carries the text.
CREATE TEMP TABLE "{schema}_refusal" (
    events INTEGER NOT NULL
        CONSTRAINT "{schema}_outbox holds events that were not published, so it is not dropped: let a relay publish them, or remove them with `idem outbox skip`, and run this migration again"
        CHECK (events = 0)
);
INSERT INTO "{schema}_refusal" SELECT EXISTS (SELECT 1 FROM "{schema}_outbox");
DROP TABLE "{schema}_refusal";

ALTER TABLE "{schema}_consumers" DROP COLUMN derives_as;
DROP TABLE "{schema}_processed_results";
DROP TABLE "{schema}_outbox";
DROP TABLE "{schema}_outbox_destinations";

-- Reverts 0006. It refuses where that would lose what receivers and repeats are recognised by: an event that waits, because its
-- effect is committed; a former name, because the ids of events are derived from it; and an answer, because no release makes it anew.
-- A pause would be over by itself, and a form of ids that is not the default one is a decision of its destination.
-- SQLite raises only from triggers and constraints, so a constraint's name carries the text.
CREATE TEMP TABLE "{schema}_refusal" (
    events INTEGER NOT NULL
        CONSTRAINT "{schema}_outbox holds events that were not published, so it is not dropped: let a relay publish them, or remove them with `idem outbox skip`, and run this migration again; or leave the schema as it is: the release before runs on it"
        CHECK (events = 0),
    names INTEGER NOT NULL
        CONSTRAINT "{schema}_consumers holds the former names of renamed consumers, from which the ids of their events are derived: rename them back with `idem consumers rename`, and run this migration again; or leave the schema as it is: the release before runs on it"
        CHECK (names = 0),
    pauses INTEGER NOT NULL
        CONSTRAINT "{schema}_outbox_destinations holds the pauses of destinations: end them with `idem outbox resume`, and run this migration again; or leave the schema as it is: the release before runs on it"
        CHECK (pauses = 0),
    forms INTEGER NOT NULL
        CONSTRAINT "{schema}_outbox_destinations holds forms of ids, by which receivers recognise copies: leave the schema as it is: the release before runs on it"
        CHECK (forms = 0),
    answers INTEGER NOT NULL
        CONSTRAINT "{schema}_processed_results holds answers that repeats get: wait until cleanup has removed them with their records, and run this migration again; or leave the schema as it is: the release before runs on it"
        CHECK (answers = 0)
);
INSERT INTO "{schema}_refusal" SELECT EXISTS (SELECT 1 FROM "{schema}_outbox"),
    EXISTS (SELECT 1 FROM "{schema}_consumers" WHERE derives_as <> name),
    EXISTS (SELECT 1 FROM "{schema}_outbox_destinations" WHERE paused_at IS NOT NULL),
    EXISTS (SELECT 1 FROM "{schema}_outbox_destinations" WHERE id_form <> 'uuid8'),
    EXISTS (SELECT 1 FROM "{schema}_processed_results");
DROP TABLE "{schema}_refusal";

ALTER TABLE "{schema}_consumers" DROP COLUMN derives_as;
DROP TABLE "{schema}_processed_results";
DROP TABLE "{schema}_outbox";
DROP TABLE "{schema}_outbox_destinations";

-- Removes what 0004 made, but no record that could still be taken back. SQLite raises only from triggers and constraints, so
-- a constraint's name carries the text.
CREATE TEMP TABLE "{schema}_refusal" (
    records INTEGER NOT NULL
        CONSTRAINT "{schema}_forgotten still holds records, so it is not dropped: take them back with idem forgotten restore, or delete them, and run this migration again"
        CHECK (records = 0)
);
INSERT INTO "{schema}_refusal" SELECT EXISTS (SELECT 1 FROM "{schema}_forgotten");
DROP TABLE "{schema}_refusal";

DROP TABLE "{schema}_forgotten";

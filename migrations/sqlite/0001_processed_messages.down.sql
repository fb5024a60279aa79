-- Removes everything that 0001 made, but never a record: whoever drops records lets every redelivery run a second time.
-- SQLite raises only from triggers and constraints, so a constraint's name carries the text.
CREATE TEMP TABLE "{schema}_refusal" (
    records INTEGER NOT NULL
        CONSTRAINT "{schema}_processed_messages still holds records, so it is not dropped: stop every worker, make sure that the brokers hold nothing that was processed, delete the records, and run this migration again"
        CHECK (records = 0)
);
INSERT INTO "{schema}_refusal" SELECT EXISTS (SELECT 1 FROM "{schema}_processed_messages");
DROP TABLE "{schema}_refusal";

DROP TABLE "{schema}_controls";
DROP TABLE "{schema}_audit";
DROP TABLE "{schema}_dead_letters";
DROP TABLE "{schema}_attempts";
DROP TABLE "{schema}_worker_runs";
DROP TABLE "{schema}_payload_hashes";
DROP TABLE "{schema}_consumers";
DROP TABLE "{schema}_units";
DROP TABLE "{schema}_processed_messages";

-- Reverts 0007. It refuses while an answer has an end of its own or a reference: it would be kept for longer than was asked for,
-- or lose the place where its outcome can be looked up. Answers whose time was over stay without their bodies, and count as erased.
CREATE TEMP TABLE "{schema}_refusal" (
    answers INTEGER NOT NULL
        CONSTRAINT "{schema}_processed_results holds answers with an end or a reference of their own: wait until cleanup has removed them with their records, and run this migration again; or leave the schema as it is: the release before runs on it"
        CHECK (answers = 0)
);
INSERT INTO "{schema}_refusal" SELECT EXISTS (SELECT 1 FROM "{schema}_processed_results" WHERE answer_until IS NOT NULL OR reference IS NOT NULL);
DROP TABLE "{schema}_refusal";

DROP INDEX "{schema}_idx_processed_results_answer_until";
ALTER TABLE "{schema}_processed_results" DROP COLUMN reference;
ALTER TABLE "{schema}_processed_results" DROP COLUMN answer_until;

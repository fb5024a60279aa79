-- Reverts 0007. Answers whose time was over stay without their bodies, and count as erased.
DROP INDEX "{schema}_idx_processed_results_answer_until";
ALTER TABLE "{schema}_processed_results" DROP COLUMN reference;
ALTER TABLE "{schema}_processed_results" DROP COLUMN answer_until;

-- Answers may be kept for a shorter time than the records of their keys. Never edited once released: a change is a new migration.

-- Until when the answer is kept, where that is before its record goes; NULL where it goes with the record, and behind its end.
ALTER TABLE "{schema}_processed_results" ADD COLUMN answer_until INTEGER;
-- The part of the answer that stays behind its end, beside the status: 64 bytes at most.
ALTER TABLE "{schema}_processed_results" ADD COLUMN reference TEXT;
CREATE INDEX "{schema}_idx_processed_results_answer_until" ON "{schema}_processed_results" (answer_until)
    WHERE answer_until IS NOT NULL;

-- Version 3: where the operation of a record came from, and what happened to it, for operators.
-- Rows of earlier versions have none. Most traces are short and are not compressed.

ALTER TABLE __schema__.records ADD COLUMN trace bytea;

UPDATE __schema__.meta SET version = 3;

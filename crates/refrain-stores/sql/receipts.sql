-- Receipts for Refrain: one row for each exactly-once request whose effect was committed.
-- Create it in the database that the operation itself writes to, where its connections find it by this name.
CREATE TABLE IF NOT EXISTS refrain_receipts (
    -- The request header Refrain-Record. Unique: of several attempts one commits.
    record       text        NOT NULL PRIMARY KEY,
    -- The request header Refrain-Fence: which attempt it was.
    fence        text        NOT NULL,
    -- The answer, as a retry gets it whose first answer was lost. Make the body bytea where it is not text.
    status       integer     NOT NULL CHECK (status BETWEEN 200 AND 599),
    body         text        NOT NULL DEFAULT '',
    content_type text        NOT NULL DEFAULT 'application/json',
    location     text,
    created_at   timestamptz NOT NULL DEFAULT now()
);

-- To remove receipts whose keys are forgotten; at least `retention` and `remember` of the policy together, and a day:
--   DELETE FROM refrain_receipts WHERE created_at < now() - interval '9 days';
CREATE INDEX IF NOT EXISTS refrain_receipts_created_at ON refrain_receipts (created_at);

-- Refrain itself only reads. Where it has a role of its own:
--   GRANT SELECT ON refrain_receipts TO refrain;

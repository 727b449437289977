-- Version 1: what the store is, fences, records.

CREATE TABLE __schema__.meta (
    the_only  boolean PRIMARY KEY DEFAULT true CHECK (the_only),
    product   text    NOT NULL,
    version   integer NOT NULL,
    -- The key of all keyed digests. Whoever reads it can guess keys and credentials; whoever loses it loses every record.
    secret    bytea   NOT NULL CHECK (octet_length(secret) = 32),
    -- Grows with every failover that was noticed, and never shrinks.
    epoch     integer NOT NULL
);

-- Counts grants. Not cached by sessions: the fences of one record have to grow.
CREATE SEQUENCE __schema__.fences AS bigint CACHE 1;

-- One row for one scope and key. Moments are milliseconds since 1970 on the database's clock.
CREATE TABLE __schema__.records (
    id             uuid PRIMARY KEY,
    fingerprint    uuid     NOT NULL,
    credential     bigint,
    fence_counter  bigint,
    claimant       bigint,
    settle_after   bigint,
    settles        bigint,
    lease_ends     bigint,
    retention_ends bigint,
    remember_ends  bigint,
    -- Which handle granted the claim: its own process is woken without a notification.
    holder         bigint,
    fence_epoch    integer,
    fence_nonce    integer,
    attempts       integer,
    attempts_max   integer,
    -- 1 in flight, 2 completed, 3 indeterminate, 4 tombstone
    state          smallint NOT NULL CHECK (state BETWEEN 1 AND 4),
    -- 1 at-most-once, 2 at-least-once, 3 exactly-once
    guarantee      smallint,
    reason         smallint,
    -- Somebody waits for it in another process: its end is told with NOTIFY.
    waited         boolean  NOT NULL DEFAULT false,
    outcome        bytea
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);

-- Outcomes carry a checksum and are often compressed already.
ALTER TABLE __schema__.records ALTER COLUMN outcome SET STORAGE EXTERNAL;

-- What has not ended: few, listed and counted often. What has ended: by the moment that a sweep takes it.
CREATE INDEX records_open ON __schema__.records (id) WHERE state IN (1, 3);
CREATE INDEX records_completed ON __schema__.records (retention_ends) WHERE state = 2;
CREATE INDEX records_tombstones ON __schema__.records (remember_ends) WHERE state = 4;

INSERT INTO __schema__.meta (product, version, secret, epoch)
VALUES ('refrain', 1, decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'), 1);

-- Version 2: how far each consumer has come with each aggregate.

CREATE TABLE __schema__.sequences (
    consumer   text COLLATE "C" NOT NULL,
    aggregate  text COLLATE "C" NOT NULL,
    -- The number of the last event that was handled.
    last       bigint   NOT NULL,
    -- Those before it that were passed over, and have not come since.
    missing    bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (consumer, aggregate)
) WITH (fillfactor = 80);

UPDATE __schema__.meta SET version = 2;

-- Version 4: the data key of each scope, encrypted, if records are encrypted.

CREATE TABLE __schema__.scope_keys (
    scope  bigint  PRIMARY KEY,
    key    bytea   NOT NULL
) WITH (fillfactor = 80);

UPDATE __schema__.meta SET version = 4;

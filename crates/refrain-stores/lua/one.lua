-- A script for one record. KEYS: 1 the record, 2 its outcome. ARGV: 2 the record's identity.

key, outcome_key, id = KEYS[1], KEYS[2], ARGV[2]
raw = redis.call('GET', key)

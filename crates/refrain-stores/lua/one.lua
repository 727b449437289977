-- A script for one record. KEYS: 1 the record. ARGV: 2 the record's identity.

key, id = KEYS[1], ARGV[2]
raw = redis.call('GET', key)

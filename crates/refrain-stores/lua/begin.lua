-- What every script begins with: its record, and the moment.
--
-- KEYS: 1 the record, 2 its outcome, in the same slot.
-- ARGV: 1 the moment in milliseconds where a test says it, else empty: then the server's own clock counts;
-- 2 the record's identity, and in a claim what else it is about.
--
-- A record is 112 bytes, numbers big-endian, moments and spans in milliseconds:
--     1  version
--     2  state: I in flight, i in flight and waited for elsewhere, D indeterminate, C completed
--     3  what it is about: identity (16), fingerprint (16), whether there is a credential, credential (8)
--    44  terms: claimant (8), guarantee, attempts (2), attempts_max (2), settle_after (8)
--    65  fence: epoch (4), counter (8), nonce (4)
--    81  the first 8 characters of a digest over all from 3 on
--    89  I: settles, lease_ends; D: settles, reason; C: retention_ends, remember_ends (8 each)
--   105  the sum of these two and of the state
-- A completed record past its retention is a tombstone, and nothing has to be written for that:
-- its outcome, which has a key of its own, is forgotten by the server.
--
-- What happens to nearly every record, a first claim and its completion, is decided before anything else is even defined:
-- a script is run from its first line each time, and to define functions costs more than to call them.

local sub, key = string.sub, KEYS[1]
local raw = redis.call('GET', key)
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = ARGV[1] == '' and math.floor(micros / 1000) or tonumber(ARGV[1])
-- An outcome outlives its retention by this, so that it is there for as long as the record says so.
local GRACE = 60000

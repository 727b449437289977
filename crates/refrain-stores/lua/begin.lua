-- What every script begins with: the moment, and names for the record at hand.
--
-- ARGV: 1 the moment in milliseconds where a test says it, else empty: then the server's own clock counts.
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

local sub, pack, unpacked, sha1hex = string.sub, struct.pack, struct.unpack, redis.sha1hex
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local is_tested = ARGV[1] ~= ''
local now = is_tested and tonumber(ARGV[1]) or math.floor(micros / 1000)
-- An outcome outlives its retention by this, so that it is there for as long as the record says so.
local GRACE = 60000
-- The record at hand: its key, that of its outcome in the same slot, its identity, and its bytes or nothing.
local key, outcome_key, id, raw

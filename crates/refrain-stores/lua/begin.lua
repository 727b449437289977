-- What every script begins with: the moment, and names for the record at hand.
--
-- ARGV: 1 the moment in milliseconds where a test says it, else empty: then the server's own clock counts.
--
-- A record is 124 bytes, completed 132, numbers big-endian, moments and spans in milliseconds:
--     1  version
--     2  state: I in flight, i in flight and waited for elsewhere, D indeterminate, C completed
--     3  fence: epoch (4) and counter (8), which are its stamp, and nonce (4)
--    19  what it is about: identity (16), fingerprint (16), whether there is a credential, credential (8)
--    60  terms: claimant (8), guarantee, attempts (2), attempts_max (2), settle_after (8)
--    81  the first 8 characters of a digest over all from 15 on, which who claims knows and brings along
--    89  the stamp again: it is not in the digest
--   101  I: settles, lease_ends; D: settles, reason; C: retention_ends, remember_ends (8 each)
--   117  the sum of these two and of the state
--   125  C: where the outcome lies: its key is that of the record, the letter o, and these (8)
-- What is made or compared together stands together, because every string that a script makes costs time.
-- A completed record past its retention is a tombstone, and nothing has to be written for that:
-- its outcome, which has a key of its own, is forgotten by the server.
-- An outcome is the letter R and the fence that it was completed under (16), and behind them what the library made of it:
-- so it is an answer as it is.

local sub, byte, find, sha1hex = string.sub, string.byte, string.find, redis.sha1hex
local pack, unpacked = struct.pack, struct.unpack
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local is_tested = ARGV[1] ~= ''
local now = is_tested and tonumber(ARGV[1]) or math.floor(micros / 1000)
-- An outcome outlives its retention by this, so that it is there for as long as the record says so.
local GRACE = 60000
-- The record at hand: its key, its identity, and its bytes or nothing.
local key, id, raw

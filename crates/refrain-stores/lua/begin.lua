-- Start of every script: the current time, and variables for the current record.
--
-- ARGV: 1 the time in milliseconds if a test sets it, otherwise empty: then the server's clock is used.
--
-- A record has 124 bytes, a completed one 132, and then its trace; numbers are big-endian, times and durations in milliseconds:
--     1  version: 4, or 3 without a trace
--     2  state: I in flight, i in flight and waited for elsewhere, D indeterminate, C completed
--     3  fence: epoch (4) and counter (8), which are its stamp, and nonce (4)
--    19  what it is about: identity (16), fingerprint (16), whether it has a credential, credential (8)
--    60  terms: claimant (8), guarantee, attempts (2), attempts_max (2), settle_after (8)
--    81  the first 8 characters of a digest over all bytes from 15 on, which the claimant computes and sends
--    89  the stamp again: it is not in the digest
--   101  I: settles, lease_ends; D: settles, reason; C: retention_ends, remember_ends (8 each)
--   117  the sum of these two and of the state
--   125  C: where the outcome lies: its key is that of the record, the letter o, and these (8)
-- The trace has the format of the library, in which events are only appended. No decision depends on it.
-- Fields that are written or compared together are adjacent, because every string that a script creates costs time.
-- A completed record past its retention is a tombstone; this needs no write:
-- its outcome, which has its own key, expires on the server.
-- An outcome is the letter R and the fence that it was completed under (16), followed by the encoded outcome of the library:
-- so it can be returned unchanged.

local sub, byte, find, sha1hex = string.sub, string.byte, string.find, redis.sha1hex
local pack, unpacked = struct.pack, struct.unpack
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local is_tested = ARGV[1] ~= ''
local now = is_tested and tonumber(ARGV[1]) or math.floor(micros / 1000)
-- An outcome outlives its retention by this time, so that it exists for as long as the record says so.
local GRACE = 60000
-- The current record: its key, its identity, and its bytes or nothing.
local key, id, raw

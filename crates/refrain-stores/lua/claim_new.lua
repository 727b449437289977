-- A first claim.
-- ARGV: 2 what it is about, 3 terms of a first attempt, both as a record has them, 4 a nonce, 5 lease, 6 settle_after,
-- 7 the fence of the attempt that it stands in for, or nothing, 8 whether who finds it in flight is told when it is settled.
-- KEYS: 3 the store's mark, where it can be asked for in the same script.

if not raw then
  -- A server that has lost the mark has lost records with it: what ran must not run again.
  if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then
    return '!lost'
  end
  -- The server's time in microseconds counts grants: it goes on where a failover has lost the last of them.
  local fence = struct.pack('>I4I8c4', 1, micros, ARGV[4])
  local body = ARGV[2] .. ARGV[3] .. fence
  local settles, lease_ends = now + ARGV[6], now + ARGV[5]
  redis.call('SET', key, '\1I' .. body .. sub(redis.sha1hex(body), 1, 8)
    .. struct.pack('>I8I8I8', settles, lease_ends, settles + lease_ends + 73))
  return 'G' .. fence
end

-- A completion by the holder.
-- ARGV: 3 fence, 4 how: C complete, R release, D doubt, N never happened. C: 5 retention, 6 remember, 7 the fence and
-- the outcome. D: 5 the reason.

local fence, how = ARGV[3], ARGV[4]

-- Late truth is welcome: of a record in flight nothing else has to be asked than whose it is.
-- Its digest goes along as it is, so that damage stays as visible as before.
if how == 'C' and raw and #raw == 112 and sub(raw, 1, 18) == '\1I' .. ARGV[2] and sub(raw, 65, 80) == fence then
  local retention_ends = now + ARGV[5]
  local remember_ends = retention_ends + ARGV[6]
  local value = '\1C' .. sub(raw, 3, 88)
    .. struct.pack('>I8I8I8', retention_ends, remember_ends, retention_ends + remember_ends + 67)
  if ARGV[1] == '' then
    redis.call('SET', key, value, 'PXAT', remember_ends)
    redis.call('SET', KEYS[2], ARGV[7], 'PXAT', retention_ends + GRACE)
  else
    redis.call('MSET', key, value, KEYS[2], ARGV[7])
  end
  return 'A'
end

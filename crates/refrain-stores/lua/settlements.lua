-- Many settlements in one call, each decided on its own. Nearly all are completions by the holder.
--
-- KEYS: the records, then their outcomes.
-- ARGV: for each two. The first: what a record in flight begins with (18, the identity from 3 on), how: C complete,
-- R release, D doubt, N never happened, and for C retention and remember (8 each), for D the reason (1).
-- The second: the fence (16), and for C behind it the outcome.

local count = #KEYS / 2
local raws = redis.call('MGET', unpack(KEYS, 1, count))
local answers, is_seen, is_rest = {}, {}, false

-- Late truth is welcome: of a record in flight nothing else has to be asked than whose it is.
-- Its digest goes along as it is, so that damage stays as visible as before.
local function completed(name, found, terms, kept, outcome_name)
  if not found or #found ~= 112 or is_seen[name] or sub(terms, 19, 19) ~= 'C'
    or sub(found, 1, 18) ~= sub(terms, 1, 18) or sub(found, 65, 80) ~= sub(kept, 1, 16) then
    return false
  end
  local retention, remember = unpacked('>I8I8', terms, 20)
  local retention_ends = now + retention
  local remember_ends = retention_ends + remember
  local value = '\1C' .. sub(found, 3, 88)
    .. pack('>I8I8I8', retention_ends, remember_ends, retention_ends + remember_ends + 67)
  if is_tested then
    redis.call('MSET', name, value, outcome_name, kept)
    return 'A'
  end
  -- The outcome first: a record that is completed has one.
  local done = redis.pcall('SET', outcome_name, kept, 'PXAT', retention_ends + GRACE)
  if not done.err then
    done = redis.pcall('SET', name, value, 'PXAT', remember_ends)
  end
  return done.err and done or 'A'
end

for at = 1, count do
  local name = KEYS[at]
  answers[at] = completed(name, raws[at], ARGV[2 * at], ARGV[2 * at + 1], KEYS[count + at])
  is_seen[name] = true
  is_rest = is_rest or not answers[at]
end
if not is_rest then
  return answers
end

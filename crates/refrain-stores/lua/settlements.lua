-- Many settlements in one call, each decided on its own. Nearly all are completions by the holder.
--
-- KEYS: the records, then their outcomes.
-- ARGV: 2 the settlements, 35 bytes each: what a record in flight begins with (18, the identity from 3 on), how: C complete,
-- R release, D doubt, N never happened, and for C retention and remember (8 each), for D the reason (1), else zeros.
-- Then for each one more: the fence (16), and for C behind it the outcome.

local terms = ARGV[2]
local count = #KEYS / 2
local raws = redis.call('MGET', unpack(KEYS, 1, count))
local answers, is_seen, is_rest = {}, {}, false
local set = redis.pcall

-- The last part of a completed record, and when both keys end, by retention and remember: made once for all that are alike.
local endings, ends, outcome_ends = {}, {}, {}
local function ending_of(how)
  local retention, remember = unpacked('>I8I8', how, 2)
  local retention_ends = now + retention
  local remember_ends = retention_ends + remember
  endings[how] = pack('>I8I8I8', retention_ends, remember_ends, retention_ends + remember_ends + 67)
  ends[how] = string.format('%.0f', remember_ends)
  outcome_ends[how] = string.format('%.0f', retention_ends + GRACE)
end

for at = 1, count do
  local name, found, kept, from = KEYS[at], raws[at], ARGV[at + 2], (at - 1) * 35
  answers[at] = false
  -- Late truth is welcome: of a record in flight nothing else has to be asked than whose it is.
  -- Its digest goes along as it is, so that damage stays as visible as before.
  if found and #found == 112 and not is_seen[name] and string.byte(terms, from + 19) == 67
    and sub(found, 1, 18) == sub(terms, from + 1, from + 18) and sub(found, 65, 80) == sub(kept, 1, 16) then
    local how = sub(terms, from + 19, from + 35)
    if not endings[how] then
      ending_of(how)
    end
    local value = '\1C' .. sub(found, 3, 88) .. endings[how]
    if is_tested then
      redis.call('MSET', name, value, KEYS[count + at], kept)
      answers[at] = 'A'
    else
      -- The outcome first: a record that is completed has one.
      local done = set('SET', KEYS[count + at], kept, 'PXAT', outcome_ends[how])
      if not done.err then
        done = set('SET', name, value, 'PXAT', ends[how])
      end
      answers[at] = done.err and done or 'A'
    end
  end
  is_seen[name] = true
  is_rest = is_rest or not answers[at]
end
if not is_rest then
  return answers
end

-- Many settlements in one call, each decided separately. Nearly all are completions by the holder.
--
-- KEYS: the records; then, if the call carries outcomes, the key of each outcome.
-- ARGV: 2 retention and remember (8 each), each pair that occurs once; 3 the settlements, 36 bytes each: what a record in
-- flight begins with (34, fence and identity from 3 on), how: C complete, R release, D doubt, N never happened, and for C
-- which of the pairs is its own, for D the reason, else zero; 4 the last 8 characters of the keys of outcomes; 5 whether the
-- call carries them. If so, one more argument for each: for C the outcome, otherwise empty.
--
-- Other outcomes were written before the call in the same transaction: a script that takes an outcome creates a
-- string of it, which costs more than storing it. Then no record occurs twice.
--
-- If all replies are equal, one reply is returned for all.

local spans, terms, place, is_carried = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local count = #terms / 36
local raws = redis.call('MGET', unpack(KEYS, 1, count))
local answers, is_seen, applied = {}, {}, 0
local set = redis.pcall

-- The last event of the trace of a completed record.
local completed = '\3\8' .. pack('>I8', now)
-- The last part of a completed record before its trace, and when both keys end, for each pair of spans.
local endings, ends, outcome_ends = {}, {}, {}
for at = 1, #spans / 16 do
  local retention, remember = unpacked('>I8I8', spans, at * 16 - 15)
  local retention_ends = now + retention
  local remember_ends = retention_ends + remember
  endings[at] = pack('>I8I8I8', retention_ends, remember_ends, retention_ends + remember_ends + 67) .. place
  ends[at] = string.format('%.0f', remember_ends)
  outcome_ends[at] = string.format('%.0f', retention_ends + GRACE)
end

for at = 1, count do
  local name, found, to = KEYS[at], raws[at], at * 36
  answers[at] = false
  -- Late outcomes are accepted: for a record in flight only the fence is checked.
  -- Its digest is copied unchanged, so that damage stays detectable.
  if found and #found > 124 and not (is_carried and is_seen[name]) and byte(terms, to - 1) == 67
    and find(found, sub(terms, to - 35, to - 2), 1, true) == 1 then
    local which = byte(terms, to)
    local value = '\4C' .. sub(found, 3, 100) .. endings[which] .. sub(found, 125) .. completed
    local done
    if is_tested then
      done = is_carried and set('MSET', name, value, KEYS[count + at], ARGV[at + 5]) or set('SET', name, value)
    else
      -- The outcome is written first: a completed record must have one.
      done = is_carried and set('SET', KEYS[count + at], ARGV[at + 5], 'PXAT', outcome_ends[which])
      if not (done and done.err) then
        done = set('SET', name, value, 'PXAT', ends[which])
      end
    end
    answers[at] = done.err and done or 'A'
    applied = done.err and applied or applied + 1
  end
  if is_carried then
    is_seen[name] = true
  end
end
if applied == count then
  return { 'A' }
end

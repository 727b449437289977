-- Many settlements in one call, each decided on its own. Nearly all are completions by the holder.
--
-- KEYS: the records; then, where the call carries outcomes, for each where its own is to lie.
-- ARGV: 2 retention and remember (8 each), each pair that occurs once; 3 the settlements, 36 bytes each: what a record in
-- flight begins with (34, fence and identity from 3 on), how: C complete, R release, D doubt, N never happened, and for C
-- which of the pairs is its own, for D the reason, else zero; 4 the last 8 characters of where outcomes lie; 5 whether the
-- call carries them. Then there is one argument more for each: for C the outcome, else nothing.
--
-- What the call does not carry has been written before it in the same transaction: a script that takes an outcome makes a
-- string of it, which costs more than to keep it. No record comes twice then.
--
-- One answer stands for all where all are the same.

local spans, terms, place, is_carried = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local count = #terms / 36
local raws = redis.call('MGET', unpack(KEYS, 1, count))
local answers, is_seen, applied = {}, {}, 0
local set = redis.pcall

-- The last part of a completed record, and when both keys end, for each pair of spans.
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
  -- Late truth is welcome: of a record in flight nothing else has to be asked than whose it is.
  -- Its digest goes along as it is, so that damage stays as visible as before.
  if found and #found == 124 and not (is_carried and is_seen[name]) and byte(terms, to - 1) == 67
    and find(found, sub(terms, to - 35, to - 2), 1, true) == 1 then
    local which = byte(terms, to)
    local value = '\3C' .. sub(found, 3, 100) .. endings[which]
    local done
    if is_tested then
      done = is_carried and set('MSET', name, value, KEYS[count + at], ARGV[at + 5]) or set('SET', name, value)
    else
      -- The outcome first: a record that is completed has one.
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

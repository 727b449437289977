-- Many claims in one call, each decided on its own. Nearly all are the first of a new key, and those are written together;
-- or they are duplicates of one that is completed, and get its outcome.
--
-- KEYS: the records, then the store's mark where it can be asked for in the same script, then the outcomes.
-- ARGV: 2 whether who finds a record in flight is told when it is settled; 3 the claims, 90 bytes each: what it is about
-- (41) and the terms of a first attempt (21), both as a record has them, the lease (8), a nonce (4), and the fence of the
-- attempt that it stands in for (16) or zeros.
--
-- Every argument and every string that a script makes costs time, and so does every number that becomes one: claims come in
-- one argument, and what is the same for many is made once.

local claims = ARGV[3]
local count = #claims / 90
local has_mark = #KEYS > 2 * count
local raws = redis.call('MGET', unpack(KEYS, 1, has_mark and count + 1 or count))
-- A server that has lost the mark has lost records with it: what ran must not run again.
local is_lost = has_mark and not raws[count + 1]
local answers = {}
-- Records to write, which of the claims are granted by that, and the keys of those.
local new, granted, is_new = {}, {}, {}

-- The server's time in microseconds counts grants: it goes on where a failover has lost the last of them.
local stamp = pack('>I4I8', 1, micros)
-- The last part of a new record, by settle_after and lease.
local endings = {}
local function ending_of(spans)
  local settle_after, lease = unpacked('>I8I8', spans)
  local settles, lease_ends = now + settle_after, now + lease
  endings[spans] = pack('>I8I8I8', settles, lease_ends, settles + lease_ends + 73)
  return endings[spans]
end

for at = 1, count do
  if not raws[at] then
    local name, from = KEYS[at], (at - 1) * 90
    if is_lost then
      answers[at] = '!lost'
    elseif not is_new[name] then
      is_new[name] = true
      local spans = sub(claims, from + 55, from + 70)
      local fence = stamp .. sub(claims, from + 71, from + 74)
      local body = sub(claims, from + 1, from + 62) .. fence
      local size = #granted
      granted[size + 1] = at
      new[2 * size + 1] = name
      new[2 * size + 2] = '\1I' .. body .. sub(sha1hex(body), 1, 8) .. (endings[spans] or ending_of(spans))
      answers[at] = 'G' .. fence
    end
  end
end
if #new > 0 then
  -- What is of another type looks absent until here; nothing is written over it.
  local written = redis.pcall('MSETNX', unpack(new))
  if written ~= 1 then
    for _, at in ipairs(granted) do
      answers[at] = written ~= 0 and written or nil
    end
  elseif #granted == count then
    return answers
  end
end

-- Whether it is completed under the same identity, fingerprint and credential, within its retention, and whole.
local function is_replayed(found, from)
  if #found ~= 112 or sub(found, 1, 2) ~= '\1C' or sub(found, 3, 43) ~= sub(claims, from + 1, from + 41)
    or sub(found, 81, 88) ~= sub(sha1hex(sub(found, 3, 80)), 1, 8) then
    return false
  end
  local one, two, sum = unpacked('>I8I8I8', found, 89)
  return one + two + 67 == sum and one > now
end

-- How many bytes of outcomes are on their way back. They are all in memory at once, so over so many the rest is asked for
-- again.
local carried = 0
local CARRIED_MAX = 1048576

local is_rest = false
for at = 1, count do
  local found = raws[at]
  if not answers[at] then
    local outcome = found and carried < CARRIED_MAX and is_replayed(found, (at - 1) * 90)
      and redis.pcall('GET', KEYS[#KEYS - count + at])
    if type(outcome) == 'string' and sub(outcome, 1, 16) == sub(found, 65, 80) then
      answers[at] = 'R' .. outcome
      carried = carried + #outcome
    else
      is_rest = true
    end
  end
end
if not is_rest then
  return answers
end

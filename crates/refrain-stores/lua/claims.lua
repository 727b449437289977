-- Many claims in one call, each decided separately. Nearly all are the first claim of a new key, and those are written together;
-- or they are duplicates of a completed record, and get its outcome.
--
-- KEYS: the records, then the store's mark if the same script can read it.
-- ARGV: 2 whether a claim that finds a record in flight is notified of its settlement; 3 settle_after and lease (8 each), each pair that
-- occurs once; 4 the claims, 91 bytes each: what a record of a first attempt has from its nonce to its digest (74), which of
-- the pairs is its own, and the fence of the attempt that it supersedes (16) or zeros; 5 the origins, for each claim: the lengths
-- of head (2) and tail (1), head, tail; the tail begins with the nonce and the number of a first attempt; 6 the expected mark.
--
-- Every argument and every string that a script makes costs time, and so does every number that becomes one: claims come in
-- one argument, and shared values are created once.

local spans, claims, origins = ARGV[3], ARGV[4], ARGV[5]
local count = #claims / 91
-- In a cluster the mark is in another slot, and settlements are not published.
local has_mark = ARGV[2] == '1'
local raws = redis.call('MGET', unpack(KEYS, 1, has_mark and count + 1 or count))
-- A server that has lost the mark has lost records with it: executed requests must not execute again. The same applies if
-- another store was created since, in which the same keys have other names.
local lost = has_mark and raws[count + 1] ~= ARGV[6] and (raws[count + 1] and '!other' or '!lost')
local answers = {}
-- Records to write, which of the claims are granted by that, and the keys of those.
local new, granted, is_new, size = {}, {}, {}, 0

-- The server's time in microseconds counts grants: it stays monotonic after a failover that lost the last grants.
local stamp = pack('>I4I8', 1, micros)
local start, grant_of_new = '\4I' .. stamp, 'G' .. stamp
local moment = pack('>I8', now) .. stamp
-- Where the origin of each claim begins.
local origin_of, from = {}, 1
-- The last part of a new record, for each pair of spans.
local endings = {}
for at = 1, #spans / 16 do
  local settle_after, lease = unpacked('>I8I8', spans, at * 16 - 15)
  local settles, lease_ends = now + settle_after, now + lease
  endings[at] = stamp .. pack('>I8I8I8', settles, lease_ends, settles + lease_ends + 73)
end

for at = 1, count do
  local head, tail = unpacked('>I2B', origins, from)
  origin_of[at] = from
  if not raws[at] then
    local name, to = KEYS[at], at * 91
    if lost then
      answers[at] = lost
    elseif not is_new[name] then
      is_new[name] = true
      size = size + 1
      granted[size] = at
      new[2 * size - 1] = name
      new[2 * size] = start .. sub(claims, to - 90, to - 17) .. endings[byte(claims, to - 16)]
        .. sub(origins, from + 3, from + 2 + head) .. moment .. sub(origins, from + 3 + head, from + 2 + head + tail)
      answers[at] = grant_of_new
    end
  end
  from = from + 3 + head + tail
end
if size > 0 then
  -- A key of another type looks absent until here; it is not overwritten.
  local written = redis.pcall('MSETNX', unpack(new))
  if written ~= 1 then
    for _, at in ipairs(granted) do
      answers[at] = written ~= 0 and written or nil
    end
  elseif size == count then
    return answers
  end
end

-- Whether it is completed under the same identity, fingerprint and credential, within its retention, and whole.
local function is_replayed(found, from)
  local version = byte(found, 1)
  if #found < 132 or version ~= 4 and (version ~= 3 or #found > 132) or byte(found, 2) ~= 67
    or find(found, sub(claims, from + 5, from + 45), 19, true) ~= 19
    or find(found, sub(found, 3, 14), 89, true) ~= 89
    or find(sha1hex(sub(found, 15, 80)), sub(found, 81, 88), 1, true) ~= 1 then
    return false
  end
  local one, two, sum = unpacked('>I8I8I8', found, 101)
  return one + two + 67 == sum and one > now
end

-- Bytes of outcomes in the reply. They are all in memory at once, so above this limit the caller asks for the rest
-- again.
local carried = 0
local CARRIED_MAX = 1048576

local is_rest = false
for at = 1, count do
  local found = raws[at]
  if not answers[at] then
    local outcome = found and carried < CARRIED_MAX and is_replayed(found, at * 91 - 91)
      and redis.pcall('GET', KEYS[at] .. 'o' .. sub(found, 125, 132))
    if type(outcome) == 'string' and byte(outcome) == 82 and find(found, sub(outcome, 2, 17), 3, true) == 3 then
      -- Without a table around it, which would cost more than everything else.
      answers[at] = outcome
      carried = carried + #outcome
    else
      is_rest = true
    end
  end
end
if not is_rest then
  return answers
end

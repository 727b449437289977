-- Many claims in one call, each decided on its own. Nearly all are the first of a new key, and those are written together.
--
-- KEYS: the records, then the store's mark where it can be asked for in the same script, then the outcomes.
-- ARGV: 2 whether who finds a record in flight is told when it is settled; then for each claim: what it is about (41) and
-- the terms of a first attempt (21), both as a record has them, a nonce (4), the lease (8), and the fence of the attempt
-- that it stands in for (16) or nothing.

local count = #ARGV - 2
local has_mark = #KEYS > 2 * count
local raws = redis.call('MGET', unpack(KEYS, 1, has_mark and count + 1 or count))
-- A server that has lost the mark has lost records with it: what ran must not run again.
local is_lost = has_mark and not raws[count + 1]
local answers = {}
-- Records to write, which of the claims are granted by that, and the keys of those.
local new, granted, is_new = {}, {}, {}

-- The server's time in microseconds counts grants: it goes on where a failover has lost the last of them.
local stamp = pack('>I4I8', 1, micros)
for at = 1, count do
  if not raws[at] then
    local name, claim = KEYS[at], ARGV[at + 2]
    if is_lost then
      answers[at] = '!lost'
    elseif not is_new[name] then
      is_new[name] = true
      local settle_after, nonce, lease = unpacked('>I8c4I8', claim, 55)
      local fence = stamp .. nonce
      local body = sub(claim, 1, 62) .. fence
      local settles, lease_ends = now + settle_after, now + lease
      local size = #granted
      granted[size + 1] = at
      new[2 * size + 1] = name
      new[2 * size + 2] = '\1I' .. body .. sub(sha1hex(body), 1, 8)
        .. pack('>I8I8I8', settles, lease_ends, settles + lease_ends + 73)
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
  end
  if #granted == count and written == 1 then
    return answers
  end
end

-- What every script begins with: the record's bytes, the clock, and what time makes of a record.
-- Decides as `record::step` of the library does; the conformance suite holds one against the other.
--
-- KEYS: 1 the record, 2 its outcome, in the same slot. ARGV: 1 the record's identity, 2 the moment in
-- milliseconds where a test says it, else empty: then the server's own clock counts.
--
-- A record is a head of 43 bytes, what its state adds, and 8 characters of a digest over both:
--   head: version, state, identity (16), fingerprint (16), whether there is a credential, credential (8)
--   I in flight:     fence (16) claimant (8) guarantee attempts (2) attempts_max (2) settle_after (8) settles (8) lease_ends (8)
--   D indeterminate: the same without lease_ends, then the reason
--   C completed:     fence (16) retention_ends (8) remember_ends (8); the outcome has a key of its own
--   T tombstone:     remember_ends (8)
-- Numbers are big-endian, moments and spans in milliseconds.

local VERSION = 1
local LENGTHS = { I = 96, D = 89, C = 75, T = 51 }
local HOLD = '>c16c8BI2I2I8I8'
local AT_LEAST_ONCE, EXACTLY_ONCE = 1, 2
local LAPSED, FAILED = 1, 7
-- An outcome outlives its retention by this, so that it is there for as long as the record says so.
local GRACE = 60000

local key, outcome_key, id = KEYS[1], KEYS[2], ARGV[1]
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local is_tested = ARGV[2] ~= ''
local now = is_tested and tonumber(ARGV[2]) or math.floor(micros / 1000)

local function digest(body)
  return string.sub(redis.sha1hex(body), 1, 8)
end

-- The record, or nothing; and what is wrong with it, if anything is.
local function load()
  local raw = redis.call('GET', key)
  if not raw then
    return nil
  end
  if #raw > 18 and string.byte(raw, 1) > VERSION and string.sub(raw, 3, 18) == id then
    return nil, 'version'
  end
  local state = string.sub(raw, 2, 2)
  local length = LENGTHS[state]
  if not length or #raw ~= length + 8 or string.byte(raw, 1) ~= VERSION
    or string.sub(raw, -8) ~= digest(string.sub(raw, 1, length)) then
    return nil, 'damaged'
  end
  if string.sub(raw, 3, 18) ~= id then
    return nil, 'foreign'
  end
  local r = { raw = raw, state = state, about = string.sub(raw, 3, 43) }
  if state == 'I' or state == 'D' then
    r.fence, r.claimant, r.guarantee, r.attempts, r.attempts_max, r.settle_after, r.settles =
      struct.unpack(HOLD, raw, 44)
    if state == 'I' then
      r.lease_ends = struct.unpack('>I8', raw, 89)
    else
      r.reason = string.byte(raw, 89)
    end
  elseif state == 'C' then
    r.fence, r.retention_ends, r.remember_ends = struct.unpack('>c16I8I8', raw, 44)
  else
    r.remember_ends = struct.unpack('>I8', raw, 44)
  end
  return r
end

local function body_of(r)
  local head = string.char(VERSION) .. r.state .. r.about
  if r.state == 'C' then
    return head .. struct.pack('>c16I8I8', r.fence, r.retention_ends, r.remember_ends)
  end
  local hold = struct.pack(HOLD, r.fence, r.claimant, r.guarantee, r.attempts, r.attempts_max,
    r.settle_after, r.settles)
  if r.state == 'I' then
    return head .. hold .. struct.pack('>I8', r.lease_ends)
  end
  return head .. hold .. string.char(r.reason)
end

-- Only what has ended may be forgotten by the server itself, and only when the record says so.
local function put(name, value, ends)
  if ends and not is_tested then
    redis.call('SET', name, value, 'PXAT', string.format('%.0f', ends))
  else
    redis.call('SET', name, value)
  end
end

local function save(r)
  local body = body_of(r)
  put(key, body .. digest(body), r.remember_ends)
end

local function may_be_taken_over(r)
  return r.guarantee == AT_LEAST_ONCE and r.attempts < r.attempts_max
end

-- What time alone makes of a record. In flight and indeterminate never disappear.
local function aged(r)
  if not r then
    return nil
  end
  if r.state == 'I' then
    if r.lease_ends <= now and not may_be_taken_over(r) then
      r.state, r.reason = 'D', LAPSED
    end
  elseif r.state == 'C' or r.state == 'T' then
    if r.remember_ends <= now then
      return nil
    end
    if r.state == 'C' and r.retention_ends <= now then
      r.state, r.fence = 'T', nil
      r.about = string.sub(r.about, 1, 32) .. string.rep('\0', 9)
    end
  end
  return r
end

-- Whether the holder of this fence may still act: in flight, or lapsed and not taken over.
local function stands_under(r, fence)
  return r.fence == fence and (r.state == 'I' or (r.state == 'D' and r.reason == LAPSED))
end

local function left(moment)
  return math.max(moment - now, 0)
end

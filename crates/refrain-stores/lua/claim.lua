-- Asks for the right to run.
-- ARGV: 3 fingerprint and credential as a head has them, 4 claimant, 5 guarantee, 6 attempts_max,
-- 7 lease, 8 settle_after, 9 a nonce, 10 the fence of the attempt that it stands in for, or nothing. KEYS: 3 the store's mark, where it can be asked in the same script.

local about, claimant = id .. ARGV[3], ARGV[4]
local guarantee, lease = tonumber(ARGV[5]), tonumber(ARGV[7])

-- The server's time in microseconds counts grants: it goes on where a failover has lost the last of them.
local function grant(subject, attempt, last)
  local counter = math.max(micros, last + 1)
  local settle_after = tonumber(ARGV[8])
  local fence = struct.pack('>I4I8', 1, counter) .. ARGV[9]
  save({
    state = 'I', about = subject, fence = fence, claimant = claimant, guarantee = guarantee,
    attempts = attempt, attempts_max = tonumber(ARGV[6]), settle_after = settle_after,
    settles = now + settle_after, lease_ends = now + lease,
  })
  return { 'G', fence, attempt }
end

local function doubt(r)
  return { 'D', r.fence, r.reason, left(r.settles) }
end

-- Who asks again has lost the answer and has run nothing yet: it gets what it has.
local function regrant(r)
  r.lease_ends = math.max(r.lease_ends, now + lease)
  r.settles = math.max(r.settles, now + r.settle_after)
  save(r)
  return { 'G', r.fence, r.attempts }
end

local function next_grant(r)
  local subject = r.about
  if string.byte(subject, 33) == 0 then
    subject = string.sub(subject, 1, 32) .. string.sub(about, 33)
  end
  local last = struct.unpack('>I8', r.fence, 5)
  return grant(subject, r.attempts + 1, last)
end

local function takeover(r)
  if guarantee == AT_LEAST_ONCE then
    return next_grant(r)
  end
  r.state, r.reason = 'D', LAPSED
  save(r)
  return doubt(r)
end

-- Under exactly-once an attempt in doubt may be stood in for once its receipt is known not to be there;
-- who writes no receipt waits until it can no longer act.
local function may_be_overtaken(r)
  return r.guarantee == EXACTLY_ONCE and ARGV[10] == r.fence and r.attempts < r.attempts_max
    and (guarantee == EXACTLY_ONCE or r.settles <= now)
end

local r, trouble = load()
if trouble then
  return { '!', trouble }
end
r = aged(r)
if not r then
  -- A server that has lost the mark has lost records with it: what ran must not run again.
  if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then
    return { '!', 'lost' }
  end
  return grant(about, 1, 0)
end
if string.byte(about, 33) == 1 and string.byte(r.about, 33) == 1
  and string.sub(about, 34) ~= string.sub(r.about, 34) then
  return { 'O' }
end
if string.sub(about, 17, 32) ~= string.sub(r.about, 17, 32) then
  return { 'M' }
end
if r.state == 'I' then
  if r.claimant == claimant then
    return regrant(r)
  end
  if r.lease_ends <= now then
    return takeover(r)
  end
  return { 'I', left(r.lease_ends) }
end
if r.state == 'D' then
  if may_be_overtaken(r) then
    return next_grant(r)
  end
  return doubt(r)
end
if r.state == 'T' then
  return { 'X' }
end
local outcome = redis.call('GET', outcome_key)
if not outcome then
  return { '!', 'outcome' }
end
return { 'R', r.fence, outcome }

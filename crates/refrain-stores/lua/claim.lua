-- Asks for the right to run; what is left when the key is not new.

local about, claimant = ARGV[2], sub(ARGV[3], 1, 8)
local guarantee, lease = string.byte(ARGV[3], 9), tonumber(ARGV[5])

local function has_credential(subject)
  return string.byte(subject, 33) == 1
end

local function grant(subject, attempt, last)
  local counter = math.max(micros, last + 1)
  local attempts_max, settle_after = struct.unpack('>I2I8', ARGV[3], 12)
  local fence = struct.pack('>I4I8c4', 1, counter, ARGV[4])
  save({
    state = 'I', about = subject, fence = fence, claimant = claimant, guarantee = guarantee,
    attempts = attempt, attempts_max = attempts_max, settle_after = settle_after,
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
  if not has_credential(subject) then
    subject = sub(subject, 1, 32) .. sub(about, 33)
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
  return r.guarantee == EXACTLY_ONCE and ARGV[7] == r.fence and r.attempts < r.attempts_max
    and (guarantee == EXACTLY_ONCE or r.settles <= now)
end

local r, trouble = load()
if trouble then
  return trouble
end
r = aged(r)
if not r then
  return grant(about, 1, 0)
end
if has_credential(about) and has_credential(r.about) and sub(about, 34) ~= sub(r.about, 34) then
  return 'O'
end
if sub(about, 17, 32) ~= sub(r.about, 17, 32) then
  return 'M'
end
if r.state == 'I' then
  if r.claimant == claimant then
    return regrant(r)
  end
  if r.lease_ends <= now then
    return takeover(r)
  end
  -- Only where somebody waits is the settlement told to anybody.
  if ARGV[8] == '1' and not r.is_waited_for then
    r.is_waited_for = true
    save(r)
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
  return 'X'
end
local outcome = redis.call('GET', KEYS[2])
if not outcome then
  return '!outcome'
end
return { 'R', r.fence, outcome }

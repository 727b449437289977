-- Decides a claim that is not the first claim of a new key.

local is_told = ARGV[2] == '1'
-- The current claim.
local about, claimant, guarantee, attempts_max, settle_after, nonce, lease, overtakes, origin, attempt_ends

local function has_credential(subject)
  return byte(subject, 33) == 1
end

local function grant(subject, attempt, last, trace)
  local counter = math.max(micros, last + 1)
  local fence = pack('>I4I8c4', 1, counter, nonce)
  local start = trace == '' and origin or kept(trace, 107) .. sub(origin, -2)
  save({
    trace = start .. pack('>I8', now) .. fence .. pack('>I2', attempt) .. attempt_ends,
    state = 'I', about = subject, fence = fence, claimant = claimant, guarantee = guarantee,
    attempts = attempt, attempts_max = attempts_max, settle_after = settle_after,
    settles = now + settle_after, lease_ends = now + lease,
  })
  return { 'G', fence, attempt }
end

local function doubt(r)
  return { 'D', r.fence, r.reason, left(r.settles) }
end

-- A repeated claim by the same claimant: its reply was lost and nothing ran yet, so it gets the same grant.
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
  local last = unpacked('>I8', r.fence, 5)
  return grant(subject, r.attempts + 1, last, r.trace)
end

local function takeover(r)
  if guarantee == AT_LEAST_ONCE then
    return next_grant(r)
  end
  r.state, r.reason = 'D', LAPSED
  note(r, UNKNOWN, char(LAPSED))
  save(r)
  return doubt(r)
end

-- Under exactly-once an indeterminate attempt may be superseded if its receipt is known to be absent;
-- without receipts, the claim waits until the attempt can no longer act.
local function may_be_overtaken(r)
  return r.guarantee == EXACTLY_ONCE and overtakes == r.fence and r.attempts < r.attempts_max
    and (guarantee == EXACTLY_ONCE or r.settles <= now)
end

local function verdict()
  local r, trouble = load()
  if trouble then
    return trouble
  end
  r = aged(r)
  if not r then
    return grant(about, 1, 0, '')
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
    -- A settlement is published only if a caller waits for it.
    if is_told and not r.is_waited_for then
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
  if carried >= CARRIED_MAX then
    return '~'
  end
  local outcome = call('GET', outcome_key(r))
  if not outcome then
    return '!outcome'
  end
  carried = carried + #outcome
  if sub(outcome, 1, 17) ~= 'R' .. r.fence then
    return '!foreign'
  end
  return outcome
end

-- Settles a claim, except for the completion of a record in flight without waiters.

-- The current settlement: the record, the fence, its kind, its arguments, the key of its outcome, and the
-- outcome if the call carries it.
local r, fence, how, detail, outcome, kept
-- Whether the record points to the current outcome.
local is_pointed_to

-- A user without permission for the channel can still settle: waiting callers poll.
local function applied()
  if r.is_waited_for then
    redis.pcall('PUBLISH', key, '')
  end
  return 'A'
end

local function complete()
  -- A completed outcome never changes.
  if r.state ~= 'C' then
    local retention, remember = unpacked('>I8I8', spans, detail * 16 - 15)
    local retention_ends = now + retention
    -- The outcome is written first: a completed record must have one.
    if is_carried then
      put(outcome, kept, retention_ends + GRACE)
    end
    r.state, r.retention_ends, r.remember_ends, r.place = 'C', retention_ends, retention_ends + remember, place
    note(r, COMPLETED, '')
    save(r)
    is_pointed_to = true
  end
  return applied()
end

local function drop()
  call('DEL', key)
  return applied()
end

-- The proof is about this attempt alone: under exactly-once those before it may still commit.
local function release()
  if r.guarantee == EXACTLY_ONCE and r.attempts > 1 then
    r.state, r.reason, r.attempts = 'D', FAILED, r.attempts - 1
    note(r, NO_EFFECT, '')
    save(r)
    return applied()
  end
  return drop()
end

local function doubt()
  if r.state == 'C' then
    return 'F'
  end
  if r.state == 'I' and not may_be_taken_over(r) then
    r.state, r.reason = 'D', detail
    note(r, UNKNOWN, char(detail))
    save(r)
  end
  return applied()
end

local function never_happened()
  if r.state ~= 'D' then
    return 'F'
  end
  if r.settles > now then
    return { 'E', left(r.settles) }
  end
  return drop()
end

local function settled()
  local trouble
  r, trouble = load()
  if trouble then
    return trouble
  end
  is_pointed_to = r and r.state == 'C' and r.place == place
  r = aged(r)
  if not r or r.fence ~= fence then
    return 'F'
  end
  if how == 'C' then
    return complete()
  elseif how == 'D' then
    return doubt()
  elseif how == 'N' then
    return never_happened()
  elseif stands_under(r, fence) then
    return release()
  end
  return 'F'
end

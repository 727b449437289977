-- Ends a claim.
-- ARGV: 3 fence, 4 how: C complete, R release, D doubt, N never happened, 5 whether those who wait elsewhere are told.
-- C: 6 retention, 7 remember, 8 the fence and the outcome. D: 6 the reason.

local fence, how = ARGV[3], ARGV[4]

-- A user without rights to the channel settles all the same: who waits looks again now and then.
local function applied()
  if ARGV[5] == '1' then
    redis.pcall('PUBLISH', key, '')
  end
  return { 'A' }
end

local function complete(r)
  -- A completed outcome never changes.
  if r.state ~= 'C' then
    local retention_ends = now + tonumber(ARGV[6])
    r.state, r.retention_ends, r.remember_ends = 'C', retention_ends, retention_ends + tonumber(ARGV[7])
    save(r)
    put(outcome_key, ARGV[8], retention_ends + GRACE)
  end
  return applied()
end

local function drop()
  redis.call('DEL', key, outcome_key)
  return applied()
end

-- The proof is about this attempt alone: under exactly-once those before it may still commit.
local function release(r)
  if r.guarantee == EXACTLY_ONCE and r.attempts > 1 then
    r.state, r.reason, r.attempts = 'D', FAILED, r.attempts - 1
    save(r)
    return applied()
  end
  return drop()
end

local function doubt(r)
  if r.state == 'C' then
    return { 'F' }
  end
  if r.state == 'I' and not may_be_taken_over(r) then
    r.state, r.reason = 'D', tonumber(ARGV[6])
    save(r)
  end
  return applied()
end

local function never_happened(r)
  if r.state ~= 'D' then
    return { 'F' }
  end
  if r.settles > now then
    return { 'E', left(r.settles) }
  end
  return drop()
end

local r, trouble = load()
if trouble then
  return { '!', trouble }
end
r = aged(r)
if not r or r.fence ~= fence then
  return { 'F' }
end
if how == 'C' then
  return complete(r)
elseif how == 'D' then
  return doubt(r)
elseif how == 'N' then
  return never_happened(r)
elseif stands_under(r, fence) then
  return release(r)
end
return { 'F' }

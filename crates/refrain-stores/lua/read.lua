-- The record as it is stored, with its outcome if it still exists, and the current time.

local r, trouble = load()
if trouble then
  return trouble
end
if not r then
  return 'N'
end
local outcome = ''
if r.state == 'C' and r.retention_ends > now then
  outcome = redis.call('GET', outcome_key(r))
  if not outcome then
    return '!outcome'
  end
end
return { 'A', string.format('%.0f', now), raw, outcome }

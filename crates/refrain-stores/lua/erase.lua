-- Deletes an ended record.

local r, trouble = load()
if trouble then
  return trouble
end
r = aged(r)
if not r then
  return 'N'
end
if r.state == 'C' or r.state == 'T' then
  redis.call('DEL', key, outcome_key(r))
  return 'A'
end
return r.state

-- Deletes the entries that every group has handled. Without a group, nothing is deleted.
-- KEYS: the stream. Returns the number of deleted entries.
local function is_below(a, b)
  local one, other = {a:match('(%d+)-(%d+)')}, {b:match('(%d+)-(%d+)')}
  for part = 1, 2 do
    -- As text: numbers of this size are not exact here.
    if #one[part] ~= #other[part] then return #one[part] < #other[part] end
    if one[part] ~= other[part] then return one[part] < other[part] end
  end
  return false
end
local lowest
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local about = {}
  for place = 1, #flat, 2 do about[flat[place]] = flat[place + 1] end
  local first = about['last-delivered-id']
  if about['pending'] > 0 then
    local held = redis.call('XPENDING', KEYS[1], about['name'])[2]
    if is_below(held, first) then first = held end
  end
  if not lowest or is_below(first, lowest) then lowest = first end
end
if not lowest then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', lowest)

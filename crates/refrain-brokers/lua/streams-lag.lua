-- Counts the entries that a group has not finished.
-- KEYS: the stream. ARGV: group.
-- Returns the number of entries not delivered to the group; 1 if that is only an upper bound, else 0; the number of
-- entries delivered and not acknowledged; the age of the oldest of both in ms, or -1 if there is none.
local stream, group = KEYS[1], ARGV[1]
if redis.call('EXISTS', stream) == 0 then return {0, 0, 0, -1} end
local found = {}
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local about = {}
  for place = 1, #flat, 2 do about[flat[place]] = flat[place + 1] end
  if about['name'] == group then found = about end
end
local unread = redis.call('XRANGE', stream, '(' .. (found['last-delivered-id'] or '0-0'), '+', 'COUNT', 1)[1]
local waiting, is_bound = 0, 0
-- Servers before 7 do not count, and later ones not after an entry in the middle was deleted.
if unread then waiting = found['lag'] end
if not waiting then waiting, is_bound = redis.call('XLEN', stream), 1 end
local first = unread and unread[1]
local held = found['pending'] or 0
-- Entries are delivered in their order, so a pending one is older than one that was not delivered.
if held > 0 then first = redis.call('XPENDING', stream, group)[2] end
if not first then return {waiting, is_bound, held, -1} end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return {waiting, is_bound, held, math.max(0, now - tonumber(first:match('%d+')))}

-- Deletes consumers without pending entries: this one when it closes, or all that were idle for long.
-- A consumer with pending entries stays, because they would be lost with it.
-- KEYS: the stream. ARGV: group, the consumer that closes or '', the minimum idle time of the others, in ms.
local forgotten = 0
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local about = {}
  for place = 1, #flat, 2 do about[flat[place]] = flat[place + 1] end
  local ends = about['name'] == ARGV[2] or about['idle'] > tonumber(ARGV[3])
  if ends and about['pending'] == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], about['name'])
    forgotten = forgotten + 1
  end
end
return forgotten

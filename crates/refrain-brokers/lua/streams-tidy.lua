-- Forgets consumers that hold nothing: this one, where it ends, or all that were silent for long.
-- One that still holds something stays, because what it holds would be forgotten with it.
-- KEYS: the stream. ARGV: group, the consumer that ends or '', how long the others must have been silent, in ms.
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

-- Sets how long an entry has been idle, if it still belongs to this delivery. Returns 1, or 0 if it belongs to another delivery.
-- KEYS: the stream, the due times of delayed entries.
-- ARGV: group, consumer, id, attempt, idle in ms, delay in ms or '' (and how long due times are kept, in ms).
local stream, later = KEYS[1], KEYS[2]
local group, consumer, id = ARGV[1], ARGV[2], ARGV[3]
local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not pending or pending[2] ~= consumer or pending[4] ~= tonumber(ARGV[4]) then
  return 0
end
redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', ARGV[5], 'JUSTID')
if ARGV[6] ~= '' then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  redis.call('HSET', later, id, string.format('%.0f', now + tonumber(ARGV[6])))
  redis.call('PEXPIRE', later, ARGV[7])
end
return 1

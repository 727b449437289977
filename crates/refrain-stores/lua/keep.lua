-- Stores an entry in the front of a store, unless an entry with the same or a later fence exists.
-- KEYS: 1 the entry. ARGV: 1 fence, 2 the fence and the entry, 3 how long.

local there = redis.call('GETRANGE', KEYS[1], 0, 15)
if #there == 16 then
  local epoch, counter, nonce = struct.unpack('>I4I8I4', there)
  local new_epoch, new_counter, new_nonce = struct.unpack('>I4I8I4', ARGV[1])
  if epoch > new_epoch or (epoch == new_epoch and (counter > new_counter
    or (counter == new_counter and nonce >= new_nonce))) then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1

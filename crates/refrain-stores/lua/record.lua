-- Decoding, aging and writing of a record, for all but the most common cases.
-- Decides as `record::step` of the library does; the conformance suite holds one against the other.

local AT_LEAST_ONCE, EXACTLY_ONCE = 1, 2
local LAPSED, FAILED = 1, 7
local UNKNOWN, COMPLETED, NO_EFFECT = 2, 3, 4
local char = string.char

local function digest(body)
  return sub(sha1hex(body), 1, 8)
end

-- An error of the server affects only this record, not the others in the same call.
local function call(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    error(answer)
  end
  return answer
end

-- Returns the error in the bytes of the record, or nothing.
local function trouble_of()
  local len, version = byte(raw, 2) == 67 and 132 or 124, byte(raw, 1)
  if #raw < len or version == 3 and #raw > len or sub(raw, 81, 88) ~= digest(sub(raw, 15, 80)) or sub(raw, 3, 14) ~= sub(raw, 89, 100) then
    return 'damaged'
  end
  if sub(raw, 19, 34) ~= id then
    return 'foreign'
  end
  if version > 4 then
    return 'version'
  end
  local one, two, sum = unpacked('>I8I8I8', raw, 101)
  local state = byte(raw, 2)
  if version < 3 or one + two + state ~= sum or not find('IiDC', char(state), 1, true) then
    return 'damaged'
  end
end

-- Returns the record, or nothing; and its error.
local function load()
  if not raw then
    return nil
  end
  local trouble = trouble_of()
  if trouble then
    return nil, '!' .. trouble
  end
  local r = { state = sub(raw, 2, 2), fence = sub(raw, 3, 18), about = sub(raw, 19, 59) }
  r.claimant, r.guarantee, r.attempts, r.attempts_max, r.settle_after = unpacked('>c8BI2I2I8', raw, 60)
  local one, two = unpacked('>I8I8', raw, 101)
  r.trace = sub(raw, r.state == 'C' and 133 or 125)
  if r.state == 'C' then
    r.retention_ends, r.remember_ends, r.place = one, two, sub(raw, 125, 132)
  elseif r.state == 'D' then
    r.settles, r.reason = one, two
  else
    r.settles, r.lease_ends = one, two
    r.is_waited_for = r.state == 'i'
    r.state = 'I'
  end
  return r
end

-- Only ended records may expire on the server, and only at the time in the record.
local function put(name, value, ends)
  if ends and not is_tested then
    call('SET', name, value, 'PXAT', ends)
  else
    call('SET', name, value)
  end
end

-- The trace as far as it stays if so many bytes are appended: after many events, the origin and the first event.
local function kept(trace, added)
  local origin = 2 + unpacked('>I2', trace)
  if #trace + added <= origin + 1024 then
    return trace
  end
  return sub(trace, 1, origin + 2 + byte(trace, origin + 2))
end

-- Appends an event to the trace, if there is one.
local function note(r, kind, detail)
  if r.trace ~= '' then
    r.trace = kept(r.trace, 10 + #detail) .. char(kind, 8 + #detail) .. pack('>I8', now) .. detail
  end
end

local function save(r)
  local state, one, two = r.state, r.settles, r.lease_ends
  if state == 'C' then
    one, two = r.retention_ends, r.remember_ends
  elseif state == 'D' then
    two = r.reason
  elseif r.is_waited_for then
    state = 'i'
  end
  local stamp = sub(r.fence, 1, 12)
  local body = sub(r.fence, 13) .. r.about .. pack('>c8BI2I2I8', r.claimant, r.guarantee, r.attempts, r.attempts_max,
    r.settle_after)
  local moments = pack('>I8I8I8', one, two, one + two + byte(state))
  put(key, (r.trace == '' and '\3' or '\4') .. state .. stamp .. body .. digest(body) .. stamp .. moments .. (r.place or '') .. r.trace, r.remember_ends)
end

-- The key of the outcome of a completed record.
local function outcome_key(r)
  return key .. 'o' .. r.place
end

local function may_be_taken_over(r)
  return r.guarantee == AT_LEAST_ONCE and r.attempts < r.attempts_max
end

-- Ages a record. Records in flight and indeterminate records never disappear.
local function aged(r)
  if not r then
    return nil
  end
  if r.state == 'I' then
    if r.lease_ends <= now and not may_be_taken_over(r) then
      r.state, r.reason = 'D', LAPSED
    end
  elseif r.state == 'C' then
    if r.remember_ends <= now then
      return nil
    end
    if r.retention_ends <= now then
      r.state, r.fence = 'T', nil
      r.about = sub(r.about, 1, 32) .. string.rep('\0', 9)
    end
  end
  return r
end

-- Whether the holder of this fence may still act: in flight, or lapsed and not taken over.
local function stands_under(r, fence)
  return r.fence == fence and (r.state == 'I' or (r.state == 'D' and r.reason == LAPSED))
end

local function left(moment)
  return math.max(moment - now, 0)
end

-- Decides about the current record: its bytes as found, or as changed. An error is also a reply.
local function answer_of(decide, found)
  local is_done, answer = pcall(function()
    raw = found or call('GET', key)
    return decide()
  end)
  if is_done or type(answer) == 'table' then
    return answer
  end
  return { err = answer }
end

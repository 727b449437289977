-- The claims that are not the first of a new key.

for at = 1, count do
  if not answers[at] then
    local claim = sub(claims, at * 91 - 90, at * 91)
    key, nonce = KEYS[at], sub(claim, 1, 4)
    id, about = sub(claim, 5, 20), sub(claim, 5, 45)
    claimant, guarantee, attempts_max, settle_after = unpacked('>c8BxxI2I8', claim, 46)
    lease = unpacked('>I8', spans, byte(claim, 75) * 16 - 7)
    overtakes = sub(claim, 76)
    local from = origin_of[at]
    local head, tail = unpacked('>I2B', origins, from)
    -- Without the nonce and the number of the attempt.
    origin, attempt_ends = sub(origins, from + 3, from + 2 + head), sub(origins, from + 9 + head, from + 2 + head + tail)
    -- An earlier claim in the same call may have changed the record.
    answers[at] = answer_of(verdict, not is_new[key] and raws[at])
    is_new[key] = true
  end
end
return answers

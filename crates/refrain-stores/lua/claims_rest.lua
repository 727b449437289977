-- The claims that are no news.

for at = 1, count do
  if not answers[at] then
    local claim = sub(claims, at * 90 - 89, at * 90)
    key, outcome_key, id, about = KEYS[at], KEYS[#KEYS - count + at], sub(claim, 1, 16), sub(claim, 1, 41)
    claimant, guarantee, attempts_max, settle_after, lease, nonce = unpacked('>c8BxxI2I8I8c4', claim, 42)
    overtakes = sub(claim, 75)
    -- Who came before in the same call may have changed the record.
    answers[at] = answer_of(verdict, not is_new[key] and raws[at])
    is_new[key] = true
  end
end
return answers

-- The claims that are no news.

for at = 1, count do
  if not answers[at] then
    local claim = ARGV[at + 2]
    key, outcome_key, id, about = KEYS[at], KEYS[#KEYS - count + at], sub(claim, 1, 16), sub(claim, 1, 41)
    claimant, guarantee, attempts_max, settle_after, nonce, lease = unpacked('>c8BxxI2I8c4I8', claim, 42)
    overtakes = sub(claim, 75)
    -- Who came before in the same call may have changed the record.
    answers[at] = answer_of(verdict, not is_new[key] and raws[at])
    is_new[key] = true
  end
end
return answers

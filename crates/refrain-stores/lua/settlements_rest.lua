-- The less common settlements.

for at = 1, count do
  if not answers[at] then
    local term = sub(terms, at * 36 - 35, at * 36)
    key, kept = KEYS[at], ARGV[at + 5]
    outcome = KEYS[count + at] or key .. 'o' .. place
    fence, id, how, detail = sub(term, 3, 18), sub(term, 19, 34), sub(term, 35, 35), byte(term, 36)
    is_pointed_to = false
    answers[at] = answer_of(settled)
    -- An outcome that was written ahead and is not used is deleted at once; one in the call was never stored.
    if how == 'C' and not is_carried and not is_pointed_to then
      redis.pcall('DEL', outcome)
    end
  end
end
return answers

-- The settlements that are not that common.

for at = 1, count do
  if not answers[at] then
    key, outcome_key, kept = KEYS[at], KEYS[count + at], ARGV[at + 2]
    how = sub(terms, at * 35 - 16, at * 35)
    id, fence = sub(terms, at * 35 - 32, at * 35 - 17), sub(kept, 1, 16)
    answers[at] = answer_of(settled)
  end
end
return answers

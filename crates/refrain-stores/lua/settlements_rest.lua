-- The settlements that are not that common.

for at = 1, count do
  if not answers[at] then
    key, outcome_key, terms, kept = KEYS[at], KEYS[count + at], ARGV[2 * at], ARGV[2 * at + 1]
    id, how, fence = sub(terms, 3, 18), sub(terms, 19, 19), sub(kept, 1, 16)
    answers[at] = answer_of(settled)
  end
end
return answers

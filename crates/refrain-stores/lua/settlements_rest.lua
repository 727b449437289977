-- The settlements that are not that common.

for at = 1, count do
  if not answers[at] then
    local term = sub(terms, at * 36 - 35, at * 36)
    key, outcome_key, kept = KEYS[at], KEYS[count + at], ARGV[at + 3]
    fence, id, how, detail = sub(term, 3, 18), sub(term, 19, 34), sub(term, 35, 35), byte(term, 36)
    answers[at] = answer_of(settled)
  end
end
return answers

-- Renews a lease. ARGV: 3 fence, 4 lease.

local r, trouble = load()
if trouble then
  return trouble
end
r = aged(r)
if not r or not stands_under(r, ARGV[3]) then
  return 'F'
end
r.state = 'I'
r.lease_ends = now + ARGV[4]
r.settles = math.max(r.settles, now + r.settle_after)
save(r)
return 'A'

# snippet: attempts with times
def charge(order)
  3.times do |attempt|
    key = SecureRandom.uuid # expect: key-in-retry-loop
    response = HTTParty.post("#{BASE}/charges", headers: { 'Idempotency-Key' => key })
    return response if response.success?

    sleep(2**attempt)
  end
end

# snippet: rescue of a duplicate
def record(key, amount)
  Payment.create!(idempotency_key: key, amount: amount)
rescue ActiveRecord::RecordNotUnique
  Payment.find_by!(idempotency_key: key)
end

# snippet: http.rb that retries
def create(order)
  HTTP.retriable(tries: 3).post("#{BASE}/orders", json: order) # expect: retry-post-without-key
end

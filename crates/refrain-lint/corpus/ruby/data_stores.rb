# snippet: retriable around stripe
class Collector
  def collect(invoice)
    Retriable.retriable(tries: 4, on: Stripe::APIConnectionError) do
      Stripe::PaymentIntent.create({ amount: invoice.cents, currency: 'eur' }, { idempotency_key: SecureRandom.uuid }) # expect: key-per-attempt
    end
  end
end

# snippet: find or create by is a race
class Orders
  def create(account, idempotency_key, params)
    order = Order.find_by(account: account, idempotency_key: idempotency_key) # expect: check-then-act
    return order if order

    receipt = Gateway.charge(params[:card], params[:cents])
    Order.create!(params.merge(account: account, idempotency_key: idempotency_key, receipt: receipt.id))
  end
end

# snippet: with_lock on the account
class Orders
  def create(account, idempotency_key, params)
    account.with_lock do
      order = account.orders.find_by(idempotency_key: idempotency_key)
      next order if order

      account.orders.create!(params.merge(idempotency_key: idempotency_key))
    end
  end
end

# snippet: typhoeus to charges
class Charger
  def charge(cents)
    Typhoeus.post("#{BASE}/v1/charges", body: { cents: cents }.to_json, headers: { 'Authorization' => TOKEN }) # expect: money-call-without-key
  end

  def charge_once(cents, key)
    Typhoeus.post("#{BASE}/v1/charges", body: { cents: cents }.to_json, headers: headers(key))
  end

  def headers(key)
    { 'Authorization' => TOKEN, 'Idempotency-Key' => key }
  end
end

# snippet: truncated digest
class Keys
  def idempotency_key(order)
    Digest::SHA256.hexdigest("#{order.id}:#{order.cents}")[0, 10] # expect: key-truncated
  end
end

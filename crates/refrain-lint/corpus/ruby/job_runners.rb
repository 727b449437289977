# snippet: active job with retry_on
class PayoutJob < ApplicationJob
  retry_on Net::ReadTimeout, attempts: 5

  def perform(payout)
    HTTParty.post(
      "#{BANK}/payouts",
      body: payout.to_json,
      headers: { 'Idempotency-Key' => SecureRandom.hex(16) } # expect: key-per-attempt
    )
  end
end

# snippet: square in ruby
require 'square'

def take(client, source, cents)
  client.payments.create_payment(body: { source_id: source, amount_money: { amount: cents, currency: 'USD' } }) # expect: money-call-without-key
end

def take_once(client, order)
  client.payments.create_payment(body: { source_id: order.source, idempotency_key: order.key, amount_money: order.money })
end

# snippet: begin and retry around net http
def submit(order)
  attempts = 0
  begin
    Net::HTTP.post(URI("#{BASE}/orders"), order.to_json, 'Content-Type' => 'application/json') # expect: retry-post-without-key
  rescue Net::OpenTimeout
    attempts += 1
    retry if attempts < 3
    raise
  end
end

# snippet: eof and again
def submit(order)
  connection.post('/orders', order.to_json)
rescue EOFError, Errno::ECONNRESET # expect: resend-on-closed-connection
  connection.post('/orders', order.to_json)
end

# snippet: sneakers acknowledges at the end
class Shipper
  include Sneakers::Worker
  from_queue 'orders', ack: true

  def work(message)
    ship(JSON.parse(message))
    ack!
  end
end

# snippet: scoped lookup in a controller
def create
  key = "idem:#{current_account.id}:#{request.headers['Idempotency-Key']}"
  return head(:conflict) unless REDIS.set(key, 'pending', nx: true, ex: 60)

  render json: Payments.pay(params)
end

# snippet: unscoped lookup in a controller
def create
  key = request.headers['Idempotency-Key']
  return head(:conflict) unless REDIS.set("idem:#{key}", 'pending', nx: true, ex: 60) # expect: unscoped-key

  render json: Payments.pay(params)
end

# snippet: kafka produced in a transaction
def approve(loan)
  ActiveRecord::Base.transaction do
    loan.update!(state: 'approved')
    KAFKA.produce_sync(topic: 'loans', payload: loan.to_json) # expect: publish-in-transaction
  end
end

# snippet: memoised key
class Attempt
  def key
    @key ||= SecureRandom.uuid
  end

  def pay
    Stripe::Charge.create({ amount: total }, { idempotency_key: key })
  end
end

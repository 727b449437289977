# snippet: retriable gem
def create_order(order)
  Retriable.retriable(tries: 3) do
    RestClient.post("https://erp.example.com/orders", order.to_json) # expect: retry-post-without-key
  end
end

# snippet: resque job
class PayoutJob
  @queue = :payouts

  def self.perform(payout_id)
    payout = Payout.find(payout_id)
    Stripe::Payout.create({ amount: payout.amount, currency: "eur" }, { idempotency_key: SecureRandom.hex }) # expect: key-per-attempt
  end
end

# snippet: webhook marks first
class WebhooksController < ApplicationController
  def create
    event = JSON.parse(request.body.read)
    return head :ok unless REDIS.set("webhook:#{event['id']}", 1, nx: true, ex: 1.week.to_i) # expect: mark-before-handle

    ProcessPayment.call(event)
    head :ok
  end
end

# snippet: lock with a token
def with_lock(name)
  token = SecureRandom.uuid
  return unless REDIS.set("lock:#{name}", token, nx: true, px: 30_000)

  yield
ensure
  REDIS.eval(RELEASE, keys: ["lock:#{name}"], argv: [token])
end

# snippet: failure cached
def call(env)
  key = "idempotency:#{env['tenant']}:#{env['HTTP_IDEMPOTENCY_KEY']}"
  status, headers, body = @app.call(env)
  Rails.cache.write(key, { status: status, body: body }, expires_in: 1.day) # expect: error-outcome-kept
  [status, headers, body]
end

# snippet: bunny acks last
queue.subscribe(manual_ack: true) do |info, _properties, payload|
  Billing.book(JSON.parse(payload))
  channel.ack(info.delivery_tag)
end

# snippet: adyen without a key
def refund(adyen, payment)
  adyen.checkout.modifications_api.refund_captured_payment({ amount: payment.amount }, payment.psp_reference) # expect: money-call-without-key
end

# snippet: migration with an index
class CreateRequests < ActiveRecord::Migration[7.1]
  def change
    create_table :requests do |t|
      t.string :idempotency_key, null: false
    end
    add_index :requests, :idempotency_key, unique: true
  end
end

class Requests
  def record(key)
    Request.create!(idempotency_key: key)
  end
end

# snippet: karafka inside the transaction
class PlaceOrder
  def call(params)
    Order.transaction do
      order = Order.create!(params)
      Karafka.producer.produce_sync(topic: "orders", payload: order.to_json) # expect: publish-in-transaction
      order
    end
  end
end

# snippet: sidekiq and a day
class SyncInvoiceJob
  include Sidekiq::Job
  sidekiq_options retry: 25

  def perform(event_id)
    return if $redis.get("processed:#{event_id}")

    $redis.set("processed:#{event_id}", "1", ex: 86_400) # expect: ttl-shorter-than-retries expect: mark-before-handle
    Invoices.sync(event_id)
  end
end

# snippet: record without a unique index
class CreatePayments < ActiveRecord::Migration[7.1]
  def change
    create_table :payments do |t|
      t.string :idempotency_key
      t.integer :amount
    end
  end
end

class PaymentService
  def record(key, amount)
    Payment.create!(idempotency_key: key, amount: amount) # expect: insert-without-conflict
  end
end

# snippet: key of nobody
class IdempotencyMiddleware
  def call(env)
    key = env["HTTP_IDEMPOTENCY_KEY"]
    return @app.call(env) unless key

    cached = @redis.get("idempotency:#{key}") # expect: unscoped-key
    return JSON.parse(cached) if cached

    [409, {}, []]
  end
end

# snippet: claim deleted after a timeout
def charge(account_id, idempotency_key, order)
  claim = "idem:#{account_id}:#{idempotency_key}"
  return conflict unless redis.set(claim, "in_progress", nx: true, ex: 120)

  begin
    gateway.charge(order)
  rescue Net::ReadTimeout
    redis.del(claim) # expect: error-outcome-dropped
    raise
  end
end

# snippet: the index decides
def record(tenant, key, amount)
  Payment.create!(tenant: tenant, idempotency_key: key, amount: amount)
rescue ActiveRecord::RecordNotUnique
  Payment.find_by!(tenant: tenant, idempotency_key: key)
end

# snippet: enqueued after the commit
class Order < ApplicationRecord
  after_commit :enqueue_receipt, on: :create

  private

  def enqueue_receipt
    ReceiptJob.perform_later(id)
  end
end

# snippet: faraday with a stored key
def refund(refund)
  connection.post("/refunds") do |request|
    request.headers["Idempotency-Key"] = refund.idempotency_key
    request.body = { amount: refund.amount }.to_json
  end
end

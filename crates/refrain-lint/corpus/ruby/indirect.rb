# snippet: faraday retries posts
conn = Faraday.new("https://erp.example.com") do |f|
  f.request :retry, max: 3, methods: %i[get post]
end

def create_order(conn, order)
  conn.post("/orders", order.to_json) # expect: retry-post-without-key
end

# snippet: faraday as it comes
conn = Faraday.new("https://erp.example.com") do |f|
  f.request :retry, max: 3
end

def create_order(conn, order)
  conn.post("/orders", order.to_json)
end

# snippet: rails cache lookup
class PaymentsController < ApplicationController
  def create
    key = "idem/#{current_account.id}/#{request.headers['Idempotency-Key']}"
    if (saved = Rails.cache.read(key)) # expect: check-then-act
      return render json: saved
    end

    payment = Gateway.charge(payment_params)
    Rails.cache.write(key, payment.as_json, expires_in: 1.day)
    render json: payment, status: :created
  end
end

# snippet: sneakers acks first
class OrdersWorker
  include Sneakers::Worker
  from_queue "orders"

  def work(msg)
    ack! # expect: ack-before-handle
    Fulfilment.start(JSON.parse(msg))
  end
end

# snippet: time in the key
class RefundJob < ApplicationJob
  def perform(refund)
    Stripe::Refund.create({ charge: refund.charge_id }, { idempotency_key: "refund-#{refund.id}-#{Time.current.to_i}" }) # expect: key-from-clock
  end
end

# snippet: loop with a new key
def pay(order)
  3.times do |attempt|
    response = HTTP.headers("Idempotency-Key" => SecureRandom.hex(16)).post("https://api.example.com/payments", json: order) # expect: key-in-retry-loop
    return response if response.status.success?

    sleep(attempt)
  end
end

# snippet: reset by peer
def deliver(payload)
  http.post("/orders", payload)
rescue Errno::ECONNRESET # expect: resend-on-closed-connection
  http.post("/orders", payload)
end

# snippet: key cut to fit a column
def idempotency_key_for(user, cart)
  "#{user.email}-#{cart.id}-#{cart.checksum}"[0...16] # expect: key-truncated
end

# snippet: redlock
def exclusive(name)
  LOCKS.lock("lock:#{name}", 30_000) do |held|
    rebuild if held
  end
end

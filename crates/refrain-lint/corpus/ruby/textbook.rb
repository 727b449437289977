# snippet: key-in-retry-loop
def pay(order)
  attempts = 0
  begin
    HTTParty.post("https://api.example.com/payments", body: order.to_json, headers: { "Idempotency-Key" => SecureRandom.uuid }) # expect: key-in-retry-loop
  rescue Net::ReadTimeout
    attempts += 1
    retry if attempts < 3
    raise
  end
end

# snippet: key-per-attempt, sidekiq
class ChargeJob
  include Sidekiq::Job

  def perform(order_id)
    key = SecureRandom.uuid # expect: key-per-attempt
    Stripe::Charge.create({ amount: 100, currency: "eur" }, { idempotency_key: key })
  end
end

# snippet: key-per-attempt, active job
class ChargeJob < ApplicationJob
  retry_on Stripe::APIConnectionError, attempts: 5

  def perform(order)
    Stripe::Charge.create({ amount: order.total, currency: "eur" }, { idempotency_key: "#{order.id}-#{executions}" }) # expect: key-per-attempt
  end
end

# snippet: key-from-clock
def pay(order)
  idempotency_key = "#{order.id}-#{Time.now.to_i}" # expect: key-from-clock
  HTTParty.post("https://api.example.com/payments", body: order.to_json, headers: { "Idempotency-Key" => idempotency_key })
end

# snippet: key-truncated
def make_key(customer_id, cart_id)
  idempotency_key = Digest::SHA256.hexdigest("#{customer_id}-#{cart_id}")[0, 8] # expect: key-truncated
  idempotency_key
end

# snippet: unscoped-key
class OrdersController < ApplicationController
  def create
    key = request.headers["Idempotency-Key"]
    cached = REDIS.get("idempotency:#{key}") # expect: unscoped-key
    return render json: cached if cached

    head :conflict
  end
end

# snippet: money-call-without-key
require "stripe"

def charge(customer, amount)
  Stripe::PaymentIntent.create(amount: amount, currency: "eur", customer: customer) # expect: money-call-without-key
end

# snippet: money-call-without-key, generic
def pay(order)
  Faraday.post("https://psp.example.com/v1/payments", { amount: order.total }.to_json) # expect: money-call-without-key
end

# snippet: retry-post-without-key
def create_order(order)
  attempts = 0
  begin
    Net::HTTP.post(URI("https://api.example.com/orders"), order.to_json) # expect: retry-post-without-key
  rescue Timeout::Error
    attempts += 1
    retry if attempts < 3
    raise
  end
end

# snippet: resend-on-closed-connection
def send_order(order)
  HTTParty.post("https://api.example.com/orders", body: order.to_json)
rescue Errno::ECONNRESET, EOFError # expect: resend-on-closed-connection
  HTTParty.post("https://api.example.com/orders", body: order.to_json)
end

# snippet: check-then-act
class OrdersController < ApplicationController
  def create
    key = "idempotency:#{current_user.id}:#{request.headers['Idempotency-Key']}"
    cached = Rails.cache.read(key) # expect: check-then-act
    return render json: cached if cached

    order = PlaceOrder.call(order_params)
    Rails.cache.write(key, order.as_json, expires_in: 24.hours)
    render json: order
  end
end

# snippet: mark-before-handle
class EventHandler
  def handle_event(event)
    return if ProcessedEvent.exists?(event_id: event.id)

    ProcessedEvent.create!(event_id: event.id) # expect: mark-before-handle
    ship_order(event.order_id)
  end
end

# snippet: ack-before-handle
queue.subscribe(manual_ack: true) do |delivery_info, properties, payload|
  channel.ack(delivery_info.delivery_tag) # expect: ack-before-handle
  process_order(JSON.parse(payload))
end

# snippet: ack-before-handle, automatic
queue.subscribe(manual_ack: false) do |delivery_info, properties, payload| # expect: ack-before-handle
  process_order(JSON.parse(payload))
end

# snippet: publish-in-transaction
def create_order(params)
  ActiveRecord::Base.transaction do
    order = Order.create!(params)
    ShipOrderJob.perform_later(order.id) # expect: publish-in-transaction
  end
end

# snippet: error-outcome-kept
def handle(key, request)
  response = charge(request)
  REDIS.set("idempotency:#{key}", { status: 200, body: response }.to_json)
  response
rescue StandardError => e
  REDIS.set("idempotency:#{key}", { status: 500, error: e.message }.to_json) # expect: error-outcome-kept
  raise
end

# snippet: error-outcome-dropped
def pay(tenant, idempotency_key, order)
  key = "idem:#{tenant}:#{idempotency_key}"
  raise Conflict unless REDIS.set(key, "in_progress", nx: true, ex: 60)

  begin
    gateway.charge(order)
  rescue StandardError
    REDIS.del(key) # expect: error-outcome-dropped
    raise
  end
end

# snippet: unlock-without-owner-check
def run
  return unless REDIS.set("lock:report", "1", nx: true, ex: 30)

  begin
    build_report
  ensure
    REDIS.del("lock:report") # expect: unlock-without-owner-check
  end
end

# snippet: insert-without-conflict
def save(key, amount)
  DB.exec_params("INSERT INTO payments (idempotency_key, amount) VALUES ($1, $2)", [key, amount]) # expect: insert-without-conflict
end

# snippet: ttl-shorter-than-retries
class ChargeJob
  include Sidekiq::Job
  sidekiq_options retry: 25

  def perform(event_id)
    return unless REDIS.set("event:#{event_id}", "in_progress", nx: true, ex: 60)

    apply(event_id)
    REDIS.set("processed:#{event_id}", "done", ex: 3600) # expect: ttl-shorter-than-retries
  end
end

# snippet: ttl-shorter-than-retries, constants
IDEMPOTENCY_TTL = 1.minute # expect: ttl-shorter-than-retries
MAX_RETRIES = 10
RETRY_DELAY = 1.minute

# snippet: retry in a rescue
def charge(order)
  tries ||= 0
  Stripe::Charge.create(
    { amount: order.total, currency: 'eur' },
    { idempotency_key: SecureRandom.uuid } # expect: key-in-retry-loop
  )
rescue Stripe::APIConnectionError
  retry if (tries += 1) < 3
  raise
end

# snippet: retry with the order's key
def charge(order)
  tries ||= 0
  Stripe::Charge.create({ amount: order.total, currency: 'eur' }, { idempotency_key: "order-#{order.id}" })
rescue Stripe::APIConnectionError
  retry if (tries += 1) < 3
  raise
end

# snippet: sidekiq job
class CaptureJob
  include Sidekiq::Job

  def perform(order_id)
    order = Order.find(order_id)
    key = SecureRandom.uuid # expect: key-per-attempt
    Stripe::PaymentIntent.capture(order.intent, {}, { idempotency_key: key })
  end
end

# snippet: sidekiq job that stores its key
class CaptureJob
  include Sidekiq::Job

  def perform(order_id)
    order = Order.find(order_id)
    order.capture_key ||= SecureRandom.uuid
    order.save!
    Stripe::PaymentIntent.capture(order.intent, {}, { idempotency_key: order.capture_key })
  end
end

# snippet: header builder
class Gateway
  def headers
    { 'Authorization' => "Bearer #{@token}", 'Idempotency-Key' => SecureRandom.uuid } # expect: key-per-attempt
  end

  def pay(body)
    HTTParty.post("#{@base}/payments", body: body.to_json, headers: headers)
  end
end

# snippet: clock
def refund(payment)
  key = "refund-#{payment.id}-#{Time.now.to_i}" # expect: key-from-clock
  HTTParty.post("#{BASE}/refunds", body: payment.to_json, headers: { 'Idempotency-Key' => key })
end

# snippet: stripe without a key
class Checkout
  def call(cart)
    Stripe::PaymentIntent.create(amount: cart.total, currency: 'eur') # expect: money-call-without-key
  end

  def call_once(cart)
    opts = { idempotency_key: cart.payment_key }
    Stripe::PaymentIntent.create({ amount: cart.total, currency: 'eur' }, opts)
  end
end

# snippet: faraday with post
def connection
  @connection ||= Faraday.new(url: BASE) do |f|
    f.request :retry, max: 3, methods: %i[get post], exceptions: [Faraday::TimeoutError]
  end
end

def create(order)
  connection.post('/orders', order.to_json) # expect: retry-post-without-key
end

# snippet: faraday with defaults
def connection
  @connection ||= Faraday.new(url: BASE) do |f|
    f.request :retry, max: 3, exceptions: [Faraday::TimeoutError]
  end
end

def create(order)
  connection.post('/orders', order.to_json)
end

# snippet: retriable around a post
def create(order)
  Retriable.retriable(tries: 3) do
    RestClient.post("#{BASE}/orders", order.to_json) # expect: retry-post-without-key
  end
end

# snippet: check then act with active record
def create
  payment = Payment.find_by(idempotency_key: params[:key], account: current_account) # expect: check-then-act
  return render(json: payment) if payment

  receipt = gateway.charge(params[:amount])
  payment = Payment.create!(idempotency_key: params[:key], account: current_account, receipt: receipt)
  render json: payment, status: :created
end

# snippet: create or find
def create
  payment = Payment.create_or_find_by!(idempotency_key: params[:key], account: current_account)
  payment.with_lock { payment.charge! unless payment.charged? }
  render json: payment, status: :created
end

# snippet: mark before handle
class OrderConsumer
  def handle_message(message)
    return unless REDIS.set("processed:#{message.id}", 1, nx: true, ex: 86_400) # expect: mark-before-handle

    Warehouse.pick(message.lines)
  end
end

# snippet: bunny without manual acknowledgement
queue.subscribe(manual_ack: false) do |info, _properties, body| # expect: ack-before-handle
  ship(JSON.parse(body))
end

# snippet: bunny with acknowledgement in order
queue.subscribe(manual_ack: true) do |info, _properties, body|
  ship(JSON.parse(body))
  channel.ack(info.delivery_tag)
end

# snippet: enqueue in a transaction
def place(cart)
  Order.transaction do
    order = Order.create!(cart: cart)
    ShipOrderJob.perform_later(order) # expect: publish-in-transaction
  end
end

# snippet: outbox in a transaction
def place(cart)
  Order.transaction do
    order = Order.create!(cart: cart)
    publish_event('order.placed', order)
  end
end

def publish_event(name, order)
  OutboxEvent.create!(name: name, payload: order.to_json)
end

# snippet: sidekiq and ttl
class SettleJob
  include Sidekiq::Job
  sidekiq_options retry: 10

  def perform(event_id)
    claimed = REDIS.set("processed:#{event_id}", 'in_progress', nx: true, ex: 300)
    return unless claimed

    Ledger.settle(event_id)
    REDIS.set("processed:#{event_id}", 'done', ex: 2_592_000) # the lease above may lapse, this lasts
  end
end

# snippet: unlock
def with_lock(id)
  lock_key = "lock:#{id}"
  raise Busy unless REDIS.set(lock_key, '1', nx: true, ex: 30)

  yield
ensure
  REDIS.del(lock_key) # expect: unlock-without-owner-check
end

# snippet: key cut
def options(order)
  { idempotency_key: Digest::SHA256.hexdigest(order.reference)[0, 10] } # expect: key-truncated
end

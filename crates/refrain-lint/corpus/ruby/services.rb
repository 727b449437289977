# snippet: sidekiq job that charges with a key of its own row
class ChargeInvoiceJob
  include Sidekiq::Job
  sidekiq_options queue: :billing, retry: 10

  def perform(invoice_id)
    invoice = Invoice.find(invoice_id)
    return if invoice.paid?

    intent = Stripe::PaymentIntent.create(
      { amount: invoice.total_cents, currency: invoice.currency, customer: invoice.customer_ref },
      { idempotency_key: "invoice-#{invoice.id}-#{invoice.version}" }
    )
    invoice.update!(payment_intent: intent.id)
  end
end

# snippet: active job that mints as it goes
class RefundJob < ApplicationJob
  queue_as :payments
  retry_on Stripe::APIConnectionError, wait: :polynomially_longer, attempts: 8

  def perform(refund)
    options = { idempotency_key: SecureRandom.uuid } # expect: key-per-attempt
    result = Stripe::Refund.create({ charge: refund.charge_id, amount: refund.amount }, options)
    refund.update!(external_id: result.id, state: 'sent')
  end
end

# snippet: active job that posts without a key
class SyncOrderJob < ApplicationJob
  retry_on Faraday::TimeoutError, attempts: 5

  def perform(order)
    response = connection.post('/v1/orders') do |req| # expect: retry-post-without-key
      req.headers['Content-Type'] = 'application/json'
      req.body = OrderSerializer.new(order).to_json
    end
    order.update!(remote_id: JSON.parse(response.body)['id'])
  end

  private

  def connection
    @connection ||= Faraday.new(url: ENV.fetch('ERP_URL')) do |f|
      f.request :authorization, 'Bearer', ENV.fetch('ERP_TOKEN')
      f.adapter Faraday.default_adapter
    end
  end
end

# snippet: faraday told to retry post
class GatewayClient
  def initialize(url)
    @conn = Faraday.new(url: url) do |f|
      f.request :json
      f.request :retry, max: 3, interval: 0.2, backoff_factor: 2, methods: %i[get post]
      f.response :json
    end
  end

  def create_invoice(attributes)
    @conn.post('/invoices', attributes) # expect: retry-post-without-key
  end

  def invoice(id)
    @conn.get("/invoices/#{id}")
  end
end

# snippet: faraday left as it is
class GatewayClient
  def initialize(url)
    @conn = Faraday.new(url: url) do |f|
      f.request :json
      f.request :retry, max: 3, interval: 0.2, exceptions: [Faraday::TimeoutError]
      f.response :json
    end
  end

  def create_invoice(attributes)
    @conn.post('/invoices', attributes)
  end
end

# snippet: rails controller that asks before it acts
class PaymentsController < ApplicationController
  def create
    key = "idempotency:#{current_account.id}:#{request.headers['Idempotency-Key']}"
    if (cached = Rails.cache.read(key)) # expect: check-then-act
      return render json: cached
    end

    payment = Payments::Charge.call(params.require(:payment))
    Rails.cache.write(key, payment.as_json, expires_in: 1.day)
    render json: payment, status: :created
  end
end

# snippet: rails controller with a row that is claimed
class PaymentsController < ApplicationController
  def create
    record = IdempotencyKey.create!(account: current_account, key: request.headers['Idempotency-Key'])
    payment = Payments::Charge.call(params.require(:payment))
    record.update!(response: payment.as_json)
    render json: payment, status: :created
  rescue ActiveRecord::RecordNotUnique
    record = IdempotencyKey.find_by!(account: current_account, key: request.headers['Idempotency-Key'])
    record.response ? render(json: record.response) : head(:conflict)
  end
end

# snippet: karafka and rails events in a transaction
class PlaceOrder
  def call(cart)
    ActiveRecord::Base.transaction do
      order = Order.create!(cart: cart, state: 'placed')
      Karafka.producer.produce_sync(topic: 'orders', payload: order.to_json) # expect: publish-in-transaction
      order
    end
  end

  def call_later(cart)
    order = ActiveRecord::Base.transaction { Order.create!(cart: cart, state: 'placed') }
    Karafka.producer.produce_sync(topic: 'orders', payload: order.to_json)
    order
  end
end

# snippet: after_commit callback enqueues
class Order < ApplicationRecord
  after_commit :announce, on: :create

  def confirm!
    transaction do
      update!(state: 'confirmed')
      OutboxEntry.create!(topic: 'order.confirmed', payload: as_json)
    end
  end

  private

  def announce
    OrderPlacedJob.perform_later(id)
  end
end

# snippet: lock with set and del
class WithRedisLock
  def self.call(name)
    key = "lock:#{name}"
    raise Busy unless $redis.set(key, 1, nx: true, ex: 20)

    yield
  ensure
    $redis.del(key) # expect: unlock-without-owner-check
  end
end

# snippet: redlock gem
class Reconcile
  LOCKS = Redlock::Client.new([ENV['REDIS_URL']])

  def call(account_id)
    LOCKS.lock("lock:reconcile:#{account_id}", 30_000) do |locked|
      raise Busy unless locked

      Ledger.reconcile(account_id)
    end
  end
end

# snippet: key with the second in it
class TransferClient
  include HTTParty
  base_uri 'https://bank.example'

  def transfer(from:, to:, cents:)
    headers = {
      'Authorization' => "Bearer #{@token}",
      'Idempotency-Key' => "#{from}-#{to}-#{Time.now.to_i}" # expect: key-from-clock
    }
    self.class.post('/transfers', headers: headers, body: { from: from, to: to, cents: cents }.to_json)
  end
end

# snippet: bunny subscriber acknowledges first
class InvoiceConsumer
  def start
    queue.subscribe(manual_ack: true, block: true) do |delivery_info, _properties, payload|
      channel.ack(delivery_info.delivery_tag) # expect: ack-before-handle
      InvoiceImporter.new(JSON.parse(payload)).import
    end
  end
end

# snippet: bunny subscriber acknowledges last
class InvoiceConsumer
  def start
    queue.subscribe(manual_ack: true, block: true) do |delivery_info, _properties, payload|
      InvoiceImporter.new(JSON.parse(payload)).import
      channel.ack(delivery_info.delivery_tag)
    rescue InvoiceImporter::Temporary
      channel.nack(delivery_info.delivery_tag, false, true)
    end
  end
end

# snippet: shoryuken with auto delete off
class InvoiceWorker
  include Shoryuken::Worker
  shoryuken_options queue: 'invoices', auto_delete: false

  def perform(sqs_msg, body)
    sqs_msg.delete # expect: ack-before-handle
    Importer.import(JSON.parse(body))
  end
end

# snippet: faraday with retry_if for all
class Erp
  def connection
    Faraday.new(ENV['ERP']) do |f|
      f.request :retry, max: 2, methods: [], retry_if: ->(_env, _error) { true }
    end
  end

  def create(order)
    connection.post('/orders', order.to_json) # expect: retry-post-without-key
  end
end

# snippet: key in a model callback
class Payment < ApplicationRecord
  before_create { self.idempotency_key ||= SecureRandom.uuid }

  def submit!
    Stripe::PaymentIntent.create({ amount: cents, currency: 'eur' }, { idempotency_key: idempotency_key })
  end
end

# snippet: outcome of an error in the cache
class Charges
  def create(account, key, params)
    name = "idempotency:#{account.id}:#{key}"
    return replay(name) unless Rails.cache.write(name, 'pending', unless_exist: true, expires_in: 60)

    Gateway.charge(params).tap { |receipt| Rails.cache.write(name, receipt.to_json, expires_in: 1.day) }
  rescue Gateway::Error => e
    Rails.cache.write(name, { error: e.message }.to_json, expires_in: 1.day) # expect: error-outcome-kept
    raise
  end
end

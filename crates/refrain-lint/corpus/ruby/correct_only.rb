# snippet: r1
class Order < ApplicationRecord
  after_save :touch_cart
  after_commit :announce

  def touch_cart
    cart.touch
  end

  def announce
    OrderPlacedJob.perform_later(id)
  end
end

# snippet: r2
class PayJob < ApplicationJob
  def perform(payment)
    payment.update!(idempotency_key: SecureRandom.uuid) if payment.idempotency_key.nil?
    Stripe::Charge.create({ amount: payment.amount, currency: "eur" }, { idempotency_key: payment.idempotency_key })
  end
end

# snippet: r3
class WebhooksController < ApplicationController
  def create
    event = JSON.parse(request.body.read)
    ActiveRecord::Base.transaction do
      InboxEvent.create!(event_id: event["id"])
      ApplyPayment.call(event)
    end
    head :ok
  rescue ActiveRecord::RecordNotUnique
    head :ok
  end
end

# snippet: r4
def fetch(url)
  attempts = 0
  begin
    Net::HTTP.get(URI(url))
  rescue Timeout::Error
    attempts += 1
    retry if attempts < 3
    raise
  end
end

# snippet: webhook controller that marks first
class WebhooksController < ApplicationController
  def receive
    event = Stripe::Webhook.construct_event(request.raw_post, request.headers['Stripe-Signature'], SECRET)
    return head :ok unless REDIS.set("webhook:#{event.id}", '1', nx: true, ex: 7.days.to_i) # expect: mark-before-handle

    Subscriptions::Extend.call(event.data.object)
    head :ok
  end
end

# snippet: webhook controller that only enqueues
class WebhooksController < ApplicationController
  def create
    event = Stripe::Webhook.construct_event(request.raw_post, request.headers['Stripe-Signature'], SECRET)
    StripeEvent.create!(external_id: event.id, payload: event.to_json)
    head :ok
  rescue ActiveRecord::RecordNotUnique
    head :ok
  end
end

# snippet: begin, rescue, retry with a fresh key
class PayoutClient
  def create(payout)
    attempts = 0
    begin
      attempts += 1
      HTTP.headers('Idempotency-Key' => SecureRandom.uuid).post("#{BASE}/payouts", json: payout) # expect: key-in-retry-loop
    rescue HTTP::TimeoutError
      retry if attempts < 4
      raise
    end
  end
end

# snippet: begin, rescue, retry with a kept key
class PayoutClient
  def create(payout)
    key = payout.fetch(:request_id)
    attempts = 0
    begin
      attempts += 1
      HTTP.headers('Idempotency-Key' => key).post("#{BASE}/payouts", json: payout)
    rescue HTTP::TimeoutError
      retry if attempts < 4
      raise
    end
  end
end

# snippet: mailer inside a transaction
class Registration
  def call(params)
    User.transaction do
      user = User.create!(params)
      WelcomeMailer.with(user: user).welcome.deliver_later # expect: publish-in-transaction
      user
    end
  end
end

# snippet: connection reset and again
class LedgerClient
  def book(entry)
    @http.post('/entries', entry.to_json, 'Content-Type' => 'application/json')
  rescue Errno::ECONNRESET, EOFError # expect: resend-on-closed-connection
    @http.post('/entries', entry.to_json, 'Content-Type' => 'application/json')
  end
end

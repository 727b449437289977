# snippet: p1 top-level sqs
sqs.receive_message(queue_url: url).messages.each do |message|
  sqs.delete_message(queue_url: url, receipt_handle: message.receipt_handle) # expect: ack-before-handle
  process_order(message.body)
end

# snippet: p2 top-level check
key = "idempotency:#{tenant}:#{idempotency_key}"
if redis.get(key) # expect: check-then-act
  puts "done already"
else
  charge_card(order)
  redis.set(key, "done")
end

# snippet: p3 block marks
queue.subscribe(manual_ack: true, block: true) do |delivery_info, properties, body|
  next if redis.exists?("processed:#{properties.message_id}")
  redis.set("processed:#{properties.message_id}", 1) # expect: mark-before-handle
  ship(body)
  channel.ack(delivery_info.delivery_tag)
end

# snippet: p4 find_by then create
class PaymentsController < ApplicationController
  def create
    key = request.headers["Idempotency-Key"]
    payment = current_user.payments.find_by(idempotency_key: key) # expect: check-then-act
    return render json: payment if payment

    charge = Gateway.charge(params[:amount])
    payment = current_user.payments.create!(idempotency_key: key, charge: charge)
    render json: payment
  end
end

# snippet: p5 active job random
class PayJob < ApplicationJob
  def perform(order)
    HTTParty.post(URL, body: order.to_json, headers: { "Idempotency-Key" => SecureRandom.uuid }) # expect: key-per-attempt
  end
end

# snippet: p6 sidekiq post
class SyncWorker
  include Sidekiq::Worker
  def perform(id)
    Faraday.post("https://erp.example.com/orders", { id: id }.to_json) # expect: retry-post-without-key
  end
end

# snippet: p7 after_save publish
class Order < ApplicationRecord
  after_save :announce

  def announce
    OrderPlacedJob.perform_later(id) # expect: publish-in-transaction
  end
end

# snippet: p8 square
def pay(client, source)
  client.payments.create_payment(body: { source_id: source, amount_money: { amount: 100, currency: "EUR" } }) # expect: money-call-without-key
end
require "square"

# snippet: p9 paypal
require "paypal-checkout-sdk"
request = PayPalCheckoutSdk::Orders::OrdersCaptureRequest.new(order_id) # expect: money-call-without-key
client.execute(request)

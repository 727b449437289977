# snippet: p1 kafka-python top-level for
from kafka import KafkaConsumer

consumer = KafkaConsumer("orders", enable_auto_commit=False)
for message in consumer:
    consumer.commit()  # expect: ack-before-handle
    process_order(message.value)

# snippet: p2 top-level mark
for message in consumer:
    if r.exists(f"processed:{message.key}"):
        continue
    r.set(f"processed:{message.key}", 1)  # expect: mark-before-handle
    charge_customer(message.value)

# snippet: p3 callback marks
def callback(ch, method, properties, body):
    event = json.loads(body)
    if redis_client.get(f"event:{event['id']}"):
        ch.basic_ack(method.delivery_tag)
        return
    redis_client.set(f"event:{event['id']}", "processed")  # expect: mark-before-handle
    charge_card(event)
    ch.basic_ack(method.delivery_tag)

# snippet: p4 sqs boto3
while True:
    response = sqs.receive_message(QueueUrl=url)
    for message in response.get("Messages", []):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])  # expect: ack-before-handle
        handle_order(message["Body"])

# snippet: p5 celery acks_early and retry key
@app.task(bind=True, max_retries=3)
def pay(self, order_id):
    try:
        gateway.charge(order_id, idempotency_key=f"{order_id}-{self.request.retries}")  # expect: key-per-attempt
    except GatewayError as exc:
        raise self.retry(exc=exc)

# snippet: p6 temporal activity
@activity.defn
async def charge(order_id: str) -> None:
    await stripe.PaymentIntent.create_async(amount=100, currency="eur", idempotency_key=str(uuid.uuid4()))  # expect: key-per-attempt

# snippet: p7 paypal requests
def capture(order_id, token):
    return requests.post(f"https://api-m.paypal.com/v2/checkout/orders/{order_id}/capture", headers={"Authorization": f"Bearer {token}"})  # expect: money-call-without-key

# snippet: p8 in-memory dict check then act
processed = {}

@app.post("/charge")
def charge():
    key = request.headers.get("Idempotency-Key")
    tenant = g.tenant_id
    if (tenant, key) in processed:
        return processed[(tenant, key)]
    result = do_charge(request.json)
    processed[(tenant, key)] = result
    return result

# snippet: p9 sql check then act
def create(cursor, user_id, key, amount):
    cursor.execute("SELECT id FROM payments WHERE user_id = %s AND idempotency_key = %s", (user_id, key))  # expect: check-then-act
    row = cursor.fetchone()
    if row:
        return row[0]
    charge_card(amount)
    cursor.execute("INSERT INTO payments (user_id, idempotency_key, amount) VALUES (%s, %s, %s)", (user_id, key, amount))  # expect: insert-without-conflict

# snippet: p10 requests.Session post with requests loop helper
def post_with_retry(url, payload, retries=3):
    for i in range(retries):
        try:
            r = requests.post(url, json=payload, timeout=5)  # expect: retry-post-without-key
            r.raise_for_status()
            return r
        except requests.RequestException:
            time.sleep(2 ** i)

# snippet: p11 publish kombu
@transaction.atomic
def create_order(data):
    order = Order.objects.create(**data)
    process_order.delay(order.id)  # expect: publish-in-transaction
    return order

# snippet: p12 adyen
import Adyen

def pay(request):
    adyen = Adyen.Adyen()
    return adyen.checkout.payments_api.payments(request)  # expect: money-call-without-key

# snippet: p13 ttl tenacity
@retry(stop=stop_after_delay(3600), wait=wait_fixed(30))
def settle(event_id):
    r.setex(f"idempotency:{event_id}", 300, "done")  # expect: ttl-shorter-than-retries

# snippet: p14 insert via sqlalchemy text
def store(session, key, response):
    session.execute(text("INSERT INTO idempotency_keys (idempotency_key, response) VALUES (:k, :r)"), {"k": key, "r": response})  # expect: insert-without-conflict

# snippet: while loop with a budget
import secrets, time
import httpx

def submit(payment, budget):
    tries = 0
    while True:
        key = secrets.token_hex(16)  # expect: key-in-retry-loop
        try:
            return httpx.post(f"{API}/transfers", json=payment, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            tries += 1
            if tries > budget:
                raise
            time.sleep(0.5)

# snippet: dramatiq actor
import uuid, dramatiq, requests

@dramatiq.actor(max_retries=10)
def pay_supplier(invoice_id):
    invoice = Invoice.get(invoice_id)
    requests.post(
        f"{BANK}/payments",
        json=invoice.as_payment(),
        headers={**auth_headers(), "Idempotency-Key": str(uuid.uuid4())},  # expect: key-per-attempt
    )

# snippet: key of the intent
import requests

class Bank:
    def transfer(self, intent):
        headers = self.base_headers()
        headers["Idempotency-Key"] = intent.key
        return self.session.post("/transfers", json=intent.body, headers=headers)

# snippet: square in python
from square.client import Client

def take(client: Client, source, cents):
    body = {"source_id": source, "amount_money": {"amount": cents, "currency": "USD"}}
    return client.payments.create_payment(body)  # expect: money-call-without-key

def take_once(client: Client, order):
    body = {"source_id": order.source, "idempotency_key": order.key, "amount_money": order.money}
    return client.payments.create_payment(body)

# snippet: kafka consumer that commits first
def run(consumer):
    while True:
        msg = consumer.poll(1.0)
        if msg is None:
            continue
        consumer.commit(msg)  # expect: ack-before-handle
        apply_event(json.loads(msg.value()))

# snippet: kafka consumer that commits last
def run(consumer):
    while True:
        msg = consumer.poll(1.0)
        if msg is None:
            continue
        apply_event(json.loads(msg.value()))
        consumer.commit(msg)

# snippet: sqlalchemy check then insert
def place(session, tenant, idempotency_key, body):
    existing = session.query(Order).filter_by(tenant=tenant, idempotency_key=idempotency_key).first()  # expect: check-then-act
    if existing is not None:
        return existing
    receipt = warehouse.reserve(body)
    session.add(Order(tenant=tenant, idempotency_key=idempotency_key, receipt=receipt))
    session.commit()

# snippet: celery enqueued before the commit
from django.db import transaction

@transaction.atomic
def register(form):
    user = User.objects.create(**form)
    send_welcome.delay(user.pk)  # expect: publish-in-transaction
    return user

# snippet: stored only afterwards
import stripe, uuid

def pay(cart):
    key = str(uuid.uuid4())  # expect: key-per-attempt
    intent = stripe.PaymentIntent.create(amount=cart.total, currency="eur", idempotency_key=key)
    cart.intent = intent.id
    cart.save()
    return intent

# snippet: outcome kept whatever it is
def middleware(request, call_next):
    key = f"idempotency:{request.state.tenant}:{request.headers['idempotency-key']}"
    if not redis.set(key, "in_progress", nx=True, ex=60):
        return conflict()
    response = call_next(request)
    redis.set(key, json.dumps({"status": response.status_code, "body": response.body}), ex=86400)  # expect: error-outcome-kept
    return response

# snippet: outcome kept when it is final
def middleware(request, call_next):
    key = f"idempotency:{request.state.tenant}:{request.headers['idempotency-key']}"
    if not redis.set(key, "in_progress", nx=True, ex=60):
        return conflict()
    response = call_next(request)
    if response.status_code < 500:
        redis.set(key, json.dumps({"status": response.status_code, "body": response.body}), ex=86400)
    return response

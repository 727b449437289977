# snippet: key-in-retry-loop
import time
import uuid

import requests


def pay(order):
    for attempt in range(3):
        try:
            key = str(uuid.uuid4())  # expect: key-in-retry-loop
            return requests.post("https://api.example.com/payments", json=order, headers={"Idempotency-Key": key})
        except requests.ConnectionError:
            time.sleep(2 ** attempt)

# snippet: key-per-attempt
import uuid

import requests
from celery import shared_task


@shared_task(bind=True, max_retries=5)
def charge(self, order_id):
    idempotency_key = str(uuid.uuid4())  # expect: key-per-attempt
    requests.post("https://api.example.com/charges", json={"order": order_id}, headers={"Idempotency-Key": idempotency_key})

# snippet: key-per-attempt, number of the attempt
import requests
from tenacity import retry, stop_after_attempt


def send(order):
    for attempt in range(5):
        headers = {"Idempotency-Key": f"order-{order.id}-{attempt}"}  # expect: key-per-attempt
        response = requests.post("https://api.example.com/orders", json=order.body, headers=headers)
        if response.ok:
            return response

# snippet: key-from-clock
import time

import requests


def pay(order):
    idempotency_key = f"{order.id}-{int(time.time())}"  # expect: key-from-clock
    return requests.post("https://api.example.com/payments", json=order.body, headers={"Idempotency-Key": idempotency_key})

# snippet: key-truncated
import hashlib


def make_key(customer_id, cart_id):
    idempotency_key = hashlib.sha256(f"{customer_id}-{cart_id}".encode()).hexdigest()[:8]  # expect: key-truncated
    return idempotency_key

# snippet: unscoped-key
from flask import request


@app.post("/orders")
def create_order():
    key = request.headers["Idempotency-Key"]
    cached = redis.get(f"idempotency:{key}")  # expect: unscoped-key
    if cached:
        return cached
    return abort(409)

# snippet: money-call-without-key
import stripe


def charge(customer, amount):
    return stripe.PaymentIntent.create(amount=amount, currency="eur", customer=customer)  # expect: money-call-without-key

# snippet: money-call-without-key, generic
import requests


def pay(order):
    return requests.post("https://psp.example.com/v1/payments", json={"amount": order.total})  # expect: money-call-without-key

# snippet: retry-post-without-key
import requests
from tenacity import retry, stop_after_attempt


@retry(stop=stop_after_attempt(3))
def create_order(order):
    return requests.post("https://api.example.com/orders", json=order)  # expect: retry-post-without-key

# snippet: resend-on-closed-connection
import requests


def send(order):
    try:
        return requests.post("https://api.example.com/orders", json=order)
    except requests.exceptions.ConnectionError:  # expect: resend-on-closed-connection
        return requests.post("https://api.example.com/orders", json=order)

# snippet: check-then-act
def create_order(request, tenant):
    key = f"idempotency:{tenant}:{request.headers['Idempotency-Key']}"
    if redis.exists(key):  # expect: check-then-act
        return redis.get(key)
    result = place_order(request.json)
    redis.set(key, result, ex=86400)
    return result

# snippet: mark-before-handle
def handle_event(event):
    if redis.sismember("processed", event["id"]):
        return
    redis.sadd("processed", event["id"])  # expect: mark-before-handle
    ship_order(event["order_id"])

# snippet: ack-before-handle
def callback(ch, method, properties, body):
    ch.basic_ack(delivery_tag=method.delivery_tag)  # expect: ack-before-handle
    process_order(json.loads(body))


channel.basic_consume(queue="orders", on_message_callback=callback)

# snippet: ack-before-handle, automatic
channel.basic_consume(queue="orders", on_message_callback=callback, auto_ack=True)  # expect: ack-before-handle

# snippet: publish-in-transaction
from django.db import transaction


def create_order(data):
    with transaction.atomic():
        order = Order.objects.create(**data)
        producer.send("orders", {"id": order.id})  # expect: publish-in-transaction

# snippet: error-outcome-kept
def handle(key, request):
    try:
        response = charge(request)
        store.set(key, {"status": 200, "body": response})
    except Exception as error:
        store.set(f"idempotency:{key}", {"status": 500, "body": str(error)})  # expect: error-outcome-kept
        raise

# snippet: error-outcome-dropped
def pay(tenant, idempotency_key, order):
    key = f"idem:{tenant}:{idempotency_key}"
    if not redis.set(key, "in_progress", nx=True, ex=60):
        raise Conflict()
    try:
        gateway.charge(order)
    except Exception:
        redis.delete(key)  # expect: error-outcome-dropped
        raise

# snippet: unlock-without-owner-check
def run():
    if redis.set("lock:report", "1", nx=True, ex=30):
        try:
            build_report()
        finally:
            redis.delete("lock:report")  # expect: unlock-without-owner-check

# snippet: insert-without-conflict
def save(cursor, key, amount):
    cursor.execute("INSERT INTO payments (idempotency_key, amount) VALUES (%s, %s)", (key, amount))  # expect: insert-without-conflict

# snippet: ttl-shorter-than-retries
import time

IDEMPOTENCY_TTL_SECONDS = 60  # expect: ttl-shorter-than-retries
MAX_RETRIES = 10
RETRY_DELAY_SECONDS = 60

# snippet: key in a counted retry loop
import uuid, time, requests

def charge(order):
    for attempt in range(5):
        headers = {"Authorization": TOKEN, "Idempotency-Key": str(uuid.uuid4())}  # expect: key-in-retry-loop
        try:
            return requests.post(f"{BASE}/payments", json={"amount": order.total}, headers=headers, timeout=3)
        except requests.Timeout:
            time.sleep(2 ** attempt)

# snippet: key made once before the loop
import uuid, time, requests

def charge(order):
    if not order.idempotency_key:
        order.idempotency_key = str(uuid.uuid4())
        order.save(update_fields=["idempotency_key"])
    headers = {"Idempotency-Key": order.idempotency_key}
    for attempt in range(5):
        try:
            return requests.post(f"{BASE}/payments", json={"amount": order.total}, headers=headers, timeout=3)
        except requests.Timeout:
            time.sleep(2 ** attempt)

# snippet: a batch is no retry loop
import requests

def pay_all(invoices):
    for invoice in invoices:
        requests.post(f"{BASE}/payments", json=invoice.body(), headers={"Idempotency-Key": f"invoice-{invoice.id}-pay"})

# snippet: celery task with a fresh key
import uuid
import stripe
from celery import shared_task

@shared_task(bind=True, max_retries=5)
def capture(self, order_id):
    order = Order.objects.get(pk=order_id)
    key = uuid.uuid4().hex  # expect: key-per-attempt
    try:
        stripe.PaymentIntent.capture(order.intent, idempotency_key=key)
    except stripe.error.APIConnectionError as exc:
        raise self.retry(exc=exc, countdown=60)

# snippet: celery task with a derived key
import stripe
from celery import shared_task

@shared_task(bind=True, max_retries=5)
def capture(self, order_id):
    order = Order.objects.get(pk=order_id)
    try:
        stripe.PaymentIntent.capture(order.intent, idempotency_key=f"capture-{order.pk}")
    except stripe.error.APIConnectionError as exc:
        raise self.retry(exc=exc, countdown=60)

# snippet: header builder of a client class
import uuid
import httpx

class PaymentsClient:
    def __init__(self, token):
        self.token = token
        self.client = httpx.Client()

    def _headers(self):
        return {
            "Authorization": f"Bearer {self.token}",
            "Idempotency-Key": str(uuid.uuid4()),  # expect: key-per-attempt
        }

    def refund(self, payment_id):
        return self.client.post(f"/v1/payments/{payment_id}/refunds", headers=self._headers())

# snippet: tenacity around a function with a fresh key
import uuid
import requests
from tenacity import retry, stop_after_attempt

@retry(stop=stop_after_attempt(3))
def send_payout(payout):
    key = str(uuid.uuid4())  # expect: key-per-attempt
    r = requests.post(PAYOUTS_URL, json=payout, headers={"Idempotency-Key": key})
    r.raise_for_status()
    return r.json()

# snippet: key stored before the call
import uuid
import stripe

def start_payment(session, cart):
    key = str(uuid.uuid4())
    attempt = PaymentAttempt(cart_id=cart.id, idempotency_key=key)
    session.add(attempt)
    session.commit()
    session.execute(insert(Journal).values(cart=cart.id, key=key))
    return stripe.PaymentIntent.create(amount=cart.total, currency="eur", idempotency_key=key)

# snippet: key from the caller with a fallback
import uuid
import stripe

def create_refund(charge, amount, idempotency_key=None):
    idempotency_key = idempotency_key or str(uuid.uuid4())
    return stripe.Refund.create(charge=charge, amount=amount, idempotency_key=idempotency_key)

# snippet: clock in the key
import time
import requests

def transfer(account, amount):
    key = f"{account.id}-{int(time.time())}"  # expect: key-from-clock
    return requests.post(TRANSFERS, json={"amount": amount}, headers={"Idempotency-Key": key})

# snippet: natural key
import requests

def transfer(account, reference, amount):
    key = f"{account.id}-{reference}-{amount}"
    return requests.post(TRANSFERS, json={"amount": amount}, headers={"Idempotency-Key": key})

# snippet: stripe without a key, and with options through a dict
import stripe

def pay(cart):
    return stripe.PaymentIntent.create(  # expect: money-call-without-key
        amount=cart.total,
        currency="eur",
        metadata={"cart": cart.id},
    )

def pay_safely(cart):
    options = {"idempotency_key": f"cart-{cart.id}"}
    return stripe.PaymentIntent.create(amount=cart.total, currency="eur", **options)

def lookup(intent):
    return stripe.PaymentIntent.retrieve(intent)

# snippet: generic post to payments through a helper
import requests

def _post(path, body):
    return requests.post(BASE + path, json=body, headers={"Authorization": TOKEN}, timeout=10)

def charge(order):
    return requests.post(BASE + "/v2/charges", json=order.body(), headers={"Authorization": TOKEN})  # expect: money-call-without-key

def search(query):
    return requests.post(BASE + "/v2/payments/search", json=query)

# snippet: urllib3 retry that includes POST
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

session = requests.Session()
session.mount("https://", HTTPAdapter(max_retries=Retry(total=5, backoff_factor=1, allowed_methods=None, status_forcelist=[502, 503])))

def create_order(order):
    return session.post("https://shop.example/orders", json=order, timeout=5)  # expect: retry-post-without-key

# snippet: urllib3 retry with its defaults
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

session = requests.Session()
session.mount("https://", HTTPAdapter(max_retries=Retry(total=5, backoff_factor=1)))

def create_order(order):
    return session.post("https://shop.example/orders", json=order, timeout=5)

# snippet: retry decorator and post in different functions
import backoff
import requests

def _submit(order):
    response = requests.post(ORDERS_URL, json=order, timeout=5)  # expect: retry-post-without-key
    response.raise_for_status()
    return response.json()

@backoff.on_exception(backoff.expo, requests.RequestException, max_tries=4)
def submit_with_backoff(order):
    return _submit(order)

# snippet: check then act in a view
import json
import redis

r = redis.Redis()

def create_payment(request):
    key = f"idem:{request.user.id}:{request.headers['Idempotency-Key']}"
    cached = r.get(key)  # expect: check-then-act
    if cached:
        return JsonResponse(json.loads(cached))
    result = gateway.charge(request.POST["amount"])
    r.setex(key, 86400, json.dumps(result))
    return JsonResponse(result)

# snippet: atomic claim in a view
import json
import redis

r = redis.Redis()

def create_payment(request):
    key = f"idem:{request.user.id}:{request.headers['Idempotency-Key']}"
    if not r.set(key, "in_progress", nx=True, ex=60):
        return replay_or_conflict(key)
    result = gateway.charge(request.POST["amount"])
    r.set(key, json.dumps(result), ex=86400)
    return JsonResponse(result)

# snippet: a cache is no claim
import redis

cache = redis.Redis()

def exchange_rate(currency):
    rate = cache.get(f"rate:{currency}")
    if rate is None:
        rate = fetch_rate(currency)
        cache.setex(f"rate:{currency}", 60, rate)
    return float(rate)

# snippet: mark before handle with SET NX
import redis

r = redis.Redis()

def on_message(channel, method, properties, body):
    event = json.loads(body)
    if not r.set(f"processed:{event['id']}", 1, nx=True, ex=604800):  # expect: mark-before-handle
        channel.basic_ack(method.delivery_tag)
        return
    ship_order(event["order_id"])
    channel.basic_ack(method.delivery_tag)

# snippet: mark and work in one transaction
def handle_event(conn, event):
    with conn.transaction():
        done = conn.execute("INSERT INTO processed_events (event_id) VALUES (%s) ON CONFLICT DO NOTHING", (event["id"],))
        if done.rowcount == 0:
            return
        conn.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (event["amount"], event["account"]))

# snippet: ack before handle
def callback(ch, method, properties, body):
    ch.basic_ack(delivery_tag=method.delivery_tag)  # expect: ack-before-handle
    order = json.loads(body)
    fulfil(order)

def start(ch):
    ch.basic_consume(queue="orders", on_message_callback=callback, auto_ack=True)  # expect: ack-before-handle

# snippet: ack after handle
def callback(ch, method, properties, body):
    order = json.loads(body)
    if already_fulfilled(order["id"]):
        ch.basic_ack(delivery_tag=method.delivery_tag)
        return
    fulfil(order)
    ch.basic_ack(delivery_tag=method.delivery_tag)

# snippet: publish in a transaction
from django.db import transaction

def place_order(cart, channel):
    with transaction.atomic():
        order = Order.objects.create(cart=cart)
        channel.basic_publish(exchange="", routing_key="orders", body=order.to_json())  # expect: publish-in-transaction
    return order

def place_order_later(cart, channel):
    with transaction.atomic():
        order = Order.objects.create(cart=cart)
        transaction.on_commit(lambda: channel.basic_publish(exchange="", routing_key="orders", body=order.to_json()))
    return order

# snippet: a publish helper that is an outbox
from django.db import transaction
from events import publish_event

def place_order(cart):
    with transaction.atomic():
        order = Order.objects.create(cart=cart)
        publish_event("order.placed", order.id)
# file: events.py
def publish_event(name, subject):
    OutboxMessage.objects.create(name=name, subject=subject)

# snippet: unlock without asking
import redis

r = redis.Redis()

def with_lock(order_id, work):
    lock_key = f"lock:order:{order_id}"
    if not r.set(lock_key, "1", nx=True, ex=30):
        raise Busy()
    try:
        work()
    finally:
        r.delete(lock_key)  # expect: unlock-without-owner-check

# snippet: unlock with a script
import redis

r = redis.Redis()
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

def with_lock(order_id, work, token):
    lock_key = f"lock:order:{order_id}"
    if not r.set(lock_key, token, nx=True, ex=30):
        raise Busy()
    try:
        work()
    finally:
        r.eval(RELEASE, 1, lock_key, token)

# snippet: insert without a conflict clause
def record(conn, key, amount):
    conn.execute(
        "INSERT INTO payments (idempotency_key, amount) VALUES (%s, %s)",  # expect: insert-without-conflict
        (key, amount),
    )

# snippet: insert with a unique column in a migration
def record(conn, key, amount):
    conn.execute("INSERT INTO payments (idempotency_key, amount) VALUES (%s, %s)", (key, amount))
# file: schema.sql
CREATE TABLE payments (id serial PRIMARY KEY, idempotency_key text NOT NULL UNIQUE, amount int);

# snippet: ttl against celery's policy
from celery import shared_task
import redis

r = redis.Redis()

@shared_task(bind=True, max_retries=20, default_retry_delay=3600)
def settle(self, event_id):
    key = f"processed:{event_id}"
    if r.get(key) == b"done":
        return
    if not r.set(key, "in_progress", nx=True, ex=600):  # expect: ttl-shorter-than-retries
        raise self.retry()
    ledger.settle(event_id)

# snippet: truncated key
import hashlib
import stripe

def pay(cart, body):
    digest = hashlib.sha256(body).hexdigest()
    stripe.Charge.create(amount=cart.total, idempotency_key=digest[:8])  # expect: key-truncated

def pay_well(cart, body):
    digest = hashlib.sha256(body).hexdigest()
    stripe.Charge.create(amount=cart.total, idempotency_key=digest[:40])

# snippet: unscoped key
import redis

r = redis.Redis()

@app.post("/payments")
def pay(request: Request):
    key = request.headers.get("Idempotency-Key")
    if not r.set(f"idem:{key}", "in_progress", nx=True, ex=60):  # expect: unscoped-key
        return conflict()
    return charge(request)

# snippet: resend on a closed connection
import requests
from http.client import RemoteDisconnected

def submit(payment):
    try:
        return requests.post(GATEWAY + "/orders", json=payment)
    except (RemoteDisconnected, ConnectionResetError):  # expect: resend-on-closed-connection
        return requests.post(GATEWAY + "/orders", json=payment)

# snippet: claim dropped after a timeout
import redis

r = redis.Redis()

def pay(tenant, idem_key, body):
    key = f"idem:{tenant}:{idem_key}"
    if not r.set(key, "in_progress", nx=True, ex=60):
        return conflict()
    try:
        return gateway.charge(body)
    except Exception:
        r.delete(key)  # expect: error-outcome-dropped
        raise

# snippet: failure kept by a job
from celery import shared_task

@shared_task(autoretry_for=(Exception,), max_retries=5)
def settle(payment_id):
    key = f"idempotency:settle:{payment_id}"
    if not store.add_if_absent(key, nx=True):
        return store.get(key)
    try:
        outcome = bank.settle(payment_id)
    except BankError as error:
        redis.set(key, json.dumps({"error": str(error)}), ex=86400)  # expect: error-outcome-kept
        raise
    redis.set(key, json.dumps(outcome), ex=86400)

# snippet: allowed with a reason
import stripe

def tip(cart):
    # refrain-lint: allow(money-call-without-key) a test-mode account without retries
    return stripe.Charge.create(amount=1)

# snippet: the number of the attempt in the key
import time

import requests


def pay(order):
    for attempt in range(5):
        key = f"order-{order.id}-{attempt}"  # expect: key-per-attempt
        try:
            return requests.post(PAYMENTS, json=order.body(), headers={"Idempotency-Key": key})
        except requests.Timeout:
            time.sleep(attempt)

# snippet: a payment attempt of its own row
import requests


def pay(order, attempt):
    key = f"order-{order.id}-{attempt.id}"
    return requests.post(PAYMENTS, json=order.body(), headers={"Idempotency-Key": key})

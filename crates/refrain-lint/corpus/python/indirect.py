# snippet: header builder
import uuid

import requests
from tenacity import retry, stop_after_attempt


class PaymentClient:
    def _headers(self):
        return {"Authorization": f"Bearer {self.token}", "Idempotency-Key": str(uuid.uuid4())}  # expect: key-per-attempt

    @retry(stop=stop_after_attempt(4))
    def create_payment(self, payload):
        return requests.post(f"{self.base}/payments", json=payload, headers=self._headers())

# snippet: retry and post in different functions
import requests


def call_with_retries(fn, times=3):
    last = None
    for _ in range(times):
        try:
            return fn()
        except requests.RequestException as error:
            last = error
    raise last


def create_ticket(ticket):
    def send():
        return requests.post("https://desk.example.com/tickets", json=ticket)  # expect: retry-post-without-key

    return call_with_retries(send)

# snippet: long marker before the work
def on_message(message):
    first = redis_client.set(f"dedup:{message.id}", "1", nx=True, ex=30 * 86400)  # expect: mark-before-handle
    if not first:
        return
    create_invoice(message.body)

# snippet: urllib3 retry for posts
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

session = requests.Session()
session.mount("https://", HTTPAdapter(max_retries=Retry(total=3, allowed_methods={"GET", "POST"})))


def create_order(order):
    return session.post("https://erp.example.com/orders", json=order)  # expect: retry-post-without-key

# snippet: key through a dict
import stripe


def charge(order):
    options = {"idempotency_key": f"order-{order.id}-charge"}
    return stripe.PaymentIntent.create(amount=order.total, currency="eur", **options)

# snippet: lock with a token
def release(client, name, token):
    script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
    client.eval(script, 1, f"lock:{name}", token)

# snippet: fastapi header without scope
from fastapi import FastAPI, Header

app = FastAPI()


@app.post("/orders")
async def create_order(order: Order, idempotency_key: str = Header(...)):
    stored = await redis.get(f"idempotency:{idempotency_key}")  # expect: unscoped-key
    if stored:
        return json.loads(stored)
    raise HTTPException(409)

# snippet: square sdk
from square.client import Client

client = Client(access_token=TOKEN)


def take_payment(source_id, amount):
    return client.payments.create_payment(  # expect: money-call-without-key
        body={"source_id": source_id, "amount_money": {"amount": amount, "currency": "EUR"}}
    )

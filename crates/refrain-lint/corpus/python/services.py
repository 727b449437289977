# snippet: django view that looks up a record before it charges
import json

from django.http import JsonResponse
from django.views.decorators.http import require_POST

from .models import IdempotencyRecord
from .payments import gateway


@require_POST
def create_payment(request):
    body = json.loads(request.body)
    key = request.headers["Idempotency-Key"]
    record = IdempotencyRecord.objects.filter(user=request.user, key=key).first()  # expect: check-then-act
    if record is not None:
        return JsonResponse(record.response, status=record.status)

    result = gateway.authorise(amount=body["amount"], card=body["card"])
    IdempotencyRecord.objects.create(
        user=request.user,
        key=key,
        response=result.as_dict(),
        status=201,
    )
    return JsonResponse(result.as_dict(), status=201)

# snippet: django view that creates the record first under a unique key
import json

from django.db import IntegrityError, transaction
from django.http import JsonResponse
from django.views.decorators.http import require_POST

from .models import IdempotencyRecord
from .payments import gateway


@require_POST
def create_payment(request):
    body = json.loads(request.body)
    key = request.headers["Idempotency-Key"]
    try:
        with transaction.atomic():
            record = IdempotencyRecord.objects.create(user=request.user, key=key, state="begun")
    except IntegrityError:
        record = IdempotencyRecord.objects.get(user=request.user, key=key)
        if record.state == "begun":
            return JsonResponse({"error": "in progress"}, status=409)
        return JsonResponse(record.response, status=record.status)

    result = gateway.authorise(amount=body["amount"], card=body["card"])
    record.finish(result.as_dict(), 201)
    return JsonResponse(result.as_dict(), status=201)

# snippet: fastapi with an async redis cache of responses
import json
from typing import Annotated

import redis.asyncio as redis
from fastapi import APIRouter, Depends, Header

router = APIRouter()
pool = redis.from_url("redis://localhost")


@router.post("/transfers", status_code=201)
async def create_transfer(
    body: TransferIn,
    idempotency_key: Annotated[str, Header(alias="Idempotency-Key")],
    ledger: Ledger = Depends(get_ledger),
):
    cached = await pool.get(f"transfers:{idempotency_key}")  # expect: check-then-act, expect: unscoped-key
    if cached:
        return json.loads(cached)
    transfer = await ledger.move(body.source, body.target, body.amount)
    await pool.set(f"transfers:{idempotency_key}", transfer.model_dump_json(), ex=86_400)
    return transfer

# snippet: fastapi dependency that claims for the tenant
import json

import redis.asyncio as redis
from fastapi import APIRouter, Depends, Header, HTTPException

router = APIRouter()
pool = redis.from_url("redis://localhost")


async def claim(idempotency_key: str = Header(alias="Idempotency-Key"), tenant: Tenant = Depends(current_tenant)):
    name = f"idem:{tenant.id}:{idempotency_key}"
    granted = await pool.set(name, "pending", nx=True, ex=45)
    if not granted:
        kept = await pool.get(name)
        if kept == b"pending":
            raise HTTPException(409, "still running")
        raise Replay(json.loads(kept))
    return name


@router.post("/transfers", status_code=201)
async def create_transfer(body: TransferIn, name: str = Depends(claim), ledger: Ledger = Depends(get_ledger)):
    transfer = await ledger.move(body.source, body.target, body.amount)
    await pool.set(name, transfer.model_dump_json(), ex=86_400)
    return transfer

# snippet: tenacity's loop around an async post
import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential


class FulfilmentClient:
    def __init__(self, base_url: str):
        self._client = httpx.AsyncClient(base_url=base_url, timeout=5.0)

    async def create_shipment(self, shipment: dict) -> dict:
        async for attempt in AsyncRetrying(
            stop=stop_after_attempt(4),
            wait=wait_exponential(multiplier=0.5),
            retry=retry_if_exception_type(httpx.TransportError),
        ):
            with attempt:
                response = await self._client.post("/shipments", json=shipment)  # expect: retry-post-without-key
                response.raise_for_status()
                return response.json()

    async def shipment(self, shipment_id: str) -> dict:
        async for attempt in AsyncRetrying(stop=stop_after_attempt(4)):
            with attempt:
                response = await self._client.get(f"/shipments/{shipment_id}")
                response.raise_for_status()
                return response.json()

# snippet: tenacity around a post whose key comes with the intent
import httpx
from tenacity import retry, stop_after_attempt, wait_random_exponential


class PayoutClient:
    def __init__(self, http: httpx.Client):
        self._http = http

    def _headers(self, intent):
        return {"Authorization": f"Bearer {self._token}", "Idempotency-Key": intent.key}

    @retry(stop=stop_after_attempt(5), wait=wait_random_exponential(max=20))
    def create(self, intent):
        response = self._http.post("/v1/payouts", json=intent.body(), headers=self._headers(intent))
        response.raise_for_status()
        return response.json()["id"]

# snippet: one random key for all attempts of a loop
import time
import uuid

import requests


def place(order, session=requests.Session()):
    key = str(uuid.uuid4())
    last = None
    for attempt in range(1, 5):
        try:
            response = session.post(
                "https://api.shop.example/orders",
                json=order,
                headers={"Idempotency-Key": key},
                timeout=10,
            )
            response.raise_for_status()
            return response.json()
        except requests.RequestException as error:
            last = error
            time.sleep(0.2 * 2**attempt)
    raise last

# snippet: confluent consumer commits what it has not handled
import json

from confluent_kafka import Consumer, KafkaError


def run(config, warehouse):
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    while True:
        msg = consumer.poll(1.0)
        if msg is None:
            continue
        if msg.error():
            if msg.error().code() == KafkaError._PARTITION_EOF:
                continue
            raise RuntimeError(msg.error())
        consumer.commit(message=msg, asynchronous=False)  # expect: ack-before-handle
        order = json.loads(msg.value())
        warehouse.reserve(order["id"], order["lines"])

# snippet: confluent consumer commits what it has handled
import json

from confluent_kafka import Consumer


def run(config, warehouse):
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    while True:
        msg = consumer.poll(1.0)
        if msg is None or msg.error():
            continue
        order = json.loads(msg.value())
        try:
            warehouse.reserve(order["id"], order["lines"])
        except TemporaryProblem:
            consumer.seek(TopicPartition(msg.topic(), msg.partition(), msg.offset()))
            continue
        consumer.commit(message=msg, asynchronous=False)

# snippet: sqs messages deleted as they are read
import json

import boto3

sqs = boto3.client("sqs")


def drain(queue_url):
    while True:
        answer = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        for message in answer.get("Messages", []):
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])  # expect: ack-before-handle
            body = json.loads(message["Body"])
            issue_invoice(body["order_id"])


def drain_safely(queue_url):
    while True:
        answer = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        for message in answer.get("Messages", []):
            body = json.loads(message["Body"])
            issue_invoice(body["order_id"])
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])

# snippet: aiokafka inside the session's transaction
from sqlalchemy.ext.asyncio import AsyncSession


class OrderService:
    def __init__(self, sessions, producer):
        self.sessions = sessions
        self.producer = producer

    async def place(self, cart):
        async with self.sessions() as session, session.begin():
            order = Order(customer_id=cart.customer_id, total=cart.total)
            session.add(order)
            await session.flush()
            await self.producer.send_and_wait("orders.placed", order.to_json())  # expect: publish-in-transaction
        return order

    async def cancel(self, order_id):
        async with self.sessions() as session:
            async with session.begin():
                order = await session.get(Order, order_id)
                order.state = "cancelled"
        await self.producer.send_and_wait("orders.cancelled", order.to_json())

# snippet: event recorded through a helper of another module
from django.db import transaction

from shop.events import emit


@transaction.atomic
def ship(order):
    order.state = "shipped"
    order.save(update_fields=["state"])
    emit("order.shipped", {"id": order.pk})
# file: shop/events.py
from .models import OutboxEvent


def emit(topic, payload):
    OutboxEvent.objects.create(topic=topic, payload=payload)

# snippet: stripe's client with and without options
import stripe


class Billing:
    def __init__(self, secret):
        self.client = stripe.StripeClient(secret)

    def collect(self, invoice):
        return self.client.payment_intents.create(
            params={"amount": invoice.total, "currency": invoice.currency, "customer": invoice.customer},
            options={"idempotency_key": f"invoice-{invoice.id}-collect"},
        )

    def give_back(self, intent_id, amount):
        return self.client.refunds.create(params={"payment_intent": intent_id, "amount": amount})  # expect: money-call-without-key

    def intent(self, intent_id):
        return self.client.payment_intents.retrieve(intent_id)

# snippet: celery with a backoff that outlives the mark
from celery import shared_task
from django.core.cache import cache


@shared_task(
    bind=True,
    autoretry_for=(ConnectionError,),
    max_retries=12,
    default_retry_delay=900,
)
def credit_points(self, event_id, customer_id, points):
    seen = f"processed:{event_id}"
    if not cache.add(f"lease:{event_id}", "1", timeout=30):
        raise self.retry()
    if cache.get(seen):
        return
    loyalty.credit(customer_id, points)
    cache.set(seen, "done", timeout=1800)  # expect: ttl-shorter-than-retries

# snippet: capture at paypal with requests
import requests


def capture(order_id, token):
    return requests.post(  # expect: money-call-without-key
        f"https://api-m.paypal.com/v2/checkout/orders/{order_id}/capture",
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        timeout=20,
    )


def capture_once(order_id, token, request_id):
    return requests.post(
        f"https://api-m.paypal.com/v2/checkout/orders/{order_id}/capture",
        headers={"Authorization": f"Bearer {token}", "PayPal-Request-Id": request_id},
        timeout=20,
    )

# snippet: a key squeezed into a column
import stripe

MAX_KEY = 24


def charge(customer, cart, amount):
    idempotency_key = f"{customer.email}:{cart.reference}"[:24]  # expect: key-truncated
    return stripe.Charge.create(
        amount=amount,
        currency="chf",
        customer=customer.stripe_id,
        idempotency_key=idempotency_key,
    )

# snippet: cache lock that anybody opens
from django.core.cache import cache


class ExclusiveTask:
    lock_for = 60

    def run(self, account_id):
        lock_id = f"lock-statement-{account_id}"
        if not cache.add(lock_id, "held", self.lock_for):
            return "busy"
        try:
            return build_statement(account_id)
        finally:
            cache.delete(lock_id)  # expect: unlock-without-owner-check

# snippet: redis-py's own lock
import redis

client = redis.Redis()


def rebuild(account_id):
    with client.lock(f"lock:statement:{account_id}", timeout=60, blocking_timeout=5):
        return build_statement(account_id)


def rebuild_by_hand(account_id):
    lock = client.lock(f"lock:statement:{account_id}", timeout=60)
    if not lock.acquire(blocking=False):
        return None
    try:
        return build_statement(account_id)
    finally:
        lock.release()

# snippet: webhook marks the event and works afterwards
import stripe
from flask import Blueprint, request

bp = Blueprint("hooks", __name__)


@bp.post("/stripe/webhook")
def stripe_webhook():
    event = stripe.Webhook.construct_event(request.data, request.headers["Stripe-Signature"], SECRET)
    if not redis_client.set(f"stripe:event:{event['id']}", "1", nx=True, ex=86400 * 3):  # expect: mark-before-handle
        return "", 200
    if event["type"] == "invoice.paid":
        subscriptions.extend(event["data"]["object"]["subscription"])
    return "", 200

# snippet: a counter and a search posted in loops
import time

import requests


def report(samples):
    for sample in samples:
        requests.post("http://stats.internal/samples", json=sample)


def find(query):
    for attempt in range(3):
        try:
            return requests.post("https://index.example/v1/search", json={"query": query}).json()
        except requests.ConnectionError:
            time.sleep(attempt)

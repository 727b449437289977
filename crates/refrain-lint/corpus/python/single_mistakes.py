# snippet: httpx in a while loop
import time
import uuid

import httpx


def submit_transfer(transfer):
    retries = 0
    while retries < 5:
        response = httpx.post(
            "https://bank.example.com/transfers",
            json=transfer,
            headers={"Idempotency-Key": uuid.uuid4().hex},  # expect: key-in-retry-loop
        )
        if response.status_code < 500:
            return response.json()
        retries += 1
        time.sleep(retries)
    raise RuntimeError("transfer failed")

# snippet: dramatiq actor
import uuid

import dramatiq
import stripe


@dramatiq.actor(max_retries=10)
def refund_order(order_id: int):
    order = Order.get(order_id)
    stripe.Refund.create(
        payment_intent=order.payment_intent,
        idempotency_key=str(uuid.uuid4()),  # expect: key-per-attempt
    )

# snippet: sqlalchemy lookup
def create_payment(session, tenant_id, idempotency_key, data):
    existing = session.query(Payment).filter_by(tenant_id=tenant_id, idempotency_key=idempotency_key).first()  # expect: check-then-act
    if existing:
        return existing
    payment = Payment(tenant_id=tenant_id, idempotency_key=idempotency_key, **data)
    session.add(payment)
    session.commit()
    return payment

# snippet: kafka consumer script
from confluent_kafka import Consumer

consumer = Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"})
consumer.subscribe(["invoices"])

while True:
    msg = consumer.poll(1.0)
    if msg is None:
        continue
    consumer.commit(msg)  # expect: ack-before-handle
    send_invoice(msg.value())

# snippet: session and broker
def place_order(session, channel, data):
    with session.begin():
        order = Order(**data)
        session.add(order)
        session.flush()
        channel.basic_publish(exchange="orders", routing_key="placed", body=order.to_json())  # expect: publish-in-transaction
    return order

# snippet: tenacity with a stored key
import requests
from tenacity import retry, stop_after_attempt, wait_exponential


@retry(stop=stop_after_attempt(5), wait=wait_exponential())
def capture(payment):
    response = requests.post(
        f"https://psp.example.com/payments/{payment.id}/capture",
        json={"amount": payment.amount},
        headers={"Idempotency-Key": payment.idempotency_key},
        timeout=10,
    )
    response.raise_for_status()
    return response.json()

# snippet: insert that lets the first win
def record(conn, tenant_id, key, body):
    cursor = conn.execute(
        "INSERT INTO requests (tenant_id, idempotency_key, body) VALUES (%s, %s, %s) "
        "ON CONFLICT (tenant_id, idempotency_key) DO NOTHING",
        (tenant_id, key, body),
    )
    return cursor.rowcount == 1

# snippet: celery after commit
from django.db import transaction


def checkout(cart):
    with transaction.atomic():
        order = Order.objects.create(cart=cart)
        transaction.on_commit(lambda: send_receipt.delay(order.id))
    return order

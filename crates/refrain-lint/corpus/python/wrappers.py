# snippet: flask decorator that keeps every answer
import functools
import json

from flask import g, make_response, request


def idempotent(view):
    @functools.wraps(view)
    def wrapper(*args, **kwargs):
        name = f"idempotency:{g.tenant}:{request.headers['Idempotency-Key']}"
        if not store.set(name, "pending", nx=True, ex=60):
            return conflict()
        try:
            response = make_response(view(*args, **kwargs))
        except Exception as error:
            store.set(name, json.dumps({"status": 500, "error": str(error)}), ex=86400)  # expect: error-outcome-kept
            raise
        store.set(name, response.get_data(), ex=86400)
        return response

    return wrapper

# snippet: requests session whose adapter retries post
import requests
from requests.adapters import HTTPAdapter, Retry


class Ledger:
    def __init__(self, base):
        self.base = base
        self.session = requests.Session()
        retries = Retry(total=4, backoff_factor=0.3, status_forcelist=[500, 502, 503], allowed_methods={"GET", "POST"})
        self.session.mount("https://", HTTPAdapter(max_retries=retries))

    def book(self, entry):
        response = self.session.post(f"{self.base}/entries", json=entry, timeout=5)  # expect: retry-post-without-key
        response.raise_for_status()
        return response.json()

# snippet: celery task hands the key to a gateway class
import uuid

from celery import shared_task

from .gateway import Gateway


@shared_task(bind=True, autoretry_for=(IOError,), retry_backoff=True)
def pay_supplier(self, bill_id):
    bill = Bill.objects.get(pk=bill_id)
    Gateway().pay(bill.iban, bill.cents)
# file: gateway.py
import uuid
import requests


class Gateway:
    def pay(self, iban, cents):
        headers = {"Idempotency-Key": uuid.uuid4().hex}  # expect: key-per-attempt
        return requests.post("https://bank.example/payments", json={"iban": iban, "cents": cents}, headers=headers)

# snippet: pika consumer with a try and an ack in order
import json

import pika


def on_message(channel, method, properties, body):
    try:
        order = json.loads(body)
    except ValueError:
        channel.basic_reject(method.delivery_tag, requeue=False)
        return
    try:
        warehouse.pick(order["id"])
    except warehouse.Busy:
        channel.basic_nack(method.delivery_tag, requeue=True)
        return
    channel.basic_ack(method.delivery_tag)


def main():
    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.basic_consume("orders", on_message)
    channel.start_consuming()

# snippet: processed rows without a unique column
import psycopg


def handle_event(conn, event):
    with conn.cursor() as cur:
        cur.execute("SELECT 1 FROM processed_events WHERE event_id = %s", (event["id"],))  # expect: check-then-act
        if cur.fetchone():
            return
        credit_account(event["account"], event["cents"])
        cur.execute("INSERT INTO processed_events (event_id, seen_at) VALUES (%s, now())", (event["id"],))  # expect: insert-without-conflict
    conn.commit()
# file: schema.sql
CREATE TABLE processed_events (event_id text NOT NULL, seen_at timestamptz);

# snippet: uuid5 and digests as keys
import hashlib
import uuid

import stripe

NAMESPACE = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def charge(order):
    key = str(uuid.uuid5(NAMESPACE, f"{order.id}:charge"))
    return stripe.Charge.create(amount=order.cents, currency="eur", idempotency_key=key)


def refund(order, line):
    key = hashlib.sha256(f"{order.id}:{line.id}:refund".encode()).hexdigest()
    return stripe.Refund.create(charge=order.charge, amount=line.cents, idempotency_key=key)

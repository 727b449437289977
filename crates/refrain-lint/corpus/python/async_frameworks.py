# snippet: aiohttp with a loop and a fresh header
import asyncio
import secrets

import aiohttp


async def submit(session: aiohttp.ClientSession, url: str, body: dict) -> dict:
    backoff = 0.5
    while True:
        headers = {"Idempotency-Key": secrets.token_urlsafe(16)}  # expect: key-in-retry-loop
        try:
            async with session.post(url, json=body, headers=headers) as response:
                response.raise_for_status()
                return await response.json()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(backoff)
            backoff *= 2

# snippet: webhook in django with a model as inbox
from django.db import IntegrityError, transaction


def webhook(request):
    event = parse(request)
    try:
        with transaction.atomic():
            InboxMessage.objects.create(event_id=event["id"])
            apply_event(event)
    except IntegrityError:
        pass
    return HttpResponse(status=200)

# snippet: rq job posts to partners
import requests
from rq import Retry


def push_order(order_id):
    order = load(order_id)
    requests.post("https://partner.example/orders", json=order.body(), timeout=10)  # expect: retry-post-without-key


def schedule(queue, order_id):
    queue.enqueue(push_order, order_id, retry=Retry(max=3, interval=[10, 30, 60]))

# snippet: stripe through run_in_executor and partial
import stripe


class Payments:
    def charge(self, order):
        params = dict(amount=order.cents, currency="eur", source=order.source)
        params["idempotency_key"] = order.payment_key
        return stripe.Charge.create(**params)

    def transfer(self, account, cents):
        params = dict(amount=cents, currency="eur", destination=account)
        return stripe.Transfer.create(**params)  # expect: money-call-without-key

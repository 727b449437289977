# snippet: aio-pika process without requeue
async def main(queue):
    async with queue.iterator() as messages:
        async for message in messages:
            await message.ack()  # expect: ack-before-handle
            await book_payment(message.body)

# snippet: kept whatever it is
@app.post("/payments")
def pay():
    key = f"idem:{g.tenant}:{request.headers['Idempotency-Key']}"
    if not r.set(key, "in_progress", nx=True, ex=60):
        return replay(key)
    response = gateway_pay(request.json)
    r.set(key, json.dumps({"status": response.status_code, "body": response.json()}), ex=86400)  # expect: error-outcome-kept
    return response.json(), response.status_code

# snippet: django model without unique
class Payment(models.Model):
    idempotency_key = models.CharField(max_length=64)
    amount = models.IntegerField()


def record(key, amount):
    return Payment.objects.create(idempotency_key=key, amount=amount)  # expect: insert-without-conflict

# snippet: django model with unique
class Payment(models.Model):
    idempotency_key = models.CharField(max_length=64, unique=True)
    amount = models.IntegerField()


def record(key, amount):
    return Payment.objects.create(idempotency_key=key, amount=amount)

# snippet: connection reset, post again
def deliver(session, payload):
    try:
        return session.post(WEBHOOK, json=payload)
    except ConnectionResetError:  # expect: resend-on-closed-connection
        return session.post(WEBHOOK, json=payload)

# snippet: digest long enough
def idempotency_key(customer, cart):
    return hashlib.sha256(f"{customer}:{cart}".encode()).hexdigest()[:40]

# snippet: lock of redis-py
def report(client):
    with client.lock("report", timeout=30):
        build_report()

# snippet: lock by hand
def report(client):
    acquired = client.setnx("report_lock", 1)
    if not acquired:
        return
    client.expire("report_lock", 60)
    build_report()
    client.delete("report_lock")  # expect: unlock-without-owner-check

# snippet: inbox in the same transaction
def handle_event(session, event):
    with session.begin():
        session.execute(text("INSERT INTO inbox (event_id) VALUES (:id) ON CONFLICT DO NOTHING"), {"id": event.id})
        apply_event(session, event)

# snippet: celery with clock
@celery.task(autoretry_for=(Exception,), max_retries=5)
def payout(account_id):
    key = f"payout-{account_id}-{datetime.now().isoformat()}"  # expect: key-from-clock
    requests.post(PAYOUTS, json={"account": account_id}, headers={"Idempotency-Key": key})

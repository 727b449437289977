# snippet: r1
for event in events:
    if event.id in seen:
        continue
    seen.add(event.id)
    process(event)

# snippet: r2
for message in consumer:
    process_order(message.value)
    consumer.commit()

# snippet: r3
for message in consumer:
    with db.transaction():
        if not inbox.insert(message.key):
            continue
        apply(message.value)
    consumer.commit()

# snippet: r4
def send(order, attempt):
    log.info("attempt %s", attempt)
    return requests.post(URL, json=order.body, headers={"Idempotency-Key": order.key, "X-Attempt": str(attempt)})

# snippet: r5
IDEMPOTENCY_TTL = 86400
MAX_RETRIES = 5
RETRY_DELAY = 30

# snippet: r6
def get_profile(user_id):
    try:
        return requests.get(f"{BASE}/users/{user_id}")
    except requests.ConnectionError:
        return requests.get(f"{BASE}/users/{user_id}")

# snippet: r7
def start_attempt(order):
    attempt = PaymentAttempt.objects.create(order=order, idempotency_key=str(uuid.uuid4()))
    return stripe.PaymentIntent.create(amount=order.total, currency="eur", idempotency_key=attempt.idempotency_key)

# snippet: r8
def get_user(user_id):
    cached = cache.get(f"user:{user_id}")
    if cached:
        return cached
    user = load_user(user_id)
    cache.set(f"user:{user_id}", user, 300)
    return user

# snippet: r9
@shared_task(bind=True, max_retries=5)
def charge(self, payment_id):
    payment = Payment.objects.get(pk=payment_id)
    stripe.PaymentIntent.create(amount=payment.amount, currency="eur", idempotency_key=f"payment-{payment.id}")

# snippet: r10
def handle_event(event):
    with transaction.atomic():
        _, created = ProcessedEvent.objects.get_or_create(event_id=event.id)
        if not created:
            return
        apply_event(event)

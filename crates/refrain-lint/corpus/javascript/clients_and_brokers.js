// snippet: while with a fresh key
async function payout(account) {
  let tries = 0;
  while (tries++ < 4) {
    const idempotencyKey = nanoid(); // expect: key-in-retry-loop
    const res = await fetch(PAYOUTS, { method: 'POST', headers: { 'Idempotency-Key': idempotencyKey }, body: JSON.stringify(account) });
    if (res.ok) return res.json();
  }
  throw new Error('payout failed');
}

// snippet: mongoose without unique
const paymentSchema = new mongoose.Schema({
  idempotencyKey: { type: String, required: true },
  amount: Number,
});
const Payment = mongoose.model('Payment', paymentSchema);

async function record(key, amount) {
  return Payment.create({ idempotencyKey: key, amount }); // expect: insert-without-conflict
}

// snippet: mongoose with unique
const paymentSchema = new mongoose.Schema({
  idempotencyKey: { type: String, required: true, unique: true },
  amount: Number,
});
const Payment = mongoose.model('Payment', paymentSchema);

async function record(key, amount) {
  return Payment.create({ idempotencyKey: key, amount });
}

// snippet: ttl in a config
module.exports = {
  idempotency: { ttlSeconds: 300 }, // expect: ttl-shorter-than-retries
  retry: { maxRetries: 8, retryDelaySeconds: 120 },
};

// snippet: ttl that lasts
module.exports = {
  idempotency: { ttlSeconds: 86400 },
  retry: { maxRetries: 8, retryDelaySeconds: 120 },
};

// snippet: paypal order
const request = new paypal.orders.OrdersCaptureRequest(orderId); // expect: money-call-without-key
const response = await paypalClient.execute(request);

// snippet: stripe transfer with a key
await stripe.transfers.create({ amount, currency: 'eur', destination }, { idempotencyKey: `transfer-${invoice.id}` });

// snippet: lock deleted at the end
async function nightly() {
  const locked = await client.set('nightly:lock', process.pid, { NX: true, EX: 600 });
  if (!locked) return;
  await rebuildIndex();
  await client.del('nightly:lock'); // expect: unlock-without-owner-check
}

// snippet: unscoped in express
app.use(async (req, res, next) => {
  const idempotencyKey = req.header('Idempotency-Key');
  if (!idempotencyKey) return next();
  const hit = await cache.get(idempotencyKey); // expect: unscoped-key
  if (hit) return res.status(hit.status).send(hit.body);
  next();
});

// snippet: key in the loop but from the order
for (const order of orders) {
  await axios.post('https://api.example.com/payments', order, { headers: { 'Idempotency-Key': `pay-${order.id}` } });
}

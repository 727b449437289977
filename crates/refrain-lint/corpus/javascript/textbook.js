// snippet: key-in-retry-loop
import { randomUUID } from 'crypto';

export async function pay(order) {
  for (let attempt = 0; attempt < 3; attempt++) {
    try {
      return await fetch('https://api.example.com/payments', {
        method: 'POST',
        headers: { 'Idempotency-Key': randomUUID() }, // expect: key-in-retry-loop
        body: JSON.stringify(order),
      });
    } catch (error) {
      await sleep(1000 * attempt);
    }
  }
}

// snippet: key-per-attempt, bullmq
import { Worker } from 'bullmq';
import { v4 as uuidv4 } from 'uuid';

const worker = new Worker('payments', async (job) => {
  const idempotencyKey = uuidv4(); // expect: key-per-attempt
  await axios.post('https://api.example.com/payments', job.data, {
    headers: { 'Idempotency-Key': idempotencyKey },
  });
});

// snippet: key-per-attempt, attemptsMade
import { Worker } from 'bullmq';

new Worker('payments', async (job) => {
  const idempotencyKey = `${job.data.orderId}-${job.attemptsMade}`; // expect: key-per-attempt
  await stripe.charges.create({ amount: job.data.amount }, { idempotencyKey });
});

// snippet: key-from-clock
async function pay(order) {
  const idempotencyKey = `${order.id}-${Date.now()}`; // expect: key-from-clock
  return axios.post('/payments', order, { headers: { 'Idempotency-Key': idempotencyKey } });
}

// snippet: key-truncated
const crypto = require('crypto');

function makeKey(customerId, cartId) {
  const idempotencyKey = crypto.createHash('sha256').update(`${customerId}-${cartId}`).digest('hex').slice(0, 8); // expect: key-truncated
  return idempotencyKey;
}

// snippet: unscoped-key
app.post('/orders', async (req, res) => {
  const key = req.headers['idempotency-key'];
  const cached = await redis.get(`idempotency:${key}`); // expect: unscoped-key
  if (cached) return res.json(JSON.parse(cached));
  res.sendStatus(409);
});

// snippet: money-call-without-key
const stripe = require('stripe')(process.env.STRIPE_KEY);

async function charge(customer, amount) {
  return stripe.paymentIntents.create({ amount, currency: 'eur', customer }); // expect: money-call-without-key
}

// snippet: money-call-without-key, generic
async function pay(order) {
  return axios.post('https://psp.example.com/v1/payments', { amount: order.total }); // expect: money-call-without-key
}

// snippet: retry-post-without-key
import pRetry from 'p-retry';

export const createOrder = (order) =>
  pRetry(() => axios.post('https://api.example.com/orders', order), { retries: 3 }); // expect: retry-post-without-key

// snippet: retry-post-without-key, loop
async function createOrder(order) {
  let attempts = 0;
  while (attempts < 3) {
    try {
      return await fetch('https://api.example.com/orders', { method: 'POST', body: JSON.stringify(order) }); // expect: retry-post-without-key
    } catch (err) {
      attempts++;
    }
  }
}

// snippet: resend-on-closed-connection
async function send(order) {
  try {
    return await axios.post('https://api.example.com/orders', order);
  } catch (error) {
    if (error.code === 'ECONNRESET') { // expect: resend-on-closed-connection
      return axios.post('https://api.example.com/orders', order);
    }
    throw error;
  }
}

// snippet: check-then-act
app.post('/orders', async (req, res) => {
  const key = `idempotency:${req.user.id}:${req.headers['idempotency-key']}`;
  const existing = await redis.get(key); // expect: check-then-act
  if (existing) return res.json(JSON.parse(existing));
  const order = await createOrder(req.body);
  await redis.set(key, JSON.stringify(order), 'EX', 86400);
  res.status(201).json(order);
});

// snippet: mark-before-handle
consumer.run({
  eachMessage: async ({ message }) => {
    const id = message.headers.id.toString();
    if (await redis.exists(`processed:${id}`)) return;
    await redis.set(`processed:${id}`, '1'); // expect: mark-before-handle
    await shipOrder(JSON.parse(message.value));
  },
});

// snippet: ack-before-handle
channel.consume('orders', async (msg) => {
  channel.ack(msg); // expect: ack-before-handle
  await processOrder(JSON.parse(msg.content.toString()));
});

// snippet: ack-before-handle, automatic
channel.consume('orders', async (msg) => {
  await processOrder(JSON.parse(msg.content.toString()));
}, { noAck: true }); // expect: ack-before-handle

// snippet: publish-in-transaction
async function createOrder(data) {
  await prisma.$transaction(async (tx) => {
    const order = await tx.order.create({ data });
    await producer.send({ topic: 'orders', messages: [{ value: JSON.stringify(order) }] }); // expect: publish-in-transaction
  });
}

// snippet: error-outcome-kept
async function handle(key, request) {
  try {
    const body = await charge(request);
    await redis.set(`idempotency:${key}`, JSON.stringify({ status: 200, body }));
    return body;
  } catch (error) {
    await redis.set(`idempotency:${key}`, JSON.stringify({ status: 500, error: error.message })); // expect: error-outcome-kept
    throw error;
  }
}

// snippet: error-outcome-dropped
async function pay(tenant, idempotencyKey, order) {
  const key = `idem:${tenant}:${idempotencyKey}`;
  if (!(await redis.set(key, 'in_progress', 'EX', 60, 'NX'))) throw new Conflict();
  try {
    await gateway.charge(order);
  } catch (error) {
    await redis.del(key); // expect: error-outcome-dropped
    throw error;
  }
}

// snippet: unlock-without-owner-check
async function run() {
  const locked = await redis.set('lock:report', '1', 'NX', 'EX', 30);
  if (!locked) return;
  try {
    await buildReport();
  } finally {
    await redis.del('lock:report'); // expect: unlock-without-owner-check
  }
}

// snippet: insert-without-conflict
async function save(key, amount) {
  await db.query('INSERT INTO payments (idempotency_key, amount) VALUES ($1, $2)', [key, amount]); // expect: insert-without-conflict
}

// snippet: ttl-shorter-than-retries
const IDEMPOTENCY_TTL_SECONDS = 60; // expect: ttl-shorter-than-retries
const MAX_RETRIES = 10;
const RETRY_DELAY_SECONDS = 60;

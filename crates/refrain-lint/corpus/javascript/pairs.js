// snippet: key in a while loop
const { randomUUID } = require('crypto');

async function pay(order) {
  let attempt = 0;
  while (attempt < 4) {
    try {
      return await axios.post('/payments', order, {
        headers: { 'Idempotency-Key': randomUUID() }, // expect: key-in-retry-loop
      });
    } catch (err) {
      attempt += 1;
      await sleep(100 * 2 ** attempt);
    }
  }
}

// snippet: key outside of the loop
const { randomUUID } = require('crypto');

async function pay(order, attempts) {
  const idempotencyKey = await attempts.getOrCreate(order.id, () => randomUUID());
  for (let attempt = 0; attempt < 4; attempt++) {
    try {
      return await axios.post('/payments', order, { headers: { 'Idempotency-Key': idempotencyKey } });
    } catch (err) {
      await sleep(100 * 2 ** attempt);
    }
  }
}

// snippet: p-retry around a fresh key
const pRetry = require('p-retry');
const { v4: uuidv4 } = require('uuid');

exports.refund = (charge) =>
  pRetry(
    async () => {
      const key = uuidv4(); // expect: key-per-attempt
      return stripe.refunds.create({ charge }, { idempotencyKey: key });
    },
    { retries: 3 },
  );

// snippet: p-retry with a key from outside
const pRetry = require('p-retry');

exports.refund = (charge, refundId) =>
  pRetry(() => stripe.refunds.create({ charge }, { idempotencyKey: `refund-${refundId}` }), { retries: 3 });

// snippet: axios interceptor
const client = axios.create({ baseURL: process.env.PAYMENTS });

client.interceptors.request.use((config) => {
  if (config.method === 'post') {
    config.headers['Idempotency-Key'] = crypto.randomUUID(); // expect: key-per-attempt
  }
  return config;
});

// snippet: bullmq worker
const { Worker } = require('bullmq');

new Worker('payouts', async (job) => {
  await paypal.post('/v1/payments/payouts', job.data, {
    headers: { 'PayPal-Request-Id': `payout-${job.data.payoutId}` },
  });
});

// snippet: clock in the key
async function topUp(wallet, amount) {
  return fetch(`${BASE}/transfers`, {
    method: 'POST',
    headers: { 'Idempotency-Key': `${wallet.id}-${Date.now()}` }, // expect: key-from-clock
    body: JSON.stringify({ amount }),
  });
}

// snippet: stripe without options
const stripe = require('stripe')(process.env.STRIPE_KEY);

async function checkout(cart) {
  const intent = await stripe.paymentIntents.create({ // expect: money-call-without-key
    amount: cart.total,
    currency: 'eur',
  });
  return intent.client_secret;
}

async function checkoutOnce(cart) {
  const options = { idempotencyKey: `cart-${cart.id}-${cart.version}` };
  return stripe.paymentIntents.create({ amount: cart.total, currency: 'eur' }, options);
}

// snippet: headers spread from a helper
const keyed = (order) => ({ 'Idempotency-Key': order.paymentKey });

function pay(order) {
  return axios.post(`${BASE}/payments`, order.body, { headers: { ...auth(), ...keyed(order) } });
}

function refund(order) {
  return axios.post(`${BASE}/refunds`, order.body, { headers: { ...auth() } }); // expect: money-call-without-key
}

// snippet: axios-retry with its defaults
const axiosRetry = require('axios-retry');

const client = axios.create();
axiosRetry(client, { retries: 3, retryDelay: axiosRetry.exponentialDelay });

exports.createOrder = (order) => client.post('/orders', order);

// snippet: axios-retry that retries all
const axiosRetry = require('axios-retry');

const client = axios.create();
axiosRetry(client, { retries: 3, retryCondition: () => true });

exports.createOrder = (order) => client.post('/orders', order); // expect: retry-post-without-key

// snippet: check then act in express
app.post('/orders', async (req, res) => {
  const key = `idem:${req.user.id}:${req.get('Idempotency-Key')}`;
  const hit = await redis.get(key); // expect: check-then-act
  if (hit) return res.json(JSON.parse(hit));
  const order = await orders.place(req.body);
  await redis.set(key, JSON.stringify(order), 'EX', 86400);
  res.status(201).json(order);
});

// snippet: claim in express
app.post('/orders', async (req, res) => {
  const key = `idem:${req.user.id}:${req.get('Idempotency-Key')}`;
  const claimed = await redis.set(key, 'in-progress', 'NX', 'EX', 60);
  if (!claimed) return res.status(409).end();
  const order = await orders.place(req.body);
  await redis.set(key, JSON.stringify(order), 'EX', 86400);
  res.status(201).json(order);
});

// snippet: amqplib without acknowledgement
channel.consume('orders', (msg) => ship(JSON.parse(msg.content)), { noAck: true }); // expect: ack-before-handle

// snippet: amqplib ack in the right order
channel.consume('orders', async (msg) => {
  await ship(JSON.parse(msg.content));
  channel.ack(msg);
});

// snippet: ack first
channel.consume('orders', async (msg) => {
  channel.ack(msg); // expect: ack-before-handle
  await ship(JSON.parse(msg.content));
});

// snippet: publish in a knex transaction
async function place(order) {
  await knex.transaction(async (trx) => {
    await trx('orders').insert(order);
    await channel.publish('events', 'order.placed', Buffer.from(JSON.stringify(order))); // expect: publish-in-transaction
  });
}

async function placeWithOutbox(order) {
  await knex.transaction(async (trx) => {
    await trx('orders').insert(order);
    await publishLater(trx, 'order.placed', order);
  });
}

async function publishLater(trx, name, body) {
  await trx('outbox').insert({ name, body });
}

// snippet: unlock
async function withLock(id, work) {
  const lockKey = `lock:${id}`;
  const got = await redis.set(lockKey, '1', 'NX', 'PX', 30000);
  if (!got) throw new Error('busy');
  try {
    return await work();
  } finally {
    await redis.del(lockKey); // expect: unlock-without-owner-check
  }
}

// snippet: socket hang up
async function submit(body) {
  try {
    return await got.post(`${BASE}/orders`, { json: body });
  } catch (err) {
    if (err.code === 'ECONNRESET' || err.message === 'socket hang up') { // expect: resend-on-closed-connection
      return await got.post(`${BASE}/orders`, { json: body });
    }
    throw err;
  }
}

// snippet: key cut
function headersFor(order) {
  const idempotencyKey = `${order.customer}-${order.cart}-${order.reference}`.slice(0, 24); // expect: key-truncated
  return { 'Idempotency-Key': idempotencyKey };
}

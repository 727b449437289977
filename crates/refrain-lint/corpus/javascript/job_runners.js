// snippet: recursive retry
async function pay(order, attempt = 0) {
  const headers = { 'Idempotency-Key': `order-${order.id}` };
  try {
    return await axios.post(`${BASE}/payments`, order, { headers });
  } catch (e) {
    if (attempt < 3) return pay(order, attempt + 1);
    throw e;
  }
}

// snippet: async-retry with nanoid
const retry = require('async-retry');
const { nanoid } = require('nanoid');

module.exports.capture = async (payment) =>
  retry(async (bail) => {
    const res = await fetch(`${ADYEN}/payments/${payment.psp}/captures`, {
      method: 'POST',
      headers: { 'x-api-key': KEY, 'idempotency-key': nanoid() }, // expect: key-per-attempt
      body: JSON.stringify({ amount: payment.amount }),
    });
    if (res.status === 400) return bail(new Error('bad'));
    return res.json();
  });

// snippet: paypal order without request id
const { OrdersController } = require('@paypal/paypal-server-sdk');

async function create(client, body) {
  const ordersController = new OrdersController(client);
  return ordersController.createOrder({ body, prefer: 'return=minimal' }); // expect: money-call-without-key
}

async function createOnce(client, body, cart) {
  const ordersController = new OrdersController(client);
  return ordersController.createOrder({ body, paypalRequestId: cart.requestId });
}

// snippet: ky with post among the methods
import ky from 'ky';

const api = ky.create({ prefixUrl: BASE, retry: { limit: 4, methods: ['get', 'post'] } });

export const subscribe = (plan) => api.post('subscriptions', { json: plan }).json(); // expect: retry-post-without-key

// snippet: sqs delete first
async function handle(message) {
  await sqs.deleteMessage({ QueueUrl: QUEUE, ReceiptHandle: message.ReceiptHandle }); // expect: ack-before-handle
  await settle(JSON.parse(message.Body));
}

// snippet: lock with a token
async function release(id, token) {
  const script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end";
  return redis.eval(script, 1, `lock:${id}`, token);
}

async function acquire(id, token) {
  return redis.set(`lock:${id}`, token, 'NX', 'PX', 30000);
}

// snippet: bullmq policy and ttl
const queue = new Queue('settlements', {
  defaultJobOptions: { attempts: 12, backoff: { type: 'exponential', delay: 60000 } },
});

async function settle(event) {
  const fresh = await redis.set(`dedup:${event.id}`, 'pending', 'EX', 3600, 'NX'); // expect: ttl-shorter-than-retries
  if (!fresh) return;
  await ledger.settle(event);
}

// snippet: key from an event
const handler = async (event) => {
  const idempotencyKey = event.detail.paymentId;
  return stripe.transfers.create({ amount: event.detail.amount, destination: event.detail.to }, { idempotencyKey });
};

// snippet: claim dropped
async function once(tenant, key, work) {
  const id = `idempotency:${tenant}:${key}`;
  if (!(await redis.set(id, 'in-progress', 'NX', 'EX', 300))) throw new Conflict();
  try {
    return await gateway.charge(work);
  } catch (err) {
    await redis.del(id); // expect: error-outcome-dropped
    throw err;
  }
}

// snippet: timestamp in the header
const axios = require('axios');

async function createRefund(orderId, amount) {
  const response = await axios.post(
    'https://api.example.com/refunds',
    { orderId, amount },
    { headers: { 'Idempotency-Key': `refund-${orderId}-${new Date().toISOString()}` } }, // expect: key-from-clock
  );
  return response.data;
}

// snippet: amqplib consumer with a redis set
channel.consume('shipments', async (msg) => {
  const event = JSON.parse(msg.content.toString());
  const added = await redis.sadd('processed_events', event.id); // expect: mark-before-handle
  if (added === 0) {
    channel.ack(msg);
    return;
  }
  await createShipment(event.orderId);
  channel.ack(msg);
});

// snippet: axios-retry with everything
const axios = require('axios');
const axiosRetry = require('axios-retry');

const client = axios.create({ baseURL: 'https://erp.example.com' });
axiosRetry(client, { retries: 3, retryCondition: () => true });

async function createOrder(order) {
  const { data } = await client.post('/orders', order); // expect: retry-post-without-key
  return data;
}

// snippet: middleware that keeps everything
function idempotency(redis) {
  return async (req, res, next) => {
    const key = `idempotency:${req.user.id}:${req.get('Idempotency-Key')}`;
    const claimed = await redis.set(key, 'in_progress', 'EX', 60, 'NX');
    if (!claimed) return res.status(409).end();
    const send = res.json.bind(res);
    res.json = async (body) => {
      await redis.set(key, JSON.stringify({ status: res.statusCode, body }), 'EX', 86400); // expect: error-outcome-kept
      return send(body);
    };
    next();
  };
}

// snippet: bull job with its attempt
const Queue = require('bull');

const payouts = new Queue('payouts');

payouts.process(async (job) => {
  await stripe.payouts.create(
    { amount: job.data.amount, currency: 'eur' },
    { idempotencyKey: `payout-${job.data.id}-${job.attemptsMade}` }, // expect: key-per-attempt
  );
});

// snippet: ack when done
channel.consume('shipments', async (msg) => {
  const event = JSON.parse(msg.content.toString());
  try {
    await createShipment(event.orderId);
    channel.ack(msg);
  } catch (error) {
    channel.nack(msg, false, true);
  }
});

// snippet: only answers that are final
async function remember(redis, key, response) {
  if (response.status >= 500) {
    await redis.del(`idempotency:lease:${key}`);
    return;
  }
  await redis.set(`idempotency:${key}`, JSON.stringify({ status: response.status, body: response.body }), 'EX', 86400);
}

// snippet: lua releases the lock
const RELEASE = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end`;

async function withLock(redis, name, work) {
  const token = crypto.randomUUID();
  if (!(await redis.set(`lock:${name}`, token, 'NX', 'PX', 30000))) return null;
  try {
    return await work();
  } finally {
    await redis.eval(RELEASE, 1, `lock:${name}`, token);
  }
}

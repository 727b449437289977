// snippet: p1 sqs consumer
const app = Consumer.create({
  queueUrl,
  handleMessage: async (message) => {
    await redis.set(`processed:${message.MessageId}`, '1'); // expect: mark-before-handle
    await fulfil(message.Body);
  },
});

// snippet: p2 top-level await check then act
const key = `idempotency:${tenant}:${idempotencyKey}`;
const cached = await redis.get(key); // expect: check-then-act
if (!cached) {
  const result = await chargeCard(order);
  await redis.set(key, JSON.stringify(result));
}

// snippet: p3 retry helper
async function retry(fn, n = 3) {
  try {
    return await fn();
  } catch (e) {
    if (n === 0) throw e;
    return retry(fn, n - 1);
  }
}
const create = (order) => retry(() => axios.post('https://erp.example.com/orders', order)); // expect: retry-post-without-key

// snippet: p4 square
const { Client } = require('square');
const client = new Client({ accessToken });
async function pay(sourceId) {
  return client.paymentsApi.createPayment({ sourceId, amountMoney: { amount: 100n, currency: 'EUR' } }); // expect: money-call-without-key
}

// snippet: p5 adyen
const { Client, CheckoutAPI } = require('@adyen/api-library');
const checkout = new CheckoutAPI(client);
async function pay(request) {
  return checkout.PaymentsApi.payments(request); // expect: money-call-without-key
}

// snippet: p6 sequelize
await sequelize.transaction(async (t) => {
  const order = await Order.create(data, { transaction: t });
  await channel.publish('orders', 'created', Buffer.from(JSON.stringify(order))); // expect: publish-in-transaction
});

// snippet: p7 pg client begin commit
async function create(client, order) {
  await client.query('BEGIN');
  await client.query('INSERT INTO orders (id) VALUES ($1)', [order.id]);
  await producer.send({ topic: 'orders', messages: [{ value: order.id }] }); // expect: publish-in-transaction
  await client.query('COMMIT');
}

// snippet: p8 fetch retry ECONNRESET message
async function call(body) {
  try {
    return await fetch(url, { method: 'POST', body });
  } catch (err) {
    if (err.cause?.code === 'UND_ERR_SOCKET') { // expect: resend-on-closed-connection
      return await fetch(url, { method: 'POST', body });
    }
    throw err;
  }
}

// snippet: p9 pg check then act
app.post('/payments', async (req, res) => {
  const key = req.get('Idempotency-Key');
  const { rows } = await pool.query('SELECT response FROM idempotency_keys WHERE user_id = $1 AND key = $2', [req.user.id, key]); // expect: check-then-act
  if (rows.length) return res.json(rows[0].response);
  const payment = await processPayment(req.body);
  await pool.query('INSERT INTO idempotency_keys (user_id, key, response) VALUES ($1, $2, $3)', [req.user.id, key, payment]);
  res.json(payment);
});

// snippet: p10 truncated
const idempotencyKey = `${customerId}-${cartId}`.substring(0, 12); // expect: key-truncated

// snippet: p11 lambda handler
exports.handler = async (event) => {
  for (const record of event.Records) {
    const idempotencyKey = crypto.randomUUID(); // expect: key-per-attempt
    await stripe.charges.create({ amount: 100, currency: 'eur' }, { idempotencyKey });
  }
};

// snippet: p12 kafkajs autocommit resolve first
await consumer.run({
  autoCommit: false,
  eachMessage: async ({ topic, partition, message }) => {
    await consumer.commitOffsets([{ topic, partition, offset: message.offset }]); // expect: ack-before-handle
    await handleOrder(message.value);
  },
});

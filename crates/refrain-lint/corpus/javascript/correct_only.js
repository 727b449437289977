// snippet: r1
const worker = new Worker('./compute.js', { workerData });
worker.on('message', (result) => save(result));

// snippet: r2
const worker = new Worker('emails', async (job) => {
  const html = await render(job.data);
  await writeFile(job.data.path, html);
});

// snippet: r3
new Worker('payments', async (job) => {
  await stripe.charges.create({ amount: job.data.amount, currency: 'eur' }, { idempotencyKey: `charge-${job.id}` });
});

// snippet: r4
const traceId = `${order.id}-${Date.now()}`;
logger.info({ traceId }, 'paying');

// snippet: r5
app.post('/search', async (req, res) => {
  const key = `search:${req.body.q}`;
  const hit = await redis.get(key);
  if (hit) return res.json(JSON.parse(hit));
  const found = await search(req.body.q);
  await redis.set(key, JSON.stringify(found), 'EX', 60);
  res.json(found);
});

// snippet: r6
channel.consume('orders', async (msg) => {
  const order = JSON.parse(msg.content);
  await db.transaction(async (trx) => {
    const fresh = await trx('inbox').insert({ message_id: msg.properties.messageId }).onConflict().ignore();
    if (fresh) await shipOrder(trx, order);
  });
  channel.ack(msg);
});

// snippet: r7
async function create(client, order) {
  await client.query('BEGIN');
  await client.query('INSERT INTO orders (id) VALUES ($1)', [order.id]);
  await client.query('COMMIT');
  await producer.send({ topic: 'orders', messages: [{ value: order.id }] });
}

// snippet: r8
const shortId = order.id.slice(0, 8);
console.log(`order ${shortId} with key ${idempotencyKey}`);

// snippet: r9
await redis.set(`idempotency:${tenant}:${key}`, JSON.stringify({ status: 201, body }), 'EX', 86400);

// snippet: r10
axiosRetry(client, { retries: 3, retryCondition: axiosRetry.isIdempotentRequestError });
await client.post('/orders', order);
